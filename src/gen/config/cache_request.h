/* The cache that a generation configuration requests (cache_implementation, cache_config, use_cache), used where the
 * session's options name none.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_CONFIG_CACHE_REQUEST_H
#define MN_GEN_CONFIG_CACHE_REQUEST_H

#include "gen/config/generation_config.h"
#include "session/session.h"

/* A session for a prompt of n_prompt tokens: with the cache of `options` (NULL: the defaults), else the
 * configuration's. */
mn_status cache_request_open(mn_session **session, mn_model *model, const mn_cache_options *options,
                             const mn_generation_config *config, size_t n_prompt);

/* The same without allocating the cache (session_open_plan): the session's plan, or the error. */
mn_status cache_request_plan(mn_session **session, mn_model *model, const mn_cache_options *options,
                             const mn_generation_config *config, size_t n_prompt);

/* Gives a session whose options named no cache the one that the configuration requests. Its contents are converted
 * where that is possible; else it is emptied, and the prompt is computed again. MN_E_ARG, MN_E_NOMEM; then the session
 * is as before. */
mn_status cache_request_follow(mn_session *session, const mn_generation_config *config, size_t n_prompt);

/* MN_E_ARG where the configuration's cache settings contradict each other, whatever the model. */
mn_status cache_request_fits(const mn_generation_config *config);

/* Appends a line for each key of cache_config without effect. */
mn_status cache_request_warn_keys(const mn_generation_config *config, bytes *lines);

/* Appends a line when the session keeps a cache other than the configured one. */
mn_status cache_request_warn_kept(const mn_session *session, const mn_generation_config *config, bytes *lines);

#endif
