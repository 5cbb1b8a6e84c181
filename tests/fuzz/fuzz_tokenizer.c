/* Random bytes as a tokenizer file (JSON, SentencePiece, tiktoken, GGUF); accepted tokenizers encode and decode the
 * same bytes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/utf8.h"
#include "text/tokenizer/build.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void use(const tokenizer *t, const char *text, size_t n) {
    token_list ids = {0};
    bytes out = {0};
    n = utf8_valid_prefix(text, n < 4096 ? n : 4096);
    if (tokenizer_encode(t, text, n, TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL, &ids) == MN_OK) {
        if (tokenizer_decode(t, ids.ids, ids.n, 0, &out) != MN_OK || utf8_valid_prefix(out.data, out.n) != out.n)
            abort();
    }
    token_list_clear(&ids);
    bytes_clear(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static unicode_table *classes; /* building it takes longer than most inputs */
    tokenizer *t;
    if (!classes && unicode_table_open(&classes) != MN_OK) return 0;
    if (tokenizer_new(&t, classes) != MN_OK) return 0;
    if (tokenizer_read_bytes(t, data, n, "input") == MN_OK && tokenizer_finish(t, "input") == MN_OK)
        use(t, (const char *)data, n);
    t->classes = NULL;
    tokenizer_close(&t);
    return 0;
}
