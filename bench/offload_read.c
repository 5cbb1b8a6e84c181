/* Reads of slices from the offload file by the I/O engine that its folder gets (plain reads in /dev/shm, io_uring on a
 * disk): GB/s from the page cache and, after dropping the file's pages, from the disk. Slices are at shuffled offsets
 * of regions of 1 MiB; two requests are outstanding. bench_offload [folder] [MiB]
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench_timer.h"
#include "base/mem.h"
#include "kv/offload.h"

enum { REGION = 1 << 20, PER_TICKET = 4 << 20, PASSES = 7, MOST_FILES = 64, ROUND_TRIPS = 20000 };

typedef struct reading {
    kv_offload *offload;
    kv_offload_slice *slices;
    size_t n_slices, n_per_ticket;
    char *data; /* of two tickets */
} reading;

static double seconds(void) {
    return seconds_of(CLOCK_MONOTONIC);
}

/* Writes the unnamed file back and drops its pages. */
static void drop_pages(void) {
    for (int fd = 3; fd < MOST_FILES; fd++) {
        struct stat info;
        if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 0) continue;
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
}

/* All slices once; seconds, or negative after a failure. */
static double read_all(reading *r) {
    kv_offload_ticket tickets[2] = {{0}};
    double start = seconds();
    size_t n_tickets = r->n_slices / r->n_per_ticket;
    for (size_t i = 0; i < n_tickets + 1; i++) {
        if (i < n_tickets) {
            kv_offload_ticket *ticket = &tickets[i % 2];
            ticket->slices = r->slices + i * r->n_per_ticket;
            ticket->n_slices = r->n_per_ticket;
            kv_offload_request(r->offload, ticket);
        }
        if (i > 0 && kv_offload_wait(r->offload, &tickets[(i - 1) % 2]) != MN_OK) return -1;
    }
    return seconds() - start;
}

/* Every slice of that size in every region, in pseudo-random order. */
static void fill_slices(reading *r, const int64_t *regions, size_t n_regions, size_t size) {
    size_t per_region = REGION / size;
    r->n_slices = n_regions * per_region;
    r->n_per_ticket = PER_TICKET / size;
    for (size_t i = 0; i < r->n_slices; i++) {
        r->slices[i] = (kv_offload_slice){regions[i / per_region], i % per_region * size, size, NULL};
    }
    uint64_t random = 1;
    for (size_t i = r->n_slices - 1; i > 0; i--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t j = (size_t)(random >> 33) % (i + 1);
        kv_offload_slice other = r->slices[j];
        r->slices[j] = r->slices[i];
        r->slices[i] = other;
    }
    for (size_t i = 0; i < r->n_slices; i++) r->slices[i].data = r->data + i % (2 * r->n_per_ticket) * size;
}

static int measure(reading *r, const int64_t *regions, size_t n_regions) {
    for (size_t size = 1024; size <= 65536; size *= 2) {
        double times[PASSES], total = (double)n_regions * REGION * 1e-9;
        fill_slices(r, regions, n_regions, size);
        drop_pages();
        double cold = read_all(r);
        for (int i = 0; i < PASSES; i++) times[i] = read_all(r);
        qsort(times, PASSES, sizeof *times, compare_doubles);
        if (cold < 0 || times[0] < 0) return 1;
        printf("%-8s %6zu bytes: cached %6.2f GB/s (median; best %6.2f), from disk %6.2f GB/s\n",
               kv_offload_engine(r->offload), size, total / times[PASSES / 2], total / times[0], total / cold);
    }
    double start = seconds();
    for (int i = 0; i < ROUND_TRIPS; i++) {
        kv_offload_slice slice = {regions[(size_t)i % n_regions], 0, 4096, r->data};
        kv_offload_ticket ticket = {.slices = &slice, .n_slices = 1};
        kv_offload_request(r->offload, &ticket);
        if (kv_offload_wait(r->offload, &ticket) != MN_OK) return 1;
    }
    printf("%-8s request and wait of one cached slice of 4096 bytes: %.1f us\n", kv_offload_engine(r->offload),
           (seconds() - start) / ROUND_TRIPS * 1e6);
    return 0;
}

static int run_engine(const char *folder, size_t n_regions) {
    reading r = {.slices = mem_alloc_raw(n_regions * (REGION / 1024), sizeof(kv_offload_slice)),
                 .data = mem_alloc_raw(2, PER_TICKET)};
    int64_t *regions = mem_alloc(n_regions, sizeof *regions);
    bool works = r.slices && r.data && regions && kv_offload_open(&r.offload, folder) == MN_OK;
    if (r.data) memset(r.data, 1, 2 * PER_TICKET);
    for (size_t i = 0; works && i < n_regions; i++) {
        works = kv_offload_take(&regions[i], r.offload, REGION) == MN_OK &&
                kv_offload_write(r.offload, regions[i], 0, r.data, REGION) == MN_OK;
    }
    works = works && measure(&r, regions, n_regions) == 0;
    if (!works) fprintf(stderr, "%s\n", mn_last_error());
    for (size_t i = 0; regions && i < n_regions && regions[i]; i++) kv_offload_return(r.offload, regions[i]);
    kv_offload_close(&r.offload);
    mem_free(regions);
    mem_free(r.data);
    mem_free(r.slices);
    return works ? 0 : 1;
}

int main(int n, char **words) {
    const char *folder = n > 1 ? words[1] : NULL;
    size_t mib = n > 2 ? (size_t)atoi(words[2]) : 256;
    if (mib < 8 || mib > 1 << 16) return 2;
    return run_engine(folder, mib / 4 * 4);
}
