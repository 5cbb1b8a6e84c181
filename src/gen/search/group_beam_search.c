/* Beams in groups and beams with forced phrases, as Transformers' older engine does them (BeamSearchScorer).
 *
 * Groups are searched one after the other on the same logits, and each is penalized for tokens that earlier ones chose
 * in the step (Vijayakumar et al. 2016, "Diverse beam search"). Each group has a list of its best ended texts; texts
 * that are still open when a limit ends the run compete with them. A text ends with an end token, a stop string or by
 * callback and counts when it is among the group's best; with forced phrases only when it holds them all, and beams are
 * then taken from all banks in turn.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/beams.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "gen/search/phrases.h"
#include "gen/search/guidance.h"

typedef struct beam_group {
    hypothesis *texts; /* [n_texts] of at most `size`; room for one more */
    size_t n_texts;
    bool is_done;
} beam_group;

/* A candidate with its bank, and its place among those of the bank. */
typedef struct banked {
    beam_candidate candidate;
    size_t bank, order, turn;
} banked;

typedef struct group_search {
    beams beams;
    beam_group *groups; /* [n_groups] of `size` beams each */
    size_t n_groups, size;
    hypothesis *texts; /* of all groups */
    int32_t *chosen;   /* [n_chosen] tokens of this step */
    size_t n_chosen;
    bool is_constrained;
    phrases phrases;
    banked *banked;  /* scratch: the kept beams and those that extend phrases */
    int32_t *forced; /* scratch */
} group_search;

static mn_status check_tokens(const phrase *it, size_t i_phrase, size_t vocab) {
    for (size_t i = 0; i < it->forms.n; i++) {
        const id_list *form = &it->forms.lists[i];
        for (size_t k = 0; k < form->n; k++) {
            if (form->ids[k] < 0 || (size_t)form->ids[k] >= vocab)
                MN_FAIL(MN_E_ARG, "force_words_ids: phrase %zu holds token %d, allowed: 0 to %zu", i_phrase,
                        form->ids[k], vocab - 1);
        }
    }
    return MN_OK;
}

static mn_status open_phrases(group_search *s, const phrase_list *required) {
    for (size_t i = 0; i < required->n; i++) MN_TRY(check_tokens(&required->items[i], i, s->beams.vocab));
    s->is_constrained = true;
    MN_TRY(phrases_open(&s->phrases, required));
    s->banked = mem_alloc(s->size * (1 + s->phrases.n_forms), sizeof *s->banked);
    s->forced = mem_alloc(s->phrases.n_forms, sizeof *s->forced);
    return s->banked && s->forced ? MN_OK : MN_E_NOMEM;
}

static mn_status open(void **state, const search_setup *setup) {
    const mn_generation_config *config = setup->config;
    group_search *s = mem_alloc(1, sizeof *s);
    *state = s;
    if (!s) return MN_E_NOMEM;
    s->n_groups = (size_t)config->num_beam_groups;
    s->size = (size_t)config->num_beams / s->n_groups;
    MN_TRY(beams_open(&s->beams, setup, s->size, false));
    s->groups = mem_alloc(s->n_groups, sizeof *s->groups);
    s->texts = mem_alloc(s->n_groups * (s->size + 1), sizeof *s->texts);
    s->chosen = mem_alloc(s->beams.width, sizeof *s->chosen);
    if (!s->groups || !s->texts || !s->chosen) return MN_E_NOMEM;
    for (size_t g = 0; g < s->n_groups; g++) s->groups[g].texts = s->texts + g * (s->size + 1);
    return config->force_words_ids.n ? open_phrases(s, &config->force_words_ids) : MN_OK;
}

static void close(void *state) {
    group_search *s = state;
    if (!s) return;
    for (size_t g = 0; s->groups && g < s->n_groups; g++) {
        for (size_t i = 0; i < s->groups[g].n_texts; i++) beams_drop(&s->groups[g].texts[i]);
    }
    beams_close(&s->beams);
    phrases_close(&s->phrases);
    mem_free(s->groups);
    mem_free(s->texts);
    mem_free(s->chosen);
    mem_free(s->banked);
    mem_free(s->forced);
    mem_free(s);
}

