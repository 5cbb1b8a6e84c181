/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/drafter.h"

#include <math.h>
#include <string.h>

#include "base/num.h"
#include "gen/retelling.h"
#include "gen/scores.h"

/* A way to guess. */
typedef struct draft_kind {
    mn_status (*propose)(drafter *d, size_t most, int32_t *proposals, size_t *n);
} draft_kind;

struct drafter {
    const draft_kind *kind;
    chooser *chooser;
    const search_setup *setup;
    const sequence *to;
    size_t wanted, most;  /* tokens to be proposed next; ever */
    mn_session *session;  /* of the draft model; NULL: none */
    float *distributions; /* [most][vocab] what each proposal was drawn from; NULL: proposals are no draws */
    uint64_t n_draws;
    retelling retold;
    size_t *repeats; /* scratch of prompt lookup */
    size_t repeats_capacity;
};

static size_t length_of(const drafter *d) {
    return d->to->n_prompt + d->to->n_ids;
}

static bool is_end(const drafter *d, int32_t id) {
    const mn_generation_config *config = d->setup->config;
    return !config->ignore_eos && id_list_has(&config->eos_token_id, id);
}

/* The run is to stop: what is guessed now would not be looked at. */
static bool is_cancelled(const drafter *d) {
    return atomic_load(&d->setup->session->cancelled);
}

/* ---- prompt lookup ---- */

/* repeats[i]: how many of the last tokens stand i places earlier as well (the Z algorithm, backwards). */
static void count_repeats(size_t *repeats, const int32_t *ids, size_t n) {
    const int32_t *last = ids + n - 1;
    size_t begin = 0, end = 0; /* the run of repeats that reaches furthest back */
    for (size_t i = 1; i < n; i++) {
        size_t known = i < end ? (repeats[i - begin] < end - i ? repeats[i - begin] : end - i) : 0;
        while (i + known < n && *(last - known) == *(last - i - known)) known++;
        repeats[i] = known;
        if (i + known > end) {
            begin = i;
            end = i + known;
        }
    }
}

/* What follows the first of the longest windows, up to max_matching_ngram_size, that equal the end of the text; up to an end token. */
static mn_status propose_window(drafter *d, size_t most, int32_t *proposals, size_t *n) {
    const int32_t *ids = d->to->all;
    size_t length = length_of(d), widest = (size_t)d->setup->config->max_matching_ngram_size, width = 0,
           at = length;
    *n = 0;
    MN_TRY(mem_grow(&d->repeats, &d->repeats_capacity, length, sizeof *d->repeats));
    count_repeats(d->repeats, ids, length);
    for (size_t i = length - 1; i > 0 && width < widest; i--) {
        if (d->repeats[i] <= width) continue;
        width = d->repeats[i] < widest ? d->repeats[i] : widest;
        at = length - i;
    }
    for (; at < length && *n < most && !is_end(d, ids[at]); at++) proposals[(*n)++] = ids[at];
    return MN_OK;
}

static const draft_kind by_window = {propose_window};

/* ---- a draft model of the same vocabulary ---- */

static size_t vocab_of(const mn_session *session) {
    return (size_t)session->model->config.vocab_size;
}

/* Vocabularies that agree may be padded to other sizes, and tokenizers may have more tokens than their models have rows. */
static bool all_below(const int32_t *ids, size_t n, size_t vocab) {
    size_t i = 0;
    while (i < n && (size_t)ids[i] < vocab) i++;
    return i == n;
}

/* How many tokens the draft model may still say behind n. */
static size_t room_of(const drafter *d, size_t n, size_t most) {
    size_t context = (size_t)d->session->model->config.max_position_embeddings;
    if (n >= context) return 0;
    return most < context - n ? most : context - n;
}

/* Its logits as scores of the target's vocabulary, of which one may have more rows than the other. */
static void take_logits(drafter *d) {
    size_t own = vocab_of(d->session), n = own < d->chooser->vocab ? own : d->chooser->vocab;
    memcpy(d->chooser->scores, mn_session_logits(d->session), n * sizeof(float));
    for (size_t i = n; i < d->chooser->vocab; i++) d->chooser->scores[i] = -INFINITY;
}

