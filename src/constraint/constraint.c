/* SPDX-License-Identifier: Apache-2.0 */
#include "constraint/constraint.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "constraint/run.h"
#include "constraint/tokens.h"

enum {
    MASK_BYTES = 16 << 20, /* of masks kept, within these numbers */
    MASKS_LEAST = 4,
    MASKS_MOST = 4096,
    PREFIXES = 64, /* texts whose state is remembered: the rows of a batch, or beams and those they come from */
};

typedef struct prefix {
    int32_t *ids;
    size_t n, capacity;
    uint32_t state; /* RUN_NO_STATE: nothing remembered */
} prefix;

typedef struct mask_slot {
    uint64_t *words;
    uint32_t owner; /* a state, or RUN_NO_STATE */
} mask_slot;

struct constraint {
    net g;
    run r;
    tokenizer *text; /* held, because the tree is its own */
    const token_tree *tree;
    int32_t *ends;
    size_t n_ends, vocab, words;
    mask_slot *slots;
    size_t n_slots, most_slots, oldest_slot; /* slots are reused in turn */
    size_t n_masks;                          /* computed so far */
    uint64_t *first_mask;                    /* of the empty text, where the bytes of tokens are different */
    bool has_first_mask;
    prefix prefixes[PREFIXES];
    size_t oldest_prefix;
    pthread_mutex_t lock; /* of everything, in constraint_mask */
};

/* ---- masks ---- */

/* The vocabulary of the tokenizer may be larger than that of the logits. */
static void allow(const constraint *c, uint64_t *mask, uint32_t id) {
    if (id < c->vocab) mask[id / 64] |= (uint64_t)1 << id % 64;
}

static void forbid(uint64_t *mask, uint32_t id) {
    mask[id / 64] &= ~((uint64_t)1 << id % 64);
}

static bool is_end(const constraint *c, int32_t id) {
    for (size_t i = 0; i < c->n_ends; i++) {
        if (c->ends[i] == id) return true;
    }
    return false;
}

static mn_status read_text(constraint *c, const char *text, size_t n, uint32_t *state) {
    for (size_t i = 0; i < n && *state != RUN_DEAD; i++) MN_TRY(run_step(&c->r, *state, (uint8_t)text[i], state));
    return MN_OK;
}

/* Allows the tokens of the trie that can follow the state. */
static mn_status allow_tokens(constraint *c, uint32_t state, uint64_t *mask) {
    const token_node *nodes = c->tree->nodes;
    uint32_t reached[TOKEN_BYTES + 1], s;
    reached[0] = state;
    for (size_t i = 0; i < c->tree->n;) {
        const token_node *node = &nodes[i];
        MN_TRY(run_step(&c->r, reached[node->depth - 1], node->byte, &s));
        if (s == RUN_DEAD) {
            i = node->skip;
            continue;
        }
        reached[node->depth] = s;
        for (uint32_t k = node->token; k < nodes[i + 1].token; k++) allow(c, mask, c->tree->order[k]);
        i++;
    }
    return MN_OK;
}

/* Corrects the tokens whose bytes are different at the beginning of a text, one by one. */
static mn_status correct_first(constraint *c, uint64_t *mask) {
    for (size_t id = 0; id < c->vocab && id < c->tree->vocab; id++) {
        token_text usual = c->tree->text[id], text = c->tree->first[id];
        if (usual.at == text.at && usual.n == text.n) continue;
        uint32_t state = text.n ? c->r.start : RUN_DEAD;
        MN_TRY(read_text(c, c->tree->texts.data + text.at, text.n, &state));
        forbid(mask, (uint32_t)id);
        if (state != RUN_DEAD) allow(c, mask, (uint32_t)id);
    }
    return MN_OK;
}

static mn_status fill_mask(constraint *c, uint32_t state, bool first, uint64_t *mask, size_t n_new) {
    c->n_masks++;
    memset(mask, 0, c->words * sizeof *mask);
    MN_TRY(allow_tokens(c, state, mask));
    if (first) MN_TRY(correct_first(c, mask));
    for (size_t i = 0; i < c->n_ends; i++) {
        forbid(mask, (uint32_t)c->ends[i]); /* as text, which an end token may have too */
        if (c->r.states[state].accepts) allow(c, mask, (uint32_t)c->ends[i]);
    }
    for (size_t i = 0; i < c->words; i++) {
        if (mask[i]) return MN_OK;
    }
    MN_FAIL(MN_E_UNSUPPORTED, "no token of this vocabulary fits the constraint after %zu tokens", n_new);
}