/* ---- a group's texts ---- */

static size_t worst_text(const beam_group *group) {
    size_t worst = 0;
    for (size_t i = 1; i < group->n_texts; i++) {
        if (group->texts[i].score < group->texts[worst].score) worst = i;
    }
    return worst;
}

static bool is_among_best(const group_search *s, const beam_group *group, double score) {
    return group->n_texts < s->size || score > group->texts[worst_text(group)].score;
}

static void add_text(const group_search *s, beam_group *group, hypothesis text) {
    if (!is_among_best(s, group, text.score)) {
        beams_drop(&text);
        return;
    }
    group->texts[group->n_texts++] = text;
    if (group->n_texts <= s->size) return;
    size_t worst = worst_text(group);
    beams_drop(&group->texts[worst]);
    memmove(group->texts + worst, group->texts + worst + 1, (--group->n_texts - worst) * sizeof *group->texts);
}

/* Whether no running beam of the group can beat the worst of its texts any more. */
static bool is_complete(const group_search *s, const beam_group *group, double best_sum) {
    const search_setup *setup = s->beams.setup;
    const mn_generation_config *config = setup->config;
    if (group->n_texts < s->size) return false;
    if (config->early_stopping == EARLY_STOP_ON) return true;
    bool at_limit = config->early_stopping == EARLY_STOP_NEVER && config->length_penalty > 0;
    size_t length = at_limit ? setup->max_new : s->beams.n_new + 1;
    return group->texts[worst_text(group)].score >= beams_normalize(&s->beams, best_sum, length);
}

/* ---- forced phrases ---- */

/* Whether the text up to a node holds every phrase; leaves the phrases there. */
static bool is_met(group_search *s, int32_t node) {
    if (!s->is_constrained) return true;
    size_t n = beams_ids(&s->beams, node);
    phrases_read(&s->phrases, s->beams.ids, n);
    return phrases_are_met(&s->phrases);
}

static size_t add_banked(group_search *s, size_t n, const beam_candidate *c) {
    for (size_t i = 0; i < n; i++) {
        if (s->banked[i].candidate.from == c->from && s->banked[i].candidate.id == c->id) return n;
    }
    is_met(s, s->beams.running[c->from].node);
    phrases_add(&s->phrases, c->id);
    s->banked[n] = (banked){.candidate = *c, .bank = phrases_bank(&s->phrases), .order = n};
    return n + 1;
}

/* Candidates that extend phrases, for every running beam that lacks some. */
static size_t add_forced(group_search *s, size_t first, size_t n) {
    beams *b = &s->beams;
    for (size_t i = first; i < first + s->size; i++) {
        if (b->running[i].session < 0 || is_met(s, b->running[i].node)) continue;
        size_t n_forced = phrases_list(&s->phrases, s->forced);
        for (size_t k = 0; k < n_forced; k++) {
            beam_candidate c = beams_candidate(b, i, (size_t)s->forced[k]);
            if (c.sum > -INFINITY) n = add_banked(s, n, &c);
        }
    }
    return n;
}