/* The token that follows by the chooser's scores, and how sure that is; false: there is none. */
static bool say(drafter *d, size_t i, int32_t *id, double *sureness) {
    chooser *c = d->chooser;
    *sureness = 1;
    if (!d->distributions) {
        *id = choice_best(c->scores, c->vocab);
        if (d->setup->config->assistant_confidence_threshold <= 0) return true;
        choice_weigh(&c->choice, c->scores, c->vocab);
        *sureness = choice_probability(&c->choice, (size_t)*id);
        return true;
    }
    enum {
        DRAFT_STREAM = 3
    }; /* its upper half; no number is used twice, so that what was dropped says nothing about what comes */
    uint64_t stream = (uint64_t)d->to->index + ((uint64_t)DRAFT_STREAM << 32);
    choice_weigh(&c->choice, c->scores, c->vocab);
    size_t drawn = choice_draw(&c->choice, random_uniform(d->setup->seed, stream, d->n_draws++));
    if (drawn == c->vocab) return false;
    float *distribution = d->distributions + i * c->vocab;
    for (size_t k = 0; k < c->vocab; k++) distribution[k] = (float)choice_probability(&c->choice, k);
    *id = (int32_t)drawn;
    *sureness = choice_probability(&c->choice, drawn);
    return true;
}

static mn_status propose_tokens(drafter *d, size_t most, int32_t *proposals, size_t *n) {
    const int32_t *ids = d->to->all;
    size_t length = length_of(d);
    double sureness = 1;
    *n = 0;
    most = room_of(d, length, most);
    if (most == 0 || !all_below(ids, length, vocab_of(d->session))) return MN_OK;
    MN_TRY(mn_session_sync(d->session, ids, length, NULL));
    while (*n < most && !is_cancelled(d)) {
        if (*n > 0) MN_TRY(mn_session_step(d->session, &proposals[*n - 1], 1, NULL));
        take_logits(d);
        /* Proposals stand behind the ids, in their room. */
        mn_status status = chooser_process(d->chooser, ids, length + *n, NULL);
        if (status == MN_E_ARG)
            return MN_OK; /* nothing may follow: the target finds that too, if it comes so far */
        MN_TRY(status);
        if (!say(d, *n, &proposals[*n], &sureness)) return MN_OK;
        if (is_end(d, proposals[(*n)++])) return MN_OK;
        if (sureness < d->setup->config->assistant_confidence_threshold) return MN_OK;
    }
    return MN_OK;
}

static const draft_kind by_tokens = {propose_tokens};

/* ---- a draft model of another vocabulary ---- */

/* What the draft model says behind the text, appended to the retold ids. */
static mn_status say_on(drafter *d, size_t most) {
    token_list *ids = &d->retold.ids;
    size_t n_ends = 0, vocab = vocab_of(d->session);
    const int32_t *ends = tokenizer_end_ids(d->retold.to, &n_ends);
    MN_TRY(mn_session_sync(d->session, ids->ids, ids->n, NULL));
    for (size_t i = 0; i < most && !is_cancelled(d); i++) {
        const float *logits = mn_session_logits(d->session);
        int32_t id = choice_best(logits, vocab);
        for (size_t k = 0; k < n_ends; k++) {
            if (ends[k] == id) return MN_OK;
        }
        if ((size_t)id >= tokenizer_size(d->retold.to)) return MN_OK;
        double threshold = d->setup->config->assistant_confidence_threshold;
        bool is_sure = threshold <= 0 || exp((double)logits[id] - scores_log_sum(logits, vocab)) >= threshold;
        MN_TRY(mem_grow(&ids->ids, &ids->capacity, ids->n + 1, sizeof *ids->ids));
        ids->ids[ids->n++] = id;
        if (!is_sure || i + 1 == most) return MN_OK;
        MN_TRY(mn_session_step(d->session, &id, 1, NULL));
    }
    return MN_OK;
}

static mn_status propose_text(drafter *d, size_t most, int32_t *proposals, size_t *n) {
    retelling *r = &d->retold;
    size_t length = length_of(d);
    *n = 0;
    MN_TRY(retelling_tell(r, d->to->all, length));
    size_t told = r->ids.n, room = room_of(d, told, most);
    if (told == 0 || room == 0 || !all_below(r->ids.ids, told, vocab_of(d->session))) return MN_OK;
    MN_TRY(say_on(d, room));
    return retelling_back(r, d->to->all, length, told, most, proposals, n);
}

static const draft_kind by_text = {propose_text};

/* ---- opening ---- */

static bool is_same_vocabulary(const tokenizer *a, const tokenizer *b) {
    size_t n = tokenizer_size(a);
    if (n != tokenizer_size(b)) return false;
    for (size_t i = 0; i < n; i++) {
        size_t n_a = 0, n_b = 0;
        const char *x = tokenizer_piece(a, (int32_t)i, &n_a), *y = tokenizer_piece(b, (int32_t)i, &n_b);
        if (!x != !y || (x && (n_a != n_b || memcmp(x, y, n_a) != 0))) return false;
    }
    return true;
}