static mn_status take_slot(constraint *c, size_t *out) {
    if (c->n_slots < c->most_slots) {
        mask_slot slot = {mem_alloc_raw(c->words, sizeof *slot.words), RUN_NO_STATE};
        if (!slot.words) return MN_E_NOMEM;
        *out = c->n_slots;
        c->slots[c->n_slots++] = slot;
        return MN_OK;
    }
    *out = c->oldest_slot;
    c->oldest_slot = (c->oldest_slot + 1) % c->most_slots;
    mask_slot *slot = &c->slots[*out];
    if (slot->owner != RUN_NO_STATE) c->r.states[slot->owner].mask = RUN_NO_MASK;
    slot->owner = RUN_NO_STATE;
    return MN_OK;
}

static mn_status mask_of(constraint *c, uint32_t state, size_t n_new, const uint64_t **mask) {
    size_t slot;
    if (n_new == 0 && c->first_mask) {
        if (!c->has_first_mask) MN_TRY(fill_mask(c, state, true, c->first_mask, n_new));
        c->has_first_mask = true;
        *mask = c->first_mask;
        return MN_OK;
    }
    if (c->r.states[state].mask == RUN_NO_MASK) {
        MN_TRY(take_slot(c, &slot));
        MN_TRY(fill_mask(c, state, false, c->slots[slot].words, n_new));
        c->slots[slot].owner = state;
        c->r.states[state].mask = (uint32_t)slot;
    }
    *mask = c->slots[c->r.states[state].mask].words;
    return MN_OK;
}

/* ---- states ---- */

/* Moves the states that are needed to `fresh`: the current one and those of the newest prefixes, with their new
 * numbers. */
static mn_status move_states(constraint *c, run *fresh, uint32_t *current, uint32_t *moved) {
    uint32_t *frames = mem_alloc(c->r.n_frames, sizeof *frames);
    mn_status status = frames ? run_move(fresh, &c->r, *current, frames, current) : MN_E_NOMEM;
    for (size_t i = 0; i < PREFIXES && status == MN_OK; i++) {
        size_t k = (c->oldest_prefix + PREFIXES - 1 - i) % PREFIXES; /* the newest first */
        moved[k] = RUN_NO_STATE;
        if (c->prefixes[k].state == RUN_NO_STATE || run_bytes(fresh) > RUN_SOFT / 2) continue;
        status = run_move(fresh, &c->r, c->prefixes[k].state, frames, &moved[k]);
    }
    mem_free(frames);
    return status;
}

/* Drops most states when there are too many. */
static mn_status forget(constraint *c, uint32_t *current) {
    run fresh;
    uint32_t moved[PREFIXES], state = *current;
    if (run_bytes(&c->r) <= RUN_SOFT) return MN_OK;
    mn_status status = run_open(&fresh, &c->g);
    if (status == MN_OK) status = move_states(c, &fresh, &state, moved);
    if (status != MN_OK) {
        run_clear(&fresh);
        return status;
    }
    run_clear(&c->r);
    c->r = fresh;
    *current = state;
    for (size_t i = 0; i < c->n_slots; i++) c->slots[i].owner = RUN_NO_STATE;
    for (size_t i = 0; i < PREFIXES; i++) c->prefixes[i].state = moved[i];
    return MN_OK;
}

/* The longest remembered prefix of the ids. */
static const prefix *find_prefix(const constraint *c, const int32_t *ids, size_t n) {
    const prefix *best = NULL;
    for (size_t i = 0; i < PREFIXES; i++) {
        const prefix *p = &c->prefixes[i];
        if (p->state == RUN_NO_STATE || p->n == 0 || p->n > n || (best && p->n <= best->n)) continue;
        if (p->ids[p->n - 1] == ids[p->n - 1] && memcmp(p->ids, ids, p->n * sizeof *ids) == 0) best = p;
    }
    return best;
}

static mn_status remember(constraint *c, const int32_t *ids, size_t n, uint32_t state) {
    prefix *p = &c->prefixes[c->oldest_prefix];
    p->state = RUN_NO_STATE;
    MN_TRY(mem_grow(&p->ids, &p->capacity, n, sizeof *p->ids));
    memcpy(p->ids, ids, n * sizeof *ids);
    p->n = n;
    p->state = state;
    c->oldest_prefix = (c->oldest_prefix + 1) % PREFIXES;
    return MN_OK;
}

