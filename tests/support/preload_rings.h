/* For LD_PRELOAD libraries (Linux): REAL finds the wrapped function, and find_ring the memory of an io_uring.
 *
 * Programs enter the kernel with syscall(2) and map a ring with mmap(2). So a library calls remember_ring after
 * io_uring_setup, and the wrapped mmap here notes where the ring lies.
 */
#pragma once

#include <dlfcn.h>
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#define REAL(type, name, ...)         \
    static type (*real)(__VA_ARGS__); \
    if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, name);

enum { MAX_RINGS = 64 };

typedef struct {
    int fd;
    struct io_uring_params params;
    char* rings;
    struct io_uring_sqe* requests;
} Ring;

static Ring rings[MAX_RINGS];
static atomic_uint ring_count;

/* The newest ring with that descriptor, mapped or not: descriptor numbers are reused. */
static Ring* newest_ring(int fd) {
    unsigned count = atomic_load(&ring_count);
    for (unsigned back = 1; back <= count && back <= MAX_RINGS; ++back) {
        Ring* ring = &rings[(count - back) % MAX_RINGS];
        if (ring->fd == fd) return ring;
    }
    return NULL;
}

static void remember_ring(int fd, const struct io_uring_params* params) {
    Ring* ring = &rings[atomic_fetch_add(&ring_count, 1) % MAX_RINGS];
    memset(ring, 0, sizeof *ring);
    ring->params = *params;
    ring->fd = fd;
}

/* The ring of a descriptor, or null if it is unknown or not mapped. */
static Ring* find_ring(int fd) {
    Ring* ring = newest_ring(fd);
    return ring != NULL && ring->rings != NULL && ring->requests != NULL ? ring : NULL;
}

static unsigned* ring_word(Ring* ring, unsigned offset) { return (unsigned*)(ring->rings + offset); }

#define MAPS(name)                                                                              \
    void* name(void* address, size_t nbytes, int protection, int flags, int fd, off_t offset) { \
        REAL(void*, #name, void*, size_t, int, int, int, off_t)                                 \
        void* memory = real(address, nbytes, protection, flags, fd, offset);                    \
        Ring* ring = fd >= 0 && memory != MAP_FAILED ? newest_ring(fd) : NULL;                  \
        if (ring != NULL && offset == (off_t)IORING_OFF_SQ_RING) ring->rings = memory;          \
        if (ring != NULL && offset == (off_t)IORING_OFF_SQES) ring->requests = memory;          \
        return memory;                                                                          \
    }
MAPS(mmap)
MAPS(mmap64)
