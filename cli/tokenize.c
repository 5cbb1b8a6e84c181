/* `mneme tokenize`: text or messages to ids, ids to text. Reads the tokenizer's files only.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/file.h"
#include "config.h"
#include "loaded_model.h"
#include "input.h"
#include "output.h"
#include "commands.h"

static mn_status put_pieces(bytes *b, const mn_tokenizer *tokenizer, const prompt *p) {
    bytes_append_text(b, ",\"pieces\":[");
    for (size_t i = 0; i < p->n; i++) {
        const char *piece = mn_token_piece(tokenizer, p->ids[i]);
        if (!piece)
            MN_FAIL(MN_E_ARG, "token id %d is out of range; allowed: 0 to %d", (int)p->ids[i],
                    (int)mn_vocab_size(tokenizer) - 1);
        bytes_append_text(b, i ? "," : "");
        json_put_string(b, piece, strlen(piece));
    }
    bytes_printf(b, "],\"tokens\":%zu}\n", p->n);
    return MN_OK;
}

static mn_status print_ids(const options *o, const mn_tokenizer *tokenizer, const prompt *p) {
    bytes b = {0};
    mn_status status = MN_OK;
    bool as_json = option_on(o, OPT_JSON);
    bytes_append_text(&b, as_json ? "{\"ids\":[" : "");
    for (size_t i = 0; i < p->n; i++) bytes_printf(&b, i ? ",%d" : "%d", (int)p->ids[i]);
    bytes_append_text(&b, as_json ? "]" : "\n");
    if (as_json) status = put_pieces(&b, tokenizer, p);
    if (status == MN_OK) status = bytes_status(&b);
    if (status == MN_OK) {
        put_bytes(&b);
    } else {
        bytes_clear(&b);
    }
    return status;
}

static void print_text(const options *o, const char *text, size_t n) {
    bytes b = {0};
    if (option_on(o, OPT_JSON)) {
        bytes_append_text(&b, "{\"text\":");
        json_put_string(&b, text, n);
        bytes_append_text(&b, "}\n");
    } else {
        bytes_append(&b, text, n);
        if (stdout_is_terminal() && (n == 0 || text[n - 1] != '\n')) bytes_append_text(&b, "\n");
    }
    put_bytes(&b);
}

static mn_status decode(const options *o, const mn_tokenizer *tokenizer, const prompt *p) {
    char *text = NULL;
    size_t n = 0;
    int flags = option_on(o, OPT_SKIP_SPECIAL_TOKENS) ? MN_SKIP_SPECIAL : 0;
    MN_TRY(mn_detokenize(tokenizer, p->ids, p->n, flags, &text, &n));
    print_text(o, text, n);
    mn_free(text);
    return MN_OK;
}

static mn_status encode_messages(const options *o, const mn_tokenizer *tokenizer, const input *in, prompt *p) {
    char *text = NULL;
    size_t n = 0;
    template_input t = {0};
    mn_status status = template_input_read(&t, o);
    if (status == MN_OK)
        status = template_render(&text, &n, tokenizer, &t, in->data.data, in->data.n,
                                 option_on(o, OPT_ADD_GENERATION_PROMPT));
    template_input_clear(&t);
    MN_TRY(status);
    if (option_on(o, OPT_RENDER)) {
        print_text(o, text, n);
    } else {
        status = prompt_from_text(p, tokenizer, text, n, true);
        if (status == MN_OK) status = print_ids(o, tokenizer, p);
    }
    mn_free(text);
    return status;
}

static mn_status check_usage(const options *o, const input *in) {
    bool is_decode = option_on(o, OPT_DECODE);
    if (is_decode && in->kind == INPUT_MESSAGES)
        MN_FAIL(MN_E_ARG, "--decode takes ids; give --ids, --ids-file, or ids on stdin");
    if (is_decode && (option_is_set(o, OPT_PROMPT) || option_is_set(o, OPT_FILE)) && in->kind != INPUT_IDS) {
        MN_FAIL(MN_E_ARG, "--decode takes ids; give --ids or --ids-file");
    }
    if ((option_on(o, OPT_RENDER) || option_on(o, OPT_ADD_GENERATION_PROMPT)) && in->kind != INPUT_MESSAGES) {
        MN_FAIL(MN_E_ARG, "--render and --add-generation-prompt work on --messages F.json");
    }
    return MN_OK;
}

static mn_status work(const options *o, const mn_tokenizer *tokenizer, const input *in, prompt *p) {
    if (in->kind == INPUT_MESSAGES) return encode_messages(o, tokenizer, in, p);
    if (option_on(o, OPT_DECODE)) {
        MN_TRY(prompt_from_ids(p, in->data.data, in->data.n, in->what));
        return decode(o, tokenizer, p);
    }
    MN_TRY(prompt_from_input(p, o, in, tokenizer, NULL));
    return print_ids(o, tokenizer, p);
}

/* The tokenizer of a model, or of a folder or file that holds nothing else. */
static mn_status open_tokenizer(mn_tokenizer **out, const options *o) {
    const char *given = o->n_positional ? o->positional[0] : option_text(o, OPT_MODEL, NULL);
    char *path = NULL;
    if (given && strcmp(given, "embedded") != 0 && (file_is_directory(given) || file_exists(given))) {
        mn_status status = mn_tokenizer_open(out, given);
        if (status != MN_E_NOT_FOUND) return status;
    }
    mn_status status = model_path(&path, o, given);
    if (status == MN_OK) status = mn_tokenizer_open(out, path);
    mn_free(path);
    return status;
}

int command_tokenize(options *o) {
    input in = {0};
    prompt p = {0};
    mn_tokenizer *tokenizer = NULL;
    if (option_on(o, OPT_PRINT_CONFIG)) {
        config_print(o, NULL, NULL, 0);
        return EXIT_DONE;
    }
    mn_status status = input_read(&in, o, NULL);
    if (status == MN_OK) status = check_usage(o, &in);
    int code = exit_of(status);
    if (status == MN_OK) {
        status = open_tokenizer(&tokenizer, o);
        code = exit_of_model(status);
    }
    if (status == MN_OK) {
        status = work(o, tokenizer, &in, &p);
        code = exit_of(status);
    }
    if (status != MN_OK) code = report(o, code, NULL);
    mn_tokenizer_close(&tokenizer);
    prompt_clear(&p);
    input_clear(&in);
    return code;
}
