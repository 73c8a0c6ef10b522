/* An LD_PRELOAD library that delays reads and threads and shortens reads; a seed determines where.
 *
 * Every kernel and scheduler may behave like this. It sleeps before and after a read, before a thread's first
 * instruction and around madvise; a pread returns fewer bytes than requested; only some of a ring's requests are
 * submitted, or they are cut; and existing completions change their order. So every order of reads, unpickling and
 * freeing of memory occurs on any machine. A hash of the seed and of the call's number determines the effect on a call.
 * `schedule_begin` starts a schedule and `schedule_end` ends it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "../preload_rings.h"

enum { LATE_THREADS = 1, SLOW_READS = 2, SHORT_READS = 4, SLOW_ADVICE = 8, SHUFFLED = 16 };
enum { BLOCK = 4096 };

static atomic_ulong seed; /* 0: no schedule */
static atomic_ulong calls;
static atomic_long budget; /* microseconds that may still be slept */
static atomic_ulong strikes;

void schedule_begin(unsigned long of, long microseconds) {
    atomic_store(&calls, 0);
    atomic_store(&budget, microseconds);
    atomic_store(&seed, of);
}

/* End the schedule; returns how often a call was delayed, cut or shuffled since the process started. */
unsigned long schedule_end(void) {
    atomic_store(&seed, 0);
    return atomic_load(&strikes);
}

