/* SPDX-License-Identifier: Apache-2.0 */
#include "support/tokens.h"

#include <string.h>

void assert_token_ids(const tokenizer *t, const char *text, unsigned flags, const char *expected) {
    token_list ids = {0};
    bytes seen = {0};
    assert_ok(tokenizer_encode(t, text, strlen(text), flags, &ids));
    for (size_t i = 0; i < ids.n; i++) bytes_printf(&seen, "%s%d", i ? " " : "", (int)ids.ids[i]);
    assert_string_equal(bytes_text(&seen), expected);
    bytes_clear(&seen);
    token_list_clear(&ids);
}
