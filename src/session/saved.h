/* Saved sessions, for callers inside the library: mn_session_save and mn_session_load without computing the
 * fingerprints of the model each time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SESSION_SAVED_H
#define MN_SESSION_SAVED_H

#include "session/session.h"
#include "tensor/fingerprint.h"

typedef struct saved_identity {
    char model[FINGERPRINT_HEX], tokenizer[FINGERPRINT_HEX]; /* tokenizer: "" without one */
    char compute[32];                                        /* as ARCHIVE_COMPUTE */
    bool takes_any_compute; /* also reads what another compute type or CPU level made, with other last bits */
} saved_identity;

mn_status saved_identity_of(saved_identity *out, const mn_model *model);

/* mn_session_save with a salt, that of texts which may share with this one; NULL: none. */
mn_status saved_write(const mn_session *session, const char *path, bool compress, const saved_identity *identity,
                      const char *salt);

mn_status saved_read(mn_session **session, mn_model *model, const char *path, const mn_cache_options *expected,
                     const saved_identity *identity);

/* What a file contains: a session of its strategy with its ids and without a cache, and its salt, owned by the
 * caller ("": none). Only the checksums of what is read are verified. */
mn_status saved_read_text(mn_session **session, char **salt, mn_model *model, const char *path,
                          const saved_identity *identity);

#endif
