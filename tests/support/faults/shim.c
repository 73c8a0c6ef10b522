/* A fault-injecting LD_PRELOAD library for Linux (x86-64, aarch64).
 *
 * It wraps libc's functions that move bytes. Everything else is real: the package, its native module, torch, the
 * kernel and the filesystem. A process arms it through ctypes (`fault_arm`) after its imports and warm-up: an
 * environment variable could not mark that moment.
 *
 * A rule has a class of calls, a text that the file's path must contain, the number of the first call of that class to
 * strike (from 1), how many to strike in a row, and the effect: an errno (> 0), SHORTER (the call requests fewer bytes)
 * or NOTHING (the call moves no bytes and returns 0). Strikes are counted, so that a test can check that its fault
 * occurred.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../preload_rings.h"

enum { SHORTER = -1, NOTHING = -2 };
enum { MAX_RULES = 8, MAX_VICTIMS = 64 };

typedef struct {
    char call[24];
    char match[512];
    long first;
    long times;
    int effect;
    atomic_long seen;
} Rule;

static Rule rules[MAX_RULES];
static atomic_int rule_count;
static atomic_long strikes;
static atomic_ulong demanded; /* alignment that direct I/O must have after an "alignment" strike; 0: the real one */

int fault_arm(const char *call, const char *match, long first, long times, int effect) {
    int number = atomic_load(&rule_count);
    if (number == MAX_RULES || strlen(call) >= sizeof rules[0].call || strlen(match) >= sizeof rules[0].match) return -1;
    Rule *rule = &rules[number];
    strcpy(rule->call, call);
    strcpy(rule->match, match);
    rule->first = first;
    rule->times = times;
    rule->effect = effect;
    atomic_store(&rule->seen, 0);
    atomic_store(&rule_count, number + 1);
    return 0;
}

/* Remove all rules; returns how often they struck since the last fault_disarm. */
long fault_disarm(void) {
    atomic_store(&rule_count, 0);
    atomic_store(&demanded, 0);
    return atomic_exchange(&strikes, 0);
}

/* The real path of a name that may refer to an open descriptor. */
static const char *resolve(const char *path, char *buffer, size_t size) {
    if (strncmp(path, "/proc/self/fd/", 14) != 0 && strncmp(path, "/dev/fd/", 8) != 0) return path;
    ssize_t length = readlink(path, buffer, size - 1);
    if (length < 0) return path;
    buffer[length] = 0;
    return buffer;
}

/* The real path of a name in an open folder. */
static const char *inside(int folder, const char *path, char *buffer, size_t size) {
    if (folder == AT_FDCWD || path[0] == '/') return path;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, buffer, size - 1);
    if (length < 0 || (size_t)length + 1 + strlen(path) >= size) return path;
    buffer[length] = '/';
    strcpy(buffer + length + 1, path);
    return buffer;
}

/* The effect on this call, or 0. A call without a path passes null, which matches every rule. */
static int struck(const char *call, const char *path) {
    int count = atomic_load(&rule_count);
    for (int i = 0; i < count; ++i) {
        Rule *rule = &rules[i];
        if (strcmp(rule->call, call) != 0) continue;
        char buffer[4096];
        if (path != NULL && strstr(resolve(path, buffer, sizeof buffer), rule->match) == NULL) continue;
        long number = atomic_fetch_add(&rule->seen, 1) + 1;
        if (number < rule->first || number - rule->first >= rule->times) continue;
        atomic_fetch_add(&strikes, 1);
        return rule->effect;
    }
    return 0;
}

static int struck_fd(const char *call, int fd) {
    if (atomic_load(&rule_count) == 0) return 0;
    int kept = errno;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int effect = struck(call, path);
    errno = kept;
    return effect;
}

/* About half, in whole blocks if possible: the rest of a direct transfer must still be aligned. */
static size_t shorter(size_t nbytes) {
    if (nbytes >= 8192) return nbytes / 2 / 4096 * 4096;
    if (nbytes > 4096) return 4096;
    return nbytes > 1 && nbytes < 4096 ? nbytes / 2 : nbytes;
}

#define STRIKE(effect)           \
    do {                         \
        if ((effect) > 0) {      \
            errno = (effect);    \
            return -1;           \
        }                        \
        if ((effect) == NOTHING) \
            return 0;            \
    } while (0)

/* ---- read, write: the classes "read" and "write" cover every call that moves bytes. ---- */

