/* Paths of real models. A separate file, so that programs without real models do not link them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "mneme.h"

const char *real_model_path(const char *given, const char *name) {
    const char *folder = getenv("MNEME_TEST_MODELS");
    static char paths[4][4096];
    static int turn;
    char *found = NULL, *path = NULL;
    if (folder) setenv("MNEME_MODELS", folder, 1);
    mn_status status = mn_model_find(&found, given ? given : name);
    if (folder) unsetenv("MNEME_MODELS");
    if (status == MN_OK) {
        path = paths[turn++ % 4];
        snprintf(path, sizeof paths[0], "%s", found);
    }
    mn_free(found);
    return path;
}

const char *smollm2_path(void) {
    return real_model_path(getenv("MNEME_TEST_SMOLLM2"), "SmolLM2-135M-Instruct.Q4_1");
}

const char *whisper_path(const char *model) {
    return real_model_path(NULL, model);
}
