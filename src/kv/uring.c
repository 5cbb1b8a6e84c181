/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/uring.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"

/* One mapping for both rings; the second feature implies reads at an offset without registered buffers. */
static const unsigned NEEDED = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS;

static void *map(int fd, size_t n, uint64_t what) {
    void *data = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, (off_t)what);
    return data == MAP_FAILED ? NULL : data;
}

static bool map_rings(uring *ring, const struct io_uring_params *p) {
    size_t asks_end = p->sq_off.array + p->sq_entries * sizeof(unsigned);
    size_t answers_end = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    ring->rings_bytes = asks_end > answers_end ? asks_end : answers_end;
    ring->asks_bytes = p->sq_entries * sizeof(struct io_uring_sqe);
    ring->rings = map(ring->fd, ring->rings_bytes, IORING_OFF_SQ_RING);
    ring->asks = map(ring->fd, ring->asks_bytes, IORING_OFF_SQES);
    if (!ring->rings || !ring->asks) return false;
    ring->ask_tail = (unsigned *)(void *)(ring->rings + p->sq_off.tail);
    ring->ask_order = (unsigned *)(void *)(ring->rings + p->sq_off.array);
    ring->answer_head = (unsigned *)(void *)(ring->rings + p->cq_off.head);
    ring->answer_tail = (unsigned *)(void *)(ring->rings + p->cq_off.tail);
    ring->answers = (const struct io_uring_cqe *)(const void *)(ring->rings + p->cq_off.cqes);
    ring->ask_mask = p->sq_entries - 1;
    ring->answer_mask = p->cq_entries - 1;
    return true;
}

static void ask(uring *ring, const struct io_uring_sqe *entry) {
    unsigned tail = *ring->ask_tail, slot = tail & ring->ask_mask; /* this thread alone writes the tail */
    ring->asks[slot] = *entry;
    ring->ask_order[slot] = slot;
    __atomic_store_n(ring->ask_tail, tail + 1, __ATOMIC_RELEASE);
    ring->unsent++;
}

static bool round_trip(uring *ring) {
    uint64_t tag;
    int32_t result;
    ask(ring, &(struct io_uring_sqe){.opcode = IORING_OP_NOP, .user_data = 1});
    return uring_wait(ring) == 0 && uring_take(ring, &tag, &result) && tag == 1 && result == 0;
}

bool uring_open(uring *out, unsigned depth) {
    struct io_uring_params p;
    memset(&p, 0, sizeof p);
    *out = (uring){.fd = file_above_standard((int)syscall(__NR_io_uring_setup, depth, &p))};
    bool works = out->fd >= 0 && (p.features & NEEDED) == NEEDED && map_rings(out, &p) && round_trip(out);
    if (!works) uring_close(out);
    return works;
}

void uring_close(uring *ring) {
    if (ring->asks) munmap(ring->asks, ring->asks_bytes);
    if (ring->rings) munmap(ring->rings, ring->rings_bytes);
    if (ring->fd >= 0) close(ring->fd);
    *ring = (uring){.fd = -1};
}

void uring_ask(uring *ring, int file, void *data, uint32_t n_bytes, uint64_t offset, uint64_t tag) {
    ask(ring, &(struct io_uring_sqe){.opcode = IORING_OP_READ,
                                     .fd = file,
                                     .addr = (uint64_t)(uintptr_t)data,
                                     .len = n_bytes,
                                     .off = offset,
                                     .user_data = tag});
}

int uring_wait(uring *ring) {
    do {
        long sent = syscall(__NR_io_uring_enter, ring->fd, ring->unsent, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        if (sent < 0 && errno != EINTR) return errno;
        if (sent > 0) ring->unsent -= (unsigned)sent;
    } while (ring->unsent > 0);
    return 0;
}

bool uring_take(uring *ring, uint64_t *tag, int32_t *result) {
    unsigned head = *ring->answer_head; /* this thread alone writes the head */
    if (head == __atomic_load_n(ring->answer_tail, __ATOMIC_ACQUIRE)) return false;
    const struct io_uring_cqe *answer = &ring->answers[head & ring->answer_mask];
    *tag = answer->user_data;
    *result = answer->res;
    __atomic_store_n(ring->answer_head, head + 1, __ATOMIC_RELEASE);
    return true;
}