static int by_bank(const void *a, const void *b) {
    const banked *x = a, *y = b;
    if (x->bank != y->bank) return x->bank > y->bank ? -1 : 1;
    if (x->candidate.sum != y->candidate.sum) return x->candidate.sum > y->candidate.sum ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static int by_turn(const void *a, const void *b) {
    const banked *x = a, *y = b;
    if (x->turn != y->turn) return x->turn < y->turn ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Takes the group's beams from all banks in turn: the best of each, then the second best. kept: [n] and room for
 * `size`. */
static size_t take_turns(group_search *s, size_t first, beam_candidate *kept, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count = add_banked(s, count, &kept[i]);
    count = add_forced(s, first, count);
    qsort(s->banked, count, sizeof *s->banked, by_bank);
    for (size_t i = 0; i < count; i++) {
        bool is_same = i > 0 && s->banked[i].bank == s->banked[i - 1].bank;
        s->banked[i].order = i;
        s->banked[i].turn = is_same ? s->banked[i - 1].turn + 1 : 0;
    }
    qsort(s->banked, count, sizeof *s->banked, by_turn);
    if (count > s->size) count = s->size;
    for (size_t i = 0; i < count; i++) kept[i] = s->banked[i].candidate;
    return count;
}

/* ---- a step ---- */

static mn_status end_text(group_search *s, beam_group *group, const beam_candidate *c) {
    beams *b = &s->beams;
    hypothesis text;
    if (!is_among_best(s, group, beams_normalize(b, c->sum, b->n_new + 1))) return MN_OK;
    if (!is_met(s, b->running[c->from].node)) return MN_OK;
    mn_status status = beams_end(b, c, &text);
    if (status != MN_OK) {
        beams_drop(&text);
        return status;
    }
    add_text(s, group, text);
    return MN_OK;
}

static mn_status step_group(group_search *s, size_t i_group) {
    beams *b = &s->beams;
    beam_group *group = &s->groups[i_group];
    beam_candidate *kept = b->candidates;
    size_t first = i_group * s->size, n_kept = 0;
    MN_TRY(beams_score(b, first, s->size, s->chosen, s->n_chosen));
    size_t n = beams_rank(b, first, s->size, b->n_ranked / s->n_groups, b->candidates);
    double best_sum = n ? b->candidates[0].sum : -INFINITY;
    for (size_t i = 0; i < n && n_kept < s->size; i++) {
        beam_candidate c = b->candidates[i];
        MN_TRY(beams_judge(b, &c));
        if (!c.finish) {
            kept[n_kept++] = c; /* after those still to be examined */
        } else if (i < s->size) {
            MN_TRY(end_text(s, group, &c));
        }
    }
    if (s->is_constrained) n_kept = take_turns(s, first, kept, n_kept);
    group->is_done = n_kept == 0 || is_complete(s, group, best_sum);
    for (size_t i = 0; i < n_kept; i++) {
        s->chosen[s->n_chosen++] = kept[i].id;
        if (!group->is_done) MN_TRY(beams_keep(b, first + i, &kept[i]));
    }
    return MN_OK;
}

/* Ends the running texts of all unfinished groups; they compete. */
static mn_status finish(group_search *s, const beam *open, size_t length, const char *reason) {
    beams *b = &s->beams;
    size_t n = 0;
    for (size_t g = 0; g < s->n_groups && length > 0; g++) {
        const beam *own = open + g * s->size;
        size_t n_met = 0;
        for (int met = 1; met >= 0 && !s->groups[g].is_done; met--) {
            /* If too few texts hold all phrases, the others count too. */
            if (!met && n_met >= b->setup->n_sequences) break;
            for (size_t i = 0; i < s->size; i++) {
                if (own[i].session < 0 || is_met(s, own[i].node) != met) continue;
                add_text(s, &s->groups[g], beams_open_text(b, &own[i], length, reason));
                n_met += (size_t)met;
            }
        }
    }
    for (size_t g = 0; g < s->n_groups; g++) {
        beam_group *group = &s->groups[g];
        memmove(s->texts + n, group->texts, group->n_texts * sizeof *s->texts);
        n += group->n_texts;
        group->n_texts = 0; /* the list owns them now */
    }
    if (n == 0 && length > b->n_new) MN_FAIL(MN_E_ARG, "no token is left to any beam after %zu new tokens", b->n_new);
    return beams_write(b, s->texts, n);
}

static mn_status advance(void *state, feed_list *feeds) {
    group_search *s = state;
    beams *b = &s->beams;
    bool goes_on = false;
    if (beams_begin(b, feeds)) return MN_OK;
    s->n_chosen = 0;
    for (size_t g = 0; g < s->n_groups; g++) {
        if (!s->groups[g].is_done) MN_TRY(step_group(s, g));
        goes_on = goes_on || !s->groups[g].is_done;
    }
    const char *limit = beams_limit(b);
    if (!goes_on || limit) return finish(s, b->next, b->n_new + 1, limit);
    return beams_move(b, feeds);
}

static mn_status end(void *state, const char *reason) {
    group_search *s = state;
    return finish(s, s->beams.running, s->beams.n_new, reason);
}

const search_kind search_group = {
    .name = "group",
    .check = guidance_check,
    .most_feeds = beams_most_feeds,
    .open = open,
    .advance = advance,
    .end = end,
    .close = close,
};
