/* The cache that a generation configuration asks for: cache_implementation, cache_config and use_cache, obeyed where whoever opened the
 * session named none. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_CACHE_REQUEST_H
#define MN_GEN_CACHE_REQUEST_H

#include "gen/session.h"

/* MN_E_ARG for names and keys that there are not; each may be NULL. Whether they fit each other is seen when they are used. */
mn_status cache_request_check(const char *implementation, const char *config);

/* A session for a prompt of n_prompt tokens: with the cache of `options` (NULL: the defaults), else the configuration's. */
mn_status cache_request_open(mn_session **session, mn_model *model, const mn_cache_options *options,
                             const mn_generation_config *config, size_t n_prompt);

/* Gives a session whose opener named no cache the one that the configuration asks for. What it holds is converted where that can be;
 * else it is empty afterwards, and the prompt computes it anew. MN_E_ARG, MN_E_NOMEM; then the session is as before. */
mn_status cache_request_follow(mn_session *session, const mn_generation_config *config, size_t n_prompt);

/* MN_E_ARG where the configuration's names and numbers of a cache do not fit each other, whatever the model. */
mn_status cache_request_fits(const mn_generation_config *config);

/* Appends a line for each key of cache_config that changes nothing. */
mn_status cache_request_warn_keys(const mn_generation_config *config, bytes *lines);

/* Appends a line when the session keeps another cache than the configuration asks for. */
mn_status cache_request_warn_kept(const mn_session *session, const mn_generation_config *config,
                                  bytes *lines);

#endif
