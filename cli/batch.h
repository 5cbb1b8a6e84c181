/* Prompts of a run: one, or the lines of --batch, each with its own settings.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_BATCH_H
#define MNEME_CLI_BATCH_H

#include "base/json.h"
#include "input.h"

typedef struct batch_line {
    json_doc *doc; /* the object, of a batch */
    prompt prompt;
    mn_generation_config *config;
} batch_line;

typedef struct batch {
    batch_line *lines;
    size_t n, capacity;
} batch;

typedef struct batch_setup {
    const options *o;
    const input *in;     /* the lines */
    const bytes *prefix; /* put before every prompt; empty: nothing */
    mn_model *model;
    const json_doc *file; /* --generation-config, or NULL */
} batch_setup;

/* One line more, empty. */
mn_status batch_add(batch *b, batch_line **line);

/* Reads all lines; messages name the line. MN_E_ARG. */
mn_status batch_read(batch *b, const batch_setup *setup);
void batch_clear(batch *b);

#endif
