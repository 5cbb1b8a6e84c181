/* Writes a saved cache for the tests of `mneme cache`: 3 tokens, a smooth and a noisy entry, members as every
 * saved cache has them. usage: make_cache FILE [KEY=VALUE...]     a KEY that is there already is replaced
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "kv/archive.h"

enum { N_BYTES = 51200, MOST = 32 };

int main(int argc, char **argv) {
    static uint8_t smooth[N_BYTES], noise[N_BYTES];
    static const int32_t ids[] = {1, 403, 407};
    archive_member members[MOST] = {
        {ARCHIVE_KIND, ARCHIVE_KIND_CACHE},
        {ARCHIVE_MODEL, "stories260K"},
        {ARCHIVE_MODEL_FINGERPRINT, "00112233445566778899aabbccddeeff"},
        {ARCHIVE_TOKENIZER_FINGERPRINT, ""},
        {ARCHIVE_STRATEGY, "{\"implementation\":\"dynamic\",\"dtype\":\"bf16\"}"},
        {ARCHIVE_ROPE, "{\"theta\":10000}"},
        {ARCHIVE_TOKENS, "3"},
        {ARCHIVE_CREATED, "2025-01-02T03:04:05Z"},
    };
    size_t n = 8;
    if (argc < 2 || argc - 2 > MOST - 8) return 2;
    for (int i = 2; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        if (!equals) return 2;
        *equals = 0;
        size_t at = 0;
        while (at < n && strcmp(members[at].key, argv[i]) != 0) at++;
        members[at] = (archive_member){argv[i], equals + 1};
        n += at == n;
    }
    for (int i = 0; i < N_BYTES; i++) {
        smooth[i] = (uint8_t)(i / 100);
        noise[i] = (uint8_t)random_bits(1, 2, (uint64_t)i);
    }
    const archive_entry entries[] = {{ARCHIVE_IDS, DTYPE_I32, 1, {3}, ids, sizeof ids, false},
                                     {"keys", DTYPE_BF16, 3, {2, 100, 128}, smooth, N_BYTES, false},
                                     {"values", DTYPE_F32, 2, {100, 128}, noise, N_BYTES, false}};
    if (archive_write(argv[1], entries, 3, members, n) == MN_OK) return 0;
    fprintf(stderr, "make_cache: %s\n", mn_last_error());
    return 1;
}
