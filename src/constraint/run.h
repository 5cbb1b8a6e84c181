/* A network run as a pushdown automaton whose states are made on demand.
 *
 * A reading (one parse of a text so far) is a node and a stack of open calls and repetitions; equal stacks are one
 * frame (they are stored once), so a reading is two integers. A state is the set of all readings of a text, and equal
 * sets are one state; its transitions are remembered. Readings that cannot reach the end within NET_DEPTH open calls
 * are dropped at once, so every state but RUN_DEAD can be completed.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_CONSTRAINT_RUN_H
#define MN_CONSTRAINT_RUN_H

#include "constraint/net.h"

enum {
    RUN_DEAD = 0,           /* no text may follow */
    RUN_DONE = 1,           /* complete, and no byte may follow */
    RUN_READINGS = 1 << 14, /* of one text */
    RUN_STEPS = 1 << 21,    /* nodes visited for one token or one mask */
    RUN_SOFT = 24 << 20,    /* bytes after which the caller should move what it needs to a new run */
    RUN_HARD = 96 << 20,    /* bytes that a run may reach */
};

#define RUN_NO_STATE UINT32_MAX /* a transition not made yet */
#define RUN_NO_MASK  UINT32_MAX

typedef struct run_frame {
    uint32_t parent, node; /* NET_CALL or NET_REPEAT */
    uint32_t count;        /* NET_REPEAT: rounds done; never more than min when max is NET_MANY */
    uint16_t depth;        /* calls open, this one included */
    bool fresh;            /* opened or started again since the last byte: a round that ends now has read nothing */
} run_frame;

typedef struct run_state {
    uint32_t at, n; /* slice of readings: node << 32 | frame, ascending */
    uint32_t mask;  /* slot of the caller's, or RUN_NO_MASK */
    bool accepts;   /* the text may end here */
} run_state;

/* A growable table of hashes to ids. */
typedef struct run_table {
    uint32_t *slots; /* id + 1; 0: empty */
    size_t n_slots;
} run_table;

typedef struct run {
    const net *g;
    run_frame *frames; /* [0]: nothing open */
    size_t n_frames, frames_capacity;
    run_state *states;
    size_t n_states, states_capacity;
    uint64_t *readings;
    size_t n_readings, readings_capacity;
    uint32_t *next; /* [n_states][n_classes] */
    size_t next_capacity;
    run_table frame_table, state_table;
    uint32_t start;
    size_t steps; /* nodes visited; the caller sets it to zero */

    /* Scratch of one step: readings to look at, seen, and kept. */
    uint64_t *work, *seen, *kept;
    uint32_t *stamp; /* of seen: a slot is empty unless it has the stamp of this step */
    uint32_t now;
    size_t n_work, n_seen, n_kept, work_capacity, kept_capacity;
    bool accepts;
} run;

/* g is borrowed and must be finished. MN_E_ARG when nothing matches; *r may be cleared after a failure. */
mn_status run_open(run *r, const net *g);
void run_clear(run *r);
/* A state of another run of the same network. frames: scratch, [from->n_frames], zeros before the first state is
 * moved. */
mn_status run_move(run *to, const run *from, uint32_t state, uint32_t *frames, uint32_t *out);
size_t run_bytes(const run *r); /* held by states, frames and transitions */

/* The state after one more byte: RUN_DEAD when none may come. MN_E_UNSUPPORTED when a limit above is met,
 * MN_E_NOMEM. */
mn_status run_step_slow(run *r, uint32_t state, unsigned class, uint32_t *out);

static inline mn_status run_step(run *r, uint32_t state, uint8_t byte, uint32_t *out) {
    unsigned class = r->g->class_of[byte];
    *out = r->next[(size_t)state * r->g->n_classes + class];
    return *out == RUN_NO_STATE ? run_step_slow(r, state, class, out) : MN_OK;
}

#endif
