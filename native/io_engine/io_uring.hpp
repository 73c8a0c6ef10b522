// An io_uring over raw system calls, without liburing. Only one thread at a time may submit and reap.
#pragma once

#include <linux/io_uring.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io_engine/io_engine.hpp"

namespace fastio {

class Ring final : public IoEngine {
  public:
    // Whether only the thread that created the ring enters the kernel with it, which is cheaper, or any thread may.
    enum class Issuers { kOneThread, kAnyThread };
    // kLarge: entries with room for a device command (SQE128, CQE32; Linux 5.19). kPlain: those of all kernels.
    enum class Entries { kPlain, kLarge };

    // Throws Refused if io_uring is forbidden or missing.
    explicit Ring(unsigned entries, Issuers issuers = Issuers::kOneThread, Entries size = Entries::kPlain);
    ~Ring() override;
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    // Lets the kernel pin and map this memory once, which makes requests in it cheaper. It must stay mapped until
    // unregister_memory() or the ring's destruction. Returns why the kernel refused, or an empty string. Kernels before
    // 5.13 take one buffer in a ring's life.
    std::string register_memory(uint8_t* memory, size_t nbytes);
    // Unregisters the memory that was registered at this address; does nothing if there is none.
    void unregister_memory(uint8_t* memory);
    // The index of the registered buffer that holds this memory; -1 if none does.
    int registered(const void* memory, uint32_t nbytes) const;

    // The caller keeps at most `entries` requests in flight.
    void queue(bool write, int fd, void* memory, uint32_t nbytes, uint64_t offset, uint64_t tag) override;
    // Queues a device command of up to kCommandBytes (IORING_OP_URING_CMD). `registered` is the index of the registered
    // buffer that it uses, or -1. Entries must be large.
    void queue_command(int fd, uint32_t operation, const void* command, size_t nbytes, int registered, uint64_t tag);
    void submit(unsigned wait) override;
    // Waits until there is a completion to reap; submits nothing. With Issuers::kAnyThread another thread may queue and
    // submit meanwhile, but not reap. Throws Refused.
    void wait();
    unsigned queued() const override { return queued_; }
    // The number of system calls to submit or to wait.
    uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

    static constexpr size_t kCommandBytes = 80;

    bool reap(Completion& completion) override;

  private:
    struct Piece {
        uintptr_t memory = 0;
        size_t nbytes = 0;
        uintptr_t owner = 0;  // the address passed to register_memory(), which divides large memory into pieces
    };

    int fd_ = -1;
    unsigned queued_ = 0;
    std::atomic<uint64_t> calls_{0};
    std::vector<Piece> pieces_;  // by the kernel's buffer index
    void* rings_ = nullptr;
    size_t rings_bytes_ = 0;
    io_uring_sqe* entries_ = nullptr;
    size_t entries_bytes_ = 0;
    unsigned sq_shift_ = 0;  // an entry is as large as 2^shift plain ones
    unsigned* sq_tail_ = nullptr;
    unsigned* sq_array_ = nullptr;
    unsigned sq_mask_ = 0;
    unsigned* cq_head_ = nullptr;
    unsigned* cq_tail_ = nullptr;
    io_uring_cqe* completions_ = nullptr;
    unsigned cq_mask_ = 0;
    unsigned cq_shift_ = 0;

    long enter(unsigned submitted, unsigned wait, unsigned flags);
    io_uring_sqe& next_entry();
    void push();
    std::string register_piece(uint8_t* memory, size_t nbytes, uintptr_t owner);
    bool make_table();
    bool update_piece(unsigned number, uint8_t* memory, size_t nbytes);
    void unmap() noexcept;
};

}  // namespace fastio
