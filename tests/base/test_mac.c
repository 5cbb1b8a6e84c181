/* Keyed checksums: the examples of RFC 4231; which key files are accepted.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/mac.h"
#include "support/scratch.h"

static const struct {
    int key_byte;
    size_t n_key;
    const char *data; /* NULL: 50 bytes 0xdd */
    const char *sum;
} examples[] = {
    {0x0b, 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
    {0xaa, 20, NULL, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
    {0xaa, 131, "Test Using Larger Than Block-Size Key - Hash Key First",
     "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
};

static const char *key_file(const void *data, size_t n, mode_t mode) {
    const char *path = scratch_file("key", data, n);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static void the_examples_of_RFC_4231_are_reproduced(void **state) {
    (void)state;
    uint8_t key_data[200], block[50];
    memset(block, 0xdd, sizeof block);
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        const void *data = examples[i].data ? (const void *)examples[i].data : block;
        size_t n = examples[i].data ? strlen(examples[i].data) : sizeof block;
        mac_key key;
        memset(key_data, examples[i].key_byte, sizeof key_data);
        assert_ok(mac_key_read(&key, key_file(key_data, examples[i].n_key, 0600)));
        for (size_t cut = 0; cut <= n; cut += 7) {
            mac *m = NULL;
            char sum[MAC_HEX];
            assert_ok(mac_open(&m, &key));
            mac_add(m, data, cut);
            mac_add(m, (const char *)data + cut, n - cut);
            assert_ok(mac_put(sum, m));
            assert_string_equal(sum, examples[i].sum);
            mac_close(&m);
        }
        mac_key_wipe(&key);
        assert_int_equal(key.n, 0);
    }
}

static void key_files_must_be_private_and_long_enough(void **state) {
    (void)state;
    static const char zeros[MAC_KEY_MOST + 1];
    static const mode_t modes[] = {0644, 0640, 0604, 0620, 0601, 0660};
    mac_key key;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        const char *path = key_file(zeros, 32, modes[i]);
        assert_fails(MN_E_ARG, "others may use it; allowed: 0600 or 0400", mac_key_read(&key, path));
        assert_non_null(strstr(mn_last_error(), path));
    }
    assert_ok(mac_key_read(&key, key_file(zeros, MAC_KEY_LEAST, 0400)));
    assert_int_equal(key.n, MAC_KEY_LEAST);
    unlink(scratch_path("key"));
    assert_ok(mac_key_read(&key, key_file(zeros, MAC_KEY_MOST, 0600)));
    assert_fails(MN_E_ARG, "has 15 bytes, allowed: 16 to 4096", mac_key_read(&key, key_file(zeros, 15, 0600)));
    assert_fails(MN_E_ARG, "has 0 bytes", mac_key_read(&key, key_file(zeros, 0, 0600)));
    assert_fails(MN_E_ARG, "has at least 4097 bytes", mac_key_read(&key, key_file(zeros, MAC_KEY_MOST + 1, 0600)));
    assert_fails(MN_E_NOT_FOUND, "no-key", mac_key_read(&key, scratch_path("no-key")));
    assert_fails(MN_E_IO, "is a device", mac_key_read(&key, "/dev/zero"));
    const char *path = key_file(zeros, 32, 0600);
    if (scratch_give_away(path)) assert_fails(MN_E_ARG, "belongs to user 12345", mac_key_read(&key, path));
}

static void whole_checksums_are_compared(void **state) {
    (void)state;
    char a[MAC_HEX], b[MAC_HEX];
    memset(a, 'a', sizeof a);
    for (size_t i = 0; i < MAC_HEX - 1; i++) {
        memcpy(b, a, sizeof b);
        assert_true(mac_equal(a, b, MAC_HEX - 1));
        b[i] = 'b';
        assert_false(mac_equal(a, b, MAC_HEX - 1));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_examples_of_RFC_4231_are_reproduced),
        cmocka_unit_test(key_files_must_be_private_and_long_enough),
        cmocka_unit_test(whole_checksums_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
