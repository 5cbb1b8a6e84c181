/* Speed of a tokenizer: opening, encoding and decoding, best of several runs on one thread, in processor time, which
 * depends less on other load.
 *
 *   gcc -O2 -D_GNU_SOURCE -Isrc -Iinclude bench/tokenizer_speed.c build/release/libmneme_core.a \
 *       $(pkg-config --cflags --libs libpcre2-8 libutf8proc) -lpthread -lm -o tokenizer_speed
 *   ./tokenizer_speed TOKENIZER TEXT-FILE [RUNS]
 *
 * For the package `tokenizers` with the same file: python3 bench/tokenizer_hf.py TOKENIZER.json TEXT-FILE [RUNS]. Both
 * print the number of ids, which must be equal, and a checksum over them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bench_timer.h"
#include "base/file.h"
#include "text/tokenizer/tokenizer.h"

static double cpu_ms(void) {
    return 1e3 * seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

static double least(double a, double b) {
    return a < b ? a : b;
}

static int failed(void) {
    fprintf(stderr, "%s\n", mn_last_error());
    return 1;
}

/* FNV-1a over the ids as 32-bit little-endian numbers. */
static uint32_t checksum(const token_list *ids) {
    uint32_t h = 0x811C9DC5u;
    const unsigned char *data = (const unsigned char *)ids->ids;
    for (size_t i = 0; i < ids->n * sizeof *ids->ids; i++) h = (h ^ data[i]) * 0x01000193u;
    return h;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s TOKENIZER TEXT-FILE [RUNS]\n", argv[0]);
        return 2;
    }
    int runs = argc > 3 ? atoi(argv[3]) : 10;
    double load = 1e9, encode = 1e9, decode = 1e9;
    tokenizer *t = NULL;
    token_list ids = {0};
    bytes text = {0}, back = {0};
    if (file_read(&text, argv[2], (size_t)1 << 30) != MN_OK) return failed();
    for (int i = 0; i < runs; i++) {
        tokenizer_close(&t);
        ids.n = back.n = 0;
        double from = cpu_ms();
        if (tokenizer_open(&t, argv[1]) != MN_OK) return failed();
        load = least(load, cpu_ms() - from);
        from = cpu_ms();
        if (tokenizer_encode(t, text.data, text.n, 0, &ids) != MN_OK) return failed();
        encode = least(encode, cpu_ms() - from);
        from = cpu_ms();
        if (tokenizer_decode(t, ids.ids, ids.n, 0, &back) != MN_OK) return failed();
        decode = least(decode, cpu_ms() - from);
    }
    double mb = (double)text.n / 1e6;
    printf("mneme        load %7.1f ms  encode %7.2f MB/s  decode %7.2f MB/s  %zu ids  checksum %08x\n", load,
           mb / encode * 1e3, mb / decode * 1e3, ids.n, checksum(&ids));
    token_list_clear(&ids);
    bytes_clear(&text);
    bytes_clear(&back);
    tokenizer_close(&t);
    return 0;
}
