/* SPDX-License-Identifier: Apache-2.0 */
#include "support/schema_machine.h"

#include "support/support.h"

mn_status machine_open(machine *m, const char *text) {
    *m = (machine){0};
    assert_ok(json_parse(&m->doc, text, strlen(text), JSON_STRICT, "schema of a test"));
    MN_TRY(net_open(&m->g));
    uint32_t root = net_schema(&m->g, json_root(m->doc));
    MN_TRY(net_finish(&m->g, root));
    if (m->g.nodes[root].need > NET_DEPTH) MN_FAIL(MN_E_ARG, "cannot be met: %s", m->g.reason);
    return run_open(&m->r, &m->g);
}

void machine_close(machine *m) {
    run_clear(&m->r);
    net_clear(&m->g);
    json_close(&m->doc);
}

bool machine_takes(machine *m, const char *text, size_t n) {
    uint32_t state = m->r.start;
    m->r.steps = 0;
    for (size_t i = 0; i < n && state != RUN_DEAD; i++) assert_ok(run_step(&m->r, state, (uint8_t)text[i], &state));
    return m->r.states[state].accepts;
}

size_t machine_complete(machine *m, uint32_t state, const char *avoid, char *out, size_t n) {
    enum { MOST = 20000 };
    static struct {
        uint32_t state;
        size_t from;
        char byte;
    } queue[MOST];
    static uint8_t known[1 << 22];
    size_t head = 0, tail = 0, length = 0;
    queue[tail++].state = state;
    known[state] = 1;
    while (head < tail && !m->r.states[queue[head].state].accepts) {
        m->r.steps = 0;
        for (unsigned c = 0; c < m->g.n_classes; c++) {
            uint32_t next;
            if (m->g.sample[c] && strchr(avoid, m->g.sample[c])) continue;
            assert_ok(run_step(&m->r, queue[head].state, m->g.sample[c], &next));
            if (next == RUN_DEAD || known[next] || tail == MOST) continue;
            known[next] = 1;
            queue[tail].state = next;
            queue[tail].from = head;
            queue[tail++].byte = (char)m->g.sample[c];
        }
        head++;
    }
    for (size_t i = 0; i < tail; i++) known[queue[i].state] = 0;
    if (head == tail) return 0;
    for (size_t i = head; i; i = queue[i].from) length++;
    assert_true(n + length <= MACHINE_TEXT);
    n += length;
    for (size_t i = head, k = n; i; i = queue[i].from) out[--k] = queue[i].byte;
    return n;
}

size_t machine_walk(machine *m, uint64_t *seed, char *out) {
    static const char liked[] = "\"}]0123456789:,-.@TZnetrulsafbc";
    size_t n = 0, patience = (size_t)(test_random(seed) % 100);
    uint32_t state = m->r.start, next;
    while (n < patience) {
        uint8_t choices[256];
        size_t k = 0;
        m->r.steps = 0;
        for (unsigned b = 0; b < 256; b++) {
            assert_ok(run_step(&m->r, state, (uint8_t)b, &next));
            if (next != RUN_DEAD) choices[k++] = (uint8_t)b;
        }
        if (n && m->r.states[state].accepts && (k == 0 || test_random(seed) % 4 == 0)) return n;
        assert_true(k > 0);
        uint8_t byte = choices[test_random(seed) % k];
        for (const char *c = liked; *c && test_random(seed) % 3 == 0; c++) {
            if (!memchr(choices, *c, k)) continue;
            byte = (uint8_t)*c;
            break;
        }
        assert_ok(run_step(&m->r, state, byte, &state));
        out[n++] = (char)byte;
    }
    size_t end = machine_complete(m, state, " \n{[", out, n);
    if (end == 0) end = machine_complete(m, state, "", out, n);
    if (end == 0) fail_msg("no path to an accepting state after %.*s", (int)n, out);
    return end;
}
