#include "io_engine/io_uring.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "support/errors.hpp"

#ifndef IORING_SETUP_COOP_TASKRUN
#define IORING_SETUP_COOP_TASKRUN (1U << 8)
#endif
#ifndef IORING_SETUP_SQE128
#define IORING_SETUP_SQE128 (1U << 10)
#define IORING_SETUP_CQE32 (1U << 11)
#endif
#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif

namespace fastio {

namespace {

// Constants that older headers lack.
constexpr uint8_t kUringCmd = 46;      // IORING_OP_URING_CMD
constexpr uint32_t kCommandFixed = 1;  // IORING_URING_CMD_FIXED
constexpr size_t kCommandOffset = 48;  // of the device command in a 128-byte entry

int setup(unsigned entries, io_uring_params& params, unsigned flags) {
    std::memset(&params, 0, sizeof params);
    params.flags = flags;
    return static_cast<int>(syscall(SYS_io_uring_setup, entries, &params));
}

}  // namespace

Ring::Ring(unsigned entries, Issuers issuers, Entries size)
    : sq_shift_(size == Entries::kLarge ? 1 : 0), cq_shift_(sq_shift_) {
    io_uring_params params;
    const unsigned large = size == Entries::kLarge ? IORING_SETUP_SQE128 | IORING_SETUP_CQE32 : 0;
    // COOP_TASKRUN is for one thread too: completions wait until the submitting thread enters the kernel.
    bool one_thread = issuers == Issuers::kOneThread;
    fd_ = setup(entries, params, large | (one_thread ? IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN : 0));
    if (fd_ < 0 && errno == EINVAL) fd_ = setup(entries, params, large);  // a kernel before 6.0
    if (fd_ < 0 && errno == EINVAL && large != 0) throw Refused("this kernel's io_uring is too old (before 5.19)");
    if (fd_ < 0) throw Refused(std::string("io_uring_setup: ") + std::strerror(errno));
    if (!(params.features & IORING_FEAT_SINGLE_MMAP)) {
        close(fd_);
        throw Refused("this kernel's io_uring is too old (before 5.4)");
    }
    size_t submission = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t completion = params.cq_off.cqes + (params.cq_entries * sizeof(io_uring_cqe) << cq_shift_);
    rings_bytes_ = submission > completion ? submission : completion;
    entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe) << sq_shift_;
    constexpr int kProtection = PROT_READ | PROT_WRITE;
    constexpr int kFlags = MAP_SHARED | MAP_POPULATE;
    rings_ = mmap(nullptr, rings_bytes_, kProtection, kFlags, fd_, IORING_OFF_SQ_RING);
    void* entry_memory = mmap(nullptr, entries_bytes_, kProtection, kFlags, fd_, IORING_OFF_SQES);
    if (rings_ == MAP_FAILED || entry_memory == MAP_FAILED) {
        int error = errno;
        if (rings_ == MAP_FAILED) rings_ = nullptr;
        if (entry_memory != MAP_FAILED) entries_ = static_cast<io_uring_sqe*>(entry_memory);
        unmap();
        throw Refused(std::string("mmap of the ring: ") + std::strerror(error));
    }
    entries_ = static_cast<io_uring_sqe*>(entry_memory);
    // A forked child must not share the ring. Without these pages it faults instead of corrupting the parent's I/O.
    madvise(rings_, rings_bytes_, MADV_DONTFORK);
    madvise(entries_, entries_bytes_, MADV_DONTFORK);
    auto* base = static_cast<uint8_t*>(rings_);
    sq_tail_ = reinterpret_cast<unsigned*>(base + params.sq_off.tail);
    sq_array_ = reinterpret_cast<unsigned*>(base + params.sq_off.array);
    sq_mask_ = *reinterpret_cast<unsigned*>(base + params.sq_off.ring_mask);
    cq_head_ = reinterpret_cast<unsigned*>(base + params.cq_off.head);
    cq_tail_ = reinterpret_cast<unsigned*>(base + params.cq_off.tail);
    cq_mask_ = *reinterpret_cast<unsigned*>(base + params.cq_off.ring_mask);
    completions_ = reinterpret_cast<io_uring_cqe*>(base + params.cq_off.cqes);
}

