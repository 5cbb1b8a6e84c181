/* A cache as entries of an archive, page by page, and back.
 *
 *   groups              I64 [n_groups][4]: first page of the table, slots, tokens of entries filled once, states
 *   group.G.quantized      I32 [slots]: quantized tokens of each page
 *   group.G.exact.P     U8: bytes of page P of the sequence; group.G.coded.P and group.G.head likewise
 *   group.G.states      I64 [states]: tokens seen; group.G.state.I  U8
 *
 * The order of pages, groups and entries is that of the specs, which follow from the model and the strategy.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_SNAPSHOT_H
#define MN_KV_SNAPSHOT_H

#include "kv/archive.h"
#include "kv/kv.h"

typedef struct kv_snapshot kv_snapshot;

/* Entries that point into the cache's pages: it must not change before the snapshot is closed. Offloaded pages are
 * read. */
mn_status kv_snapshot_open(kv_snapshot **out, const kv_cache *cache, bool compress);
void kv_snapshot_close(kv_snapshot **snapshot);
const archive_entry *kv_snapshot_entries(const kv_snapshot *snapshot, size_t *n);

/* A cache of these specs with the n_tokens of the archive; every byte is verified first. Whole pages that are not
 * compressed are used in the mapping. Takes ownership of the archive, also on failure. MN_E_REFUSED when it does not
 * fit or is damaged. */
mn_status kv_restore(kv_cache **out, kv_pool *pool, const kv_spec *specs, int n_entries, const kv_options *options,
                     archive *saved, int64_t n_tokens);

#endif
