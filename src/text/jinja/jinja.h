/* Jinja templates, as Python's Jinja2 renders chat templates in Transformers.
 *
 * The environment is the one of Transformers: immutable sandbox, trim_blocks, lstrip_blocks, the tags `generation`,
 * `break` and `continue`, `tojson` without HTML escaping, the globals raise_exception and strftime_now. Values behave
 * as in Python (repr, floor division, slices by code point, lazily evaluated filters); integers beyond 64 bits are an
 * error. There is no loader, so include, import and extends fail when they are reached.
 *
 * Templates come from model files and are hostile input: every rendering has budgets, and a template cannot access
 * anything outside its context.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_JINJA_JINJA_H
#define MN_TEXT_JINJA_JINJA_H

#include <time.h>

#include "base/json.h"
#include "base/mem.h"

typedef struct jinja_template jinja_template; /* immutable once compiled; may be rendered by several threads at once */

/* Budgets of one rendering; zero means the default. Beyond one of them the status is MN_E_FULL. The defaults limit
 * every template to 64 MiB, about half a second of processor time and 48 KiB of stack; compiling has the same ones. */
typedef struct jinja_limits {
    int64_t steps;  /* evaluated nodes, iterations, comparisons, probes of dictionaries, allocations, and one for every
                       few bytes written, copied or read; default 10 million */
    int64_t depth;  /* nested expressions, statements and macro calls; default 100 */
    int64_t output; /* bytes written, unfinished texts included; default 32 MiB */
    int64_t memory; /* bytes held at one time; default 64 MiB */
} jinja_limits;

/* Compiles `n` bytes of UTF-8, at most 1 MiB, which are not kept. MN_E_FORMAT "chat template: line L: ..." for what
 * Jinja2 refuses at compile time and for more than 64 nested levels, MN_E_FULL for a spent budget, MN_E_NOMEM. */
mn_status jinja_compile(jinja_template **out, const char *text, size_t n);

/* Appends the rendered text to *out; on failure *out is as before. The members of `context` (an object, or NULL for
 * none) are the template's variables. `limits` may be NULL. `now` is what strftime_now sees; NULL means the local time.
 * MN_E_ARG with "chat template: TEXT" when the template calls raise_exception(TEXT), MN_E_ARG "chat template: line L:
 * ..." where Python raises anything else, MN_E_FULL for a spent budget, MN_E_UNSUPPORTED for the few things of Jinja2
 * that are not here, MN_E_NOMEM. */
mn_status jinja_render(const jinja_template *template, const json *context, const jinja_limits *limits,
                       const struct tm *now, bytes *out);

void jinja_close(jinja_template **template); /* accepts a pointer to NULL */

#endif