#define MOVES_AT(name, class, pointer)                                     \
    ssize_t name(int fd, pointer memory, size_t nbytes, off_t offset) {    \
        REAL(ssize_t, #name, int, pointer, size_t, off_t)                  \
        int effect = struck_fd(class, fd);                                 \
        STRIKE(effect);                                                    \
        return real(fd, memory, effect ? shorter(nbytes) : nbytes, offset); \
    }
MOVES_AT(pread, "read", void *)
MOVES_AT(pread64, "read", void *)
MOVES_AT(pwrite, "write", const void *)
MOVES_AT(pwrite64, "write", const void *)

#define MOVES(name, class, pointer)                                \
    ssize_t name(int fd, pointer memory, size_t nbytes) {          \
        REAL(ssize_t, #name, int, pointer, size_t)                 \
        int effect = struck_fd(class, fd);                         \
        STRIKE(effect);                                            \
        return real(fd, memory, effect ? shorter(nbytes) : nbytes); \
    }
MOVES(read, "read", void *)
MOVES(write, "write", const void *)

/* Vectors are shortened to their first element, or with an offset to a part of it. */
#define MOVES_VECTOR(name, class)                                  \
    ssize_t name(int fd, const struct iovec *vector, int count) {  \
        REAL(ssize_t, #name, int, const struct iovec *, int)       \
        int effect = struck_fd(class, fd);                         \
        STRIKE(effect);                                            \
        return real(fd, vector, effect && count > 1 ? 1 : count);  \
    }
MOVES_VECTOR(readv, "read")
MOVES_VECTOR(writev, "write")

#define MOVES_VECTOR_AT(name, class)                                                       \
    ssize_t name(int fd, const struct iovec *vector, int count, off_t offset, int flags) { \
        REAL(ssize_t, #name, int, const struct iovec *, int, off_t, int)                   \
        int effect = struck_fd(class, fd);                                                 \
        STRIKE(effect);                                                                    \
        if (!effect || count < 1) return real(fd, vector, count, offset, flags);           \
        struct iovec first = {vector->iov_base, shorter(vector->iov_len)};                 \
        return real(fd, &first, 1, offset, flags);                                         \
    }
/* os.preadv calls these. */
MOVES_VECTOR_AT(preadv2, "read")
MOVES_VECTOR_AT(preadv64v2, "read")

/* ---- allocate, truncate, lock, attribute, sync, rename ---- */

#define ALLOCATES(name)                                         \
    int name(int fd, int mode, off_t offset, off_t nbytes) {    \
        REAL(int, #name, int, int, off_t, off_t)                \
        int effect = struck_fd("allocate", fd);                 \
        STRIKE(effect);                                         \
        return real(fd, mode, offset, nbytes);                  \
    }
ALLOCATES(fallocate)
ALLOCATES(fallocate64)

/* These return the error and do not set errno. */
#define ALLOCATES_POSIX(name)                            \
    int name(int fd, off_t offset, off_t nbytes) {       \
        REAL(int, #name, int, off_t, off_t)              \
        int effect = struck_fd("allocate", fd);          \
        return effect ? effect : real(fd, offset, nbytes); \
    }
ALLOCATES_POSIX(posix_fallocate)
ALLOCATES_POSIX(posix_fallocate64)

#define TRUNCATES(name)                              \
    int name(int fd, off_t nbytes) {                 \
        REAL(int, #name, int, off_t)                 \
        int effect = struck_fd("truncate", fd);      \
        STRIKE(effect);                              \
        return real(fd, nbytes);                     \
    }
TRUNCATES(ftruncate)
TRUNCATES(ftruncate64)

int flock(int fd, int how) {
    REAL(int, "flock", int, int)
    int effect = struck_fd("lock", fd);
    STRIKE(effect);
    return real(fd, how);
}

int fsetxattr(int fd, const char *name, const void *value, size_t nbytes, int flags) {
    REAL(int, "fsetxattr", int, const char *, const void *, size_t, int)
    int effect = struck_fd("attribute", fd);
    STRIKE(effect);
    return real(fd, name, value, nbytes, flags);
}

#define SYNCS(name)                             \
    int name(int fd) {                          \
        REAL(int, #name, int)                   \
        int effect = struck_fd("sync", fd);     \
        STRIKE(effect);                         \
        return real(fd);                        \
    }
SYNCS(fsync)
SYNCS(fdatasync)

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *)
    int effect = struck("rename", to);
    STRIKE(effect);
    return real(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *)
    char buffer[4096];
    int kept = errno;
    int effect = struck("rename", inside(to_folder, to, buffer, sizeof buffer));
    errno = kept;
    STRIKE(effect);
    return real(from_folder, from, to_folder, to);
}

/* ---- open: "direct" strikes opens with O_DIRECT, "hold" those with O_PATH, "open" all others. ---- */

static int open_effect(const char *path, int flags) {
    return struck(flags & O_PATH ? "hold" : flags & O_DIRECT ? "direct" : "open", path);
}

#define OPENS(name)                                    \
    int name(const char *path, int flags, ...) {       \
        REAL(int, #name, const char *, int, ...)       \
        va_list list;                                  \
        va_start(list, flags);                         \
        unsigned mode = va_arg(list, unsigned);        \
        va_end(list);                                  \
        int effect = open_effect(path, flags);         \
        STRIKE(effect);                                \
        return real(path, flags, mode);                \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                      \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(int, #name, int, const char *, int, ...)       \
        va_list list;                                       \
        va_start(list, flags);                              \
        unsigned mode = va_arg(list, unsigned);             \
        va_end(list);                                       \
        char buffer[4096];                                  \
        int kept = errno;                                   \
        int effect = open_effect(inside(folder, path, buffer, sizeof buffer), flags); \
        errno = kept;                                       \
        STRIKE(effect);                                     \
        return real(folder, path, flags, mode);             \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

/* ---- io_uring ----
 *
 * Single requests do not pass through libc, but the native module enters the kernel with syscall(2), and maps its ring
 * through mmap(2). So the shim can change the submitted requests before an io_uring_enter, and the completions after
 * it:
 *   SHORTER  cuts the request's length, so the kernel really moves less;
 *   others   turn the request into a no-op, so no byte moves. The kernel completes a no-op inside the call that submits
 *            it, so the completion exists when the call returns. The shim then sets its result, before the program can
 *            read it.
 * The classes "ring_read" and "ring_write" match the path of the request's file, as above. "ring_setup" and
 * "ring_enter" strike the system calls themselves.
 */

static const char *request_class(const struct io_uring_sqe *request) {
    switch (request->opcode) {
        case IORING_OP_READ:
        case IORING_OP_READV:
        case IORING_OP_READ_FIXED:
            return "ring_read";
        case IORING_OP_WRITE:
        case IORING_OP_WRITEV:
        case IORING_OP_WRITE_FIXED:
            return "ring_write";
        default:
            return NULL;
    }
}

typedef struct {
    unsigned long long tag;
    int result;
} Victim;

/* Whether a filesystem with the demanded alignment would reject the request. */
static int misaligned(const struct io_uring_sqe *request) {
    unsigned long alignment = atomic_load(&demanded);
    return alignment != 0 && ((request->addr | request->off | request->len) & (alignment - 1)) != 0;
}

static int change_requests(Ring *ring, unsigned submitted, Victim *victims) {
    const struct io_sqring_offsets *at = &ring->params.sq_off;
    unsigned head = __atomic_load_n(ring_word(ring, at->head), __ATOMIC_ACQUIRE);
    unsigned mask = *ring_word(ring, at->ring_mask);
    unsigned *array = ring_word(ring, at->array);
    int count = 0;
    for (unsigned i = 0; i < submitted && count < MAX_VICTIMS; ++i) {
        struct io_uring_sqe *request = &ring->requests[array[(head + i) & mask]];
        const char *class = request_class(request);
        int effect = class == NULL ? 0 : misaligned(request) ? EINVAL : struck_fd(class, request->fd);
        if (effect == SHORTER) {
            request->len = (unsigned)shorter(request->len);
        } else if (effect != 0) {
            unsigned long long tag = request->user_data;
            memset(request, 0, sizeof *request);
            request->opcode = IORING_OP_NOP;
            request->user_data = tag;
            victims[count++] = (Victim){tag, effect > 0 ? -effect : 0};
        }
    }
    return count;
}

static void change_completions(Ring *ring, const Victim *victims, int count) {
    const struct io_cqring_offsets *at = &ring->params.cq_off;
    unsigned tail = __atomic_load_n(ring_word(ring, at->tail), __ATOMIC_ACQUIRE);
    unsigned mask = *ring_word(ring, at->ring_mask);
    struct io_uring_cqe *completions = (struct io_uring_cqe *)(ring->rings + at->cqes);
    for (unsigned i = *ring_word(ring, at->head); i != tail; ++i) {
        struct io_uring_cqe *completion = &completions[i & mask];
        for (int v = 0; v < count; ++v) {
            if (completion->user_data == victims[v].tag && completion->res == 0) completion->res = victims[v].result;
        }
    }
}

/* ---- statx: "alignment" sets the reported alignment of direct I/O, in bytes (NOTHING: no direct I/O). ----
 *
 * From then on unaligned requests on a ring fail, as on a filesystem with that alignment.
 */
static void answer_alignment(int fd, unsigned *answer) {
    enum { DIOALIGN = 0x2000, MEMORY = 38, OFFSET = 39 };
    int effect = struck_fd("alignment", fd);
    if (effect == 0) return;
    answer[0] |= DIOALIGN;
    answer[MEMORY] = answer[OFFSET] = effect == NOTHING ? 0 : (unsigned)effect;
    atomic_store(&demanded, answer[OFFSET]);
}

long syscall(long number, ...) {
    REAL(long, "syscall", long, ...)
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    if (number == SYS_io_uring_setup) {
        int effect = struck("ring_setup", NULL);
        STRIKE(effect);
        long fd = real(number, a, b, c, d, e, f);
        if (fd >= 0) remember_ring((int)fd, (const struct io_uring_params *)b);
        return fd;
    }
    if (number == SYS_statx) {
        long result = real(number, a, b, c, d, e, f);
        if (result == 0) answer_alignment((int)a, (unsigned *)e);
        return result;
    }
    if (number != SYS_io_uring_enter || atomic_load(&rule_count) == 0) return real(number, a, b, c, d, e, f);
    int effect = struck("ring_enter", NULL);
    STRIKE(effect);
    Ring *ring = find_ring((int)a);
    if (ring == NULL) return real(number, a, b, c, d, e, f);
    Victim victims[MAX_VICTIMS];
    int count = change_requests(ring, (unsigned)b, victims);
    long submitted = real(number, a, b, c, d, e, f);
    int kept = errno;
    if (count > 0) change_completions(ring, victims, count);
    errno = kept;
    return submitted;
}