void Ring::unmap() noexcept {
    if (entries_ != nullptr) munmap(entries_, entries_bytes_);
    if (rings_ != nullptr) munmap(rings_, rings_bytes_);
    if (fd_ >= 0) close(fd_);
}

Ring::~Ring() { unmap(); }

io_uring_sqe& Ring::next_entry() {
    io_uring_sqe& entry = entries_[(*sq_tail_ & sq_mask_) << sq_shift_];
    std::memset(&entry, 0, sizeof entry);  // the size of a plain entry; queue_command() fills the rest
    return entry;
}

void Ring::push() {
    const unsigned tail = *sq_tail_, index = tail & sq_mask_;
    sq_array_[index] = index;
    __atomic_store_n(sq_tail_, tail + 1, __ATOMIC_RELEASE);
    ++queued_;
}

void Ring::queue(bool write, int fd, void* memory, uint32_t nbytes, uint64_t offset, uint64_t tag) {
    io_uring_sqe& entry = next_entry();
    const int number = registered(memory, nbytes);
    if (number >= 0) {
        entry.opcode = write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
        entry.buf_index = static_cast<uint16_t>(number);
    } else {
        entry.opcode = write ? IORING_OP_WRITE : IORING_OP_READ;
    }
    entry.fd = fd;
    entry.addr = reinterpret_cast<uintptr_t>(memory);
    entry.len = nbytes;
    entry.off = offset;
    entry.user_data = tag;
    push();
}

void Ring::queue_command(int fd, uint32_t operation, const void* command, size_t nbytes, int registered, uint64_t tag) {
    io_uring_sqe& entry = next_entry();
    entry.opcode = kUringCmd;
    entry.fd = fd;
    entry.off = operation;
    if (registered >= 0) {
        entry.rw_flags = kCommandFixed;
        entry.buf_index = static_cast<uint16_t>(registered);
    }
    entry.user_data = tag;
    uint8_t* room = reinterpret_cast<uint8_t*>(&entry) + kCommandOffset;
    std::memset(room, 0, kCommandBytes);
    std::memcpy(room, command, nbytes);
    push();
}

long Ring::enter(unsigned submitted, unsigned wait, unsigned flags) {
    calls_.fetch_add(1, std::memory_order_relaxed);
    return syscall(SYS_io_uring_enter, fd_, submitted, wait, flags, nullptr, 0);
}

void Ring::submit(unsigned wait) {
    unsigned flags = wait > 0 ? static_cast<unsigned>(IORING_ENTER_GETEVENTS) : 0U;
    for (;;) {
        long taken = enter(queued_, wait, flags);
        if (taken >= 0) {
            queued_ -= static_cast<unsigned>(taken);
            if (queued_ == 0) return;
            continue;
        }
        if (errno == EINTR || errno == EAGAIN || errno == EBUSY) continue;
        throw Refused(std::string("io_uring_enter: ") + std::strerror(errno));
    }
}

void Ring::wait() {
    while (enter(0, 1, IORING_ENTER_GETEVENTS) < 0) {
        if (errno == EINTR || errno == EAGAIN || errno == EBUSY) continue;
        throw Refused(std::string("io_uring_enter: ") + std::strerror(errno));
    }
}

bool Ring::reap(Completion& completion) {
    unsigned head = *cq_head_;
    if (head == __atomic_load_n(cq_tail_, __ATOMIC_ACQUIRE)) return false;
    const io_uring_cqe& entry = completions_[(head & cq_mask_) << cq_shift_];
    completion = {entry.user_data, entry.res};
    __atomic_store_n(cq_head_, head + 1, __ATOMIC_RELEASE);
    return true;
}

}  // namespace fastio
