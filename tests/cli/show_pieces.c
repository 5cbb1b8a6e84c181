/* Writes its standard input as the command writes an answer, in pieces of N bytes. usage: show_pieces N
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "output.h"

int main(int argc, char **argv) {
    char piece[4096];
    size_t size = argc > 1 ? strtoul(argv[1], NULL, 10) : 0, n;
    if (size < 1 || size > sizeof piece) return EXIT_USAGE;
    while ((n = fread(piece, 1, size, stdin)) > 0) put(piece, n);
    return finish(EXIT_DONE);
}