static const draft_kind *kind_of(const search_setup *setup) {
    const mn_model *draft = setup->options->assistant, *target = setup->session->owner;
    if (!draft) return &by_window;
    if (draft->text && target->text && !is_same_vocabulary(draft->text, target->text)) return &by_text;
    return &by_tokens;
}

mn_status drafter_check(const search_setup *setup) {
    const mn_model *draft = setup->options->assistant, *target = setup->session->owner;
    if (!draft || (draft->text && target->text)) return MN_OK;
    long long theirs = (long long)draft->core->config.vocab_size,
              ours = (long long)target->core->config.vocab_size;
    if (theirs == ours) return MN_OK;
    MN_FAIL(
        MN_E_ARG,
        "the draft model has another vocabulary, %lld tokens, than the model, %lld; that takes a tokenizer of both, and %s has none",
        theirs, ours, draft->text ? "the model" : "the draft model");
}

size_t drafter_most(const search_setup *setup) {
    const mn_generation_config *config = setup->config;
    bool grows = setup->options->assistant && config->num_assistant_tokens_schedule != DRAFT_CONSTANT;
    int64_t wanted =
        setup->options->assistant ? config->num_assistant_tokens : config->prompt_lookup_num_tokens;
    if (grows || wanted > MOST_DRAFT) wanted = MOST_DRAFT;
    if (wanted > (int64_t)setup->max_new) wanted = (int64_t)setup->max_new;
    return (size_t)wanted;
}

static mn_status open_model(drafter *d, const drafter *like) {
    const search_setup *setup = d->setup;
    mn_model *model = setup->options->assistant;
    if (setup->config->do_sample && d->kind == &by_tokens) {
        d->distributions = mem_alloc_raw(d->most * d->chooser->vocab, sizeof *d->distributions);
        if (!d->distributions) return MN_E_NOMEM;
    }
    if (d->kind == &by_text) MN_TRY(retelling_open(&d->retold, setup->session->owner->text, model->text));
    if (like) return mn_session_fork(&d->session, like->session);
    MN_TRY(mn_session_open(&d->session, model, NULL));
    bool is_shared = setup->n_sequences > 1 && d->kind == &by_tokens && room_of(d, setup->n_prompt, 1) > 0;
    return is_shared ? mn_session_sync(d->session, setup->prompt, setup->n_prompt, NULL) : MN_OK;
}

mn_status drafter_open(drafter **out, chooser *c, const sequence *to, const drafter *like) {
    const search_setup *setup = c->setup;
    const mn_generation_config *config = setup->config;
    drafter *d = mem_alloc(1, sizeof *d);
    *out = d;
    if (!d) return MN_E_NOMEM;
    *d = (drafter){.kind = like ? like->kind : kind_of(setup),
                   .chooser = c,
                   .setup = setup,
                   .to = to,
                   .most = drafter_most(setup)};
    d->wanted = d->most;
    if (!setup->options->assistant) return MN_OK;
    if ((int64_t)d->wanted > config->num_assistant_tokens) d->wanted = (size_t)config->num_assistant_tokens;
    return open_model(d, like);
}

void drafter_close(drafter **d) {
    if (!*d) return;
    mn_session_close(&(*d)->session);
    retelling_close(&(*d)->retold);
    mem_free((*d)->distributions);
    mem_free((*d)->repeats);
    mem_free(*d);
    *d = NULL;
}

mn_status drafter_propose(drafter *d, size_t most, int32_t *proposals, size_t *n) {
    *n = 0;
    if (most > d->wanted) most = d->wanted;
    if (most > 0) MN_TRY(d->kind->propose(d, most, proposals, n));
    while (!all_below(proposals, *n, d->chooser->vocab)) --*n;
    return MN_OK;
}

const float *drafter_distribution(const drafter *d, size_t i) {
    return d->distributions ? d->distributions + i * d->chooser->vocab : NULL;
}

void drafter_learn(drafter *d, size_t n_proposed, size_t n_accepted) {
    enum { MORE = 2 };
    if (!d->session || n_proposed == 0 || d->setup->config->num_assistant_tokens_schedule == DRAFT_CONSTANT)
        return;
    if (n_accepted < n_proposed) {
        d->wanted = d->wanted > 1 ? d->wanted - 1 : 1;
    } else {
        d->wanted = d->wanted + MORE < d->most ? d->wanted + MORE : d->most;
    }
}
