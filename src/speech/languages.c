/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/languages.h"

#include <string.h>
#include <strings.h>

#include "base/distance.h"

/* Codes are those of the models (ISO 639-1 where it has one, but "jw"); the first name of a language is its English
 * name, aliases follow. */
static const struct {
    const char *code, *name;
} table[] = {
    {"en", "English"},        {"zh", "Chinese"},     {"de", "German"},        {"es", "Spanish"},
    {"ru", "Russian"},        {"ko", "Korean"},      {"fr", "French"},        {"ja", "Japanese"},
    {"pt", "Portuguese"},     {"tr", "Turkish"},     {"pl", "Polish"},        {"ca", "Catalan"},
    {"nl", "Dutch"},          {"ar", "Arabic"},      {"sv", "Swedish"},       {"it", "Italian"},
    {"id", "Indonesian"},     {"hi", "Hindi"},       {"fi", "Finnish"},       {"vi", "Vietnamese"},
    {"he", "Hebrew"},         {"uk", "Ukrainian"},   {"el", "Greek"},         {"ms", "Malay"},
    {"cs", "Czech"},          {"ro", "Romanian"},    {"da", "Danish"},        {"hu", "Hungarian"},
    {"ta", "Tamil"},          {"no", "Norwegian"},   {"th", "Thai"},          {"ur", "Urdu"},
    {"hr", "Croatian"},       {"bg", "Bulgarian"},   {"lt", "Lithuanian"},    {"la", "Latin"},
    {"mi", "Maori"},          {"ml", "Malayalam"},   {"cy", "Welsh"},         {"sk", "Slovak"},
    {"te", "Telugu"},         {"fa", "Persian"},     {"lv", "Latvian"},       {"bn", "Bengali"},
    {"sr", "Serbian"},        {"az", "Azerbaijani"}, {"sl", "Slovenian"},     {"kn", "Kannada"},
    {"et", "Estonian"},       {"mk", "Macedonian"},  {"br", "Breton"},        {"eu", "Basque"},
    {"is", "Icelandic"},      {"hy", "Armenian"},    {"ne", "Nepali"},        {"mn", "Mongolian"},
    {"bs", "Bosnian"},        {"kk", "Kazakh"},      {"sq", "Albanian"},      {"sw", "Swahili"},
    {"gl", "Galician"},       {"mr", "Marathi"},     {"pa", "Punjabi"},       {"si", "Sinhala"},
    {"km", "Khmer"},          {"sn", "Shona"},       {"yo", "Yoruba"},        {"so", "Somali"},
    {"af", "Afrikaans"},      {"oc", "Occitan"},     {"ka", "Georgian"},      {"be", "Belarusian"},
    {"tg", "Tajik"},          {"sd", "Sindhi"},      {"gu", "Gujarati"},      {"am", "Amharic"},
    {"yi", "Yiddish"},        {"lo", "Lao"},         {"uz", "Uzbek"},         {"fo", "Faroese"},
    {"ht", "Haitian Creole"}, {"ps", "Pashto"},      {"tk", "Turkmen"},       {"nn", "Nynorsk"},
    {"mt", "Maltese"},        {"sa", "Sanskrit"},    {"lb", "Luxembourgish"}, {"my", "Myanmar"},
    {"bo", "Tibetan"},        {"tl", "Tagalog"},     {"mg", "Malagasy"},      {"as", "Assamese"},
    {"tt", "Tatar"},          {"haw", "Hawaiian"},   {"ln", "Lingala"},       {"ha", "Hausa"},
    {"ba", "Bashkir"},        {"jw", "Javanese"},    {"su", "Sundanese"},     {"yue", "Cantonese"},
    {"my", "Burmese"},        {"ca", "Valencian"},   {"nl", "Flemish"},       {"ht", "Haitian"},
    {"lb", "Letzeburgesch"},  {"ps", "Pushto"},      {"pa", "Panjabi"},       {"ro", "Moldavian"},
    {"ro", "Moldovan"},       {"si", "Sinhalese"},   {"es", "Castilian"},     {"zh", "Mandarin"},
};

enum { N_TABLE = sizeof table / sizeof *table, LONGEST = 32 };

const char *speech_language_name(const char *code) {
    for (size_t i = 0; i < N_TABLE; i++) {
        if (strcmp(table[i].code, code) == 0) return table[i].name;
    }
    return NULL;
}

static bool is_known(const speech_tokens *tokens, const char *code) {
    return tokens->n_languages ? speech_tokens_language(tokens, code) != NULL : strcmp(code, "en") == 0;
}

/* The name or code, among the model's languages, that is nearest to `text`. */
static const char *nearest(const speech_tokens *tokens, const char *text) {
    const char *names[N_TABLE + 1];
    size_t n = 0;
    for (size_t i = 0; i < N_TABLE; i++) {
        if (is_known(tokens, table[i].code)) names[n++] = table[i].name;
    }
    names[n] = NULL;
    char capital[LONGEST] = "";
    size_t length = strlen(text);
    if (length >= sizeof capital) return NULL;
    for (size_t i = 0; i < length; i++) {
        bool is_small = text[i] >= 'a' && text[i] <= 'z', is_big = text[i] >= 'A' && text[i] <= 'Z';
        capital[i] = (char)(i == 0 && is_small ? text[i] - 32 : i > 0 && is_big ? text[i] + 32 : text[i]);
    }
    return text_nearest(capital, names);
}

mn_status speech_language_read(const speech_language **language, const speech_tokens *tokens, const char *text) {
    *language = NULL;
    for (size_t i = 0; i < tokens->n_languages; i++) { /* codes without a name in the table count too */
        if (strcasecmp(tokens->languages[i].code, text) == 0) *language = &tokens->languages[i];
    }
    if (*language) return MN_OK;
    for (size_t i = 0; i < N_TABLE; i++) {
        bool is_meant = strcasecmp(table[i].code, text) == 0 || strcasecmp(table[i].name, text) == 0;
        if (!is_meant || !is_known(tokens, table[i].code)) continue;
        *language = speech_tokens_language(tokens, table[i].code);
        return MN_OK;
    }
    if (tokens->n_languages == 0)
        MN_FAIL(MN_E_ARG, "the language is '%.40s', allowed: en (an English-only model)", text);
    const char *near = nearest(tokens, text);
    if (near) MN_FAIL(MN_E_ARG, "unknown language '%.40s'; did you mean %s?", text, near);
    bytes known = {0};
    for (size_t i = 0; i < tokens->n_languages; i++) bytes_printf(&known, i ? ", %s" : "%s", tokens->languages[i].code);
    status_fail(MN_E_ARG, "unknown language '%.40s'; allowed: English names and %s", text, bytes_text(&known));
    bytes_clear(&known);
    return MN_E_ARG;
}
