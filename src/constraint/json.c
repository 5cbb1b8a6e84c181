/* The pieces of JSON as nodes: strings and white space.
 * SPDX-License-Identifier: Apache-2.0 */
#include "constraint/net.h"

#define HEX "[0-9A-Fa-f]"
#define CHARACTER                                                                                                      \
    "[^\"\\\\\\x00-\\x1F]|\\\\(?:[\"\\\\/bfnrt]|u(?:[0-9A-CEFa-cef]" HEX "{3}|[Dd][0-7]" HEX "{2}|[Dd][89ABab]" HEX    \
    "{2}\\\\u[Dd][C-Fc-f]" HEX "{2}))"

uint32_t net_json_rest(net *g, uint32_t next) {
    uint32_t loop = net_loop(g, net_bytes(g, '"', '"', next));
    net_loop_body(g, loop, net_plain(g, CHARACTER, loop));
    return loop;
}

uint32_t net_json_characters(net *g, uint32_t min, uint32_t max, uint32_t next) {
    if (min == 0 && max == NET_MANY) return net_json_rest(g, next);
    return net_repeat(g, net_plain(g, CHARACTER, NET_END), min, max, net_bytes(g, '"', '"', next));
}

uint32_t net_json_string(net *g, uint32_t min, uint32_t max, uint32_t next) {
    return net_bytes(g, '"', '"', net_json_characters(g, min, max, next));
}

uint32_t net_json_space(net *g, uint32_t next) {
    return net_plain(g, " |\\n {0,32}|", next);
}