static mn_status read_token(constraint *c, int32_t id, size_t place, uint32_t *state) {
    if (id < 0 || (size_t)id >= c->vocab)
        MN_FAIL(MN_E_ARG, "the token id %" PRId32 " is out of range, allowed: 0 to %zu", id, c->vocab - 1);
    if (is_end(c, id)) {
        *state = c->r.states[*state].accepts ? RUN_DONE : RUN_DEAD;
    } else {
        token_text text = token_tree_text(c->tree, (size_t)id, place == 0);
        if (text.n == 0) *state = RUN_DEAD;
        MN_TRY(read_text(c, c->tree->texts.data + text.at, text.n, state));
    }
    if (*state == RUN_DEAD)
        MN_FAIL(MN_E_ARG, "the constraint does not allow token %" PRId32 " as new token %zu", id, place);
    return MN_OK;
}

static mn_status state_of(constraint *c, const int32_t *ids, size_t n, uint32_t *out) {
    const prefix *known = n ? find_prefix(c, ids, n) : NULL;
    size_t i = known ? known->n : 0;
    uint32_t state = known ? known->state : c->r.start;
    bool is_new = i < n;
    for (; i < n; i++) {
        c->r.steps = 0;
        MN_TRY(read_token(c, ids[i], i, &state));
        MN_TRY(forget(c, &state));
    }
    if (is_new) MN_TRY(remember(c, ids, n, state));
    *out = state;
    return MN_OK;
}

mn_status constraint_allow(constraint *c, const int32_t *new_ids, size_t n_new, const uint64_t **mask) {
    uint32_t state;
    *mask = NULL;
    MN_TRY(forget(c, &c->r.start));
    MN_TRY(state_of(c, new_ids, n_new, &state));
    c->r.steps = 0;
    return mask_of(c, state, n_new, mask);
}