static uint64_t mixed(uint64_t value) { /* splitmix64's finish */
    value ^= value >> 30;
    value *= 0xbf58476d1ce4e5b9u;
    value ^= value >> 27;
    value *= 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

/* A hash for this call; 0 without a schedule, or if the schedule lacks this habit. */
static uint64_t draw(unsigned habit) {
    uint64_t of = atomic_load(&seed);
    if (of == 0 || (mixed(of) & habit) == 0) return 0;
    return mixed(of + 0x9e3779b97f4a7c15u * (1 + atomic_fetch_add(&calls, 1))) | 1;
}

static void nap(long microseconds) {
    int kept = errno;
    if (microseconds > 0 && atomic_fetch_sub(&budget, microseconds) >= microseconds) {
        struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
        atomic_fetch_add(&strikes, 1);
        nanosleep(&time, NULL);
    }
    errno = kept;
}

/* Sleep for up to `most` microseconds, in one of `rarity` calls. */
static void maybe_nap(unsigned habit, unsigned rarity, long most) {
    uint64_t hash = draw(habit);
    if (hash != 0 && (hash >> 8) % rarity == 0) nap((long)((hash >> 32) % (uint64_t)most));
}

/* Fewer bytes, in one of three calls; in whole blocks if direct I/O may need them. */
static size_t fewer(size_t nbytes, const void* memory, off_t offset) {
    uint64_t hash = draw(SHORT_READS);
    if (hash == 0 || (hash >> 8) % 3 != 0 || nbytes < 2) return nbytes;
    size_t unit = (nbytes | (uintptr_t)memory | (size_t)offset) % 512 == 0 ? BLOCK : 1;
    size_t units = nbytes / unit;
    if (units < 2) return nbytes;
    atomic_fetch_add(&strikes, 1);
    return (1 + (hash >> 24) % (units - 1)) * unit;
}

#define READS(name)                                                            \
    ssize_t name(int fd, void* memory, size_t nbytes, off_t offset) {          \
        REAL(ssize_t, #name, int, void*, size_t, off_t)                        \
        maybe_nap(SLOW_READS, 4, 3000);                                        \
        ssize_t got = real(fd, memory, fewer(nbytes, memory, offset), offset); \
        maybe_nap(SLOW_READS, 8, 2000);                                        \
        return got;                                                            \
    }
READS(pread)
READS(pread64)

/* os.preadv calls these. */
#define READS_VECTOR(name)                                                                        \
    ssize_t name(int fd, const struct iovec* vector, int count, off_t offset, int flags) {        \
        REAL(ssize_t, #name, int, const struct iovec*, int, off_t, int)                           \
        maybe_nap(SLOW_READS, 4, 3000);                                                           \
        if (count != 1) return real(fd, vector, count, offset, flags);                            \
        struct iovec part = {vector->iov_base, fewer(vector->iov_len, vector->iov_base, offset)}; \
        return real(fd, &part, 1, offset, flags);                                                 \
    }
READS_VECTOR(preadv2)
READS_VECTOR(preadv64v2)

#define READS_STREAM(name)                              \
    ssize_t name(int fd, void* memory, size_t nbytes) { \
        REAL(ssize_t, #name, int, void*, size_t)        \
        maybe_nap(SLOW_READS, 6, 2000);                 \
        return real(fd, memory, nbytes);                \
    }
READS_STREAM(read)

int madvise(void* memory, size_t nbytes, int advice) {
    REAL(int, "madvise", void*, size_t, int)
    maybe_nap(SLOW_ADVICE, 3, 1500);
    int result = real(memory, nbytes, advice);
    maybe_nap(SLOW_ADVICE, 6, 1500);
    return result;
}

typedef struct {
    void* (*run)(void*);
    void* argument;
} Start;

static void* start_late(void* given) {
    Start start = *(Start*)given;
    free(given);
    uint64_t hash = draw(LATE_THREADS);
    static const long waits[] = {0, 1000, 5000, 60000};
    if (hash != 0) nap(waits[(hash >> 8) % 4]);
    return start.run(start.argument);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
    REAL(int, "pthread_create", pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)
    Start* start = atomic_load(&seed) != 0 ? malloc(sizeof *start) : NULL;
    if (start == NULL) return real(thread, attributes, run, argument);
    *start = (Start){run, argument};
    int error = real(thread, attributes, start_late, start);
    if (error != 0) free(start);
    return error;
}

/* ---- io_uring ---- */

static void cut_requests(Ring* ring, unsigned submitted) {
    const struct io_sqring_offsets* at = &ring->params.sq_off;
    unsigned head = __atomic_load_n(ring_word(ring, at->head), __ATOMIC_ACQUIRE);
    unsigned mask = *ring_word(ring, at->ring_mask);
    for (unsigned i = 0; i < submitted; ++i) {
        struct io_uring_sqe* request = &ring->requests[ring_word(ring, at->array)[(head + i) & mask]];
        if (request->opcode != IORING_OP_READ && request->opcode != IORING_OP_READ_FIXED) continue;
        request->len = (unsigned)fewer(request->len, (const void*)(uintptr_t)request->addr, (off_t)request->off);
    }
}

/* The kernel only appends at the tail, and only this thread removes at the head: entries in between may be swapped. */
static void shuffle_completions(Ring* ring) {
    uint64_t hash = draw(SHUFFLED);
    const struct io_cqring_offsets* at = &ring->params.cq_off;
    unsigned tail = __atomic_load_n(ring_word(ring, at->tail), __ATOMIC_ACQUIRE), head = *ring_word(ring, at->head);
    unsigned mask = *ring_word(ring, at->ring_mask), count = tail - head;
    struct io_uring_cqe* completions = (struct io_uring_cqe*)(ring->rings + at->cqes);
    for (unsigned i = count; hash != 0 && i > 1; --i) {
        struct io_uring_cqe* one = &completions[(head + i - 1) & mask];
        struct io_uring_cqe* other = &completions[(head + (unsigned)(mixed(hash + i) % i)) & mask];
        struct io_uring_cqe kept = *one;
        *one = *other;
        *other = kept;
        atomic_fetch_add(&strikes, 1);
    }
}

long syscall(long number, ...) {
    REAL(long, "syscall", long, ...)
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    if (number == SYS_io_uring_setup) {
        long fd = real(number, a, b, c, d, e, f);
        if (fd >= 0) remember_ring((int)fd, (const struct io_uring_params*)b);
        return fd;
    }
    Ring* ring = number == SYS_io_uring_enter && atomic_load(&seed) != 0 ? find_ring((int)a) : NULL;
    if (ring == NULL) return real(number, a, b, c, d, e, f);
    if (ring->params.flags & (IORING_SETUP_SQE128 | IORING_SETUP_CQE32)) return real(number, a, b, c, d, e, f);
    maybe_nap(SLOW_READS, 4, 3000);
    uint64_t hash = draw(SLOW_READS);
    if (hash != 0 && b > 1 && c == 0 && (hash >> 8) % 4 == 0) b = 1 + (long)((hash >> 16) % (uint64_t)b);
    cut_requests(ring, (unsigned)b);
    long submitted = real(number, a, b, c, d, e, f);
    int kept = errno;
    shuffle_completions(ring);
    errno = kept;
    return submitted;
}