mn_status constraint_mask(constraint *c, const int32_t *new_ids, size_t n_new, uint64_t *mask) {
    const uint64_t *found = NULL;
    pthread_mutex_lock(&c->lock);
    mn_status status = constraint_allow(c, new_ids, n_new, &found);
    if (status == MN_OK) memcpy(mask, found, c->words * sizeof *mask);
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* ---- opening ---- */

static mn_status check_ends(const tokenizer *text, const int32_t *ends, size_t n_ends, size_t vocab) {
    if (!text) MN_FAIL(MN_E_ARG, "a constraint of the text needs a tokenizer, the model has none");
    if (n_ends == 0) MN_FAIL(MN_E_ARG, "a constraint needs an end token, without one the answer could not end");
    if (vocab == 0 || vocab > INT32_MAX)
        MN_FAIL(MN_E_ARG, "a vocabulary of %zu tokens, allowed: 1 to %d", vocab, INT32_MAX);
    for (size_t i = 0; i < n_ends; i++) {
        if (ends[i] < 0 || (size_t)ends[i] >= vocab)
            MN_FAIL(MN_E_ARG, "the end token %" PRId32 " is out of range, allowed: 0 to %zu", ends[i], vocab - 1);
    }
    return MN_OK;
}

/* Everything but the network. */
static mn_status open_run(constraint *c, const tokenizer *text, const int32_t *ends, size_t n_ends, size_t vocab) {
    c->n_ends = n_ends;
    c->vocab = vocab;
    c->words = (vocab + 63) / 64;
    c->most_slots = MASK_BYTES / (c->words * sizeof(uint64_t));
    if (c->most_slots < MASKS_LEAST) c->most_slots = MASKS_LEAST;
    if (c->most_slots > MASKS_MOST) c->most_slots = MASKS_MOST;
    c->ends = mem_alloc_raw(n_ends, sizeof *c->ends);
    c->slots = mem_alloc(c->most_slots, sizeof *c->slots);
    if (!c->ends || !c->slots) return MN_E_NOMEM;
    memcpy(c->ends, ends, n_ends * sizeof *ends);
    c->text = tokenizer_hold(text);
    MN_TRY(token_tree_of(&c->tree, text));
    if (c->tree->first) {
        c->first_mask = mem_alloc(c->words, sizeof *c->first_mask);
        if (!c->first_mask) return MN_E_NOMEM;
    }
    MN_TRY(run_open(&c->r, &c->g));
    const uint64_t *mask;
    return constraint_allow(c, NULL, 0, &mask); /* a constraint that no token can begin is refused here */
}

/* What a constraint is compiled from: a schema, else the text of a grammar or a regular expression. */
typedef struct source {
    const json *schema;
    const char *text;
    size_t n;
    bool is_grammar;
} source;

static uint32_t build_source(net *g, const source *from) {
    if (from->schema) return net_schema(g, from->schema);
    if (from->is_grammar) return net_grammar(g, from->text, from->n);
    return net_regex(g, from->text, from->n, &(net_pattern){.max = NET_MANY}, NET_END);
}

static mn_status open_net(net *g, const source *from) {
    MN_TRY(net_open(g));
    uint32_t root = build_source(g, from);
    MN_TRY(net_finish(g, root));
    if (g->nodes[root].need <= NET_DEPTH) return MN_OK;
    if (from->is_grammar)
        MN_FAIL(MN_E_ARG,
                "grammar: the rule 'root' matches no text, or only texts with more than %d rules inside each other",
                NET_DEPTH);
    if (!from->schema) MN_FAIL(MN_E_ARG, "the regular expression matches no text");
    MN_FAIL(MN_E_ARG, "the schema cannot be met: %s",
            g->reason[0] ? g->reason : "every value would have to contain itself, or to nest deeper than 64 levels");
}

static mn_status open_constraint(constraint **out, const source *from, const tokenizer *text, const int32_t *ends,
                                 size_t n_ends, size_t vocab) {
    *out = NULL;
    MN_TRY(check_ends(text, ends, n_ends, vocab));
    constraint *c = mem_alloc(1, sizeof *c);
    if (!c) return MN_E_NOMEM;
    pthread_mutex_init(&c->lock, NULL);
    for (size_t i = 0; i < PREFIXES; i++) c->prefixes[i].state = RUN_NO_STATE;
    mn_status status = open_net(&c->g, from);
    if (status == MN_OK) status = open_run(c, text, ends, n_ends, vocab);
    if (status != MN_OK) {
        constraint_close(&c);
    } else {
        *out = c;
    }
    return status;
}

mn_status constraint_open_regex(constraint **out, const char *pattern, size_t n, const tokenizer *text,
                                const int32_t *end_ids, size_t n_end, size_t vocab) {
    return open_constraint(out, &(source){.text = pattern, .n = n}, text, end_ids, n_end, vocab);
}

mn_status constraint_open_grammar(constraint **out, const char *grammar, size_t n, const tokenizer *text,
                                  const int32_t *end_ids, size_t n_end, size_t vocab) {
    return open_constraint(out, &(source){.text = grammar, .n = n, .is_grammar = true}, text, end_ids, n_end, vocab);
}

mn_status constraint_open_schema(constraint **out, const json *schema, const tokenizer *text, const int32_t *end_ids,
                                 size_t n_end, size_t vocab) {
    *out = NULL;
    if (!schema) MN_FAIL(MN_E_ARG, "there is no schema");
    return open_constraint(out, &(source){.schema = schema}, text, end_ids, n_end, vocab);
}

void constraint_close(constraint **c) {
    if (!*c) return;
    run_clear(&(*c)->r);
    net_clear(&(*c)->g);
    tokenizer_close(&(*c)->text);
    for (size_t i = 0; i < (*c)->n_slots; i++) mem_free((*c)->slots[i].words);
    for (size_t i = 0; i < PREFIXES; i++) mem_free((*c)->prefixes[i].ids);
    mem_free((*c)->slots);
    mem_free((*c)->first_mask);
    mem_free((*c)->ends);
    pthread_mutex_destroy(&(*c)->lock);
    mem_free(*c);
    *c = NULL;
}

constraint_size constraint_measure(const constraint *c) {
    size_t kept = run_bytes(&c->r) + c->n_slots * c->words * sizeof(uint64_t);
    for (size_t i = 0; i < PREFIXES; i++) kept += c->prefixes[i].capacity * sizeof(int32_t);
    return (constraint_size){.nodes = c->g.n, .states = c->r.n_states, .bytes = kept, .masks = c->n_masks};
}
