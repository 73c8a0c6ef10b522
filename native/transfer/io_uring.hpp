// A small io_uring: raw system calls, no liburing. One thread at a time submits and reaps.
#pragma once

#include <linux/io_uring.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "transfer/io_engine.hpp"

namespace fastio {

class Ring final : public Engine {
  public:
    // Whether only the thread that made the ring enters the kernel with it, which is cheaper, or any may.
    enum class Issuers { kOneThread, kAnyThread };
    // Entries with room for a device's own command (SQE128, CQE32; Linux 5.19), or those that all kernels have.
    enum class Entries { kPlain, kLarge };

    // Throws Refused where io_uring is forbidden or missing.
    explicit Ring(unsigned entries, Issuers issuers = Issuers::kOneThread, Entries size = Entries::kPlain);
    ~Ring() override;
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    // Have the kernel pin and map this memory once, instead of for every request: those that lie in it are cheaper from
    // then on. It must stay mapped until unregister_memory() or the ring's end. Gives why the kernel refused, or
    // nothing. Kernels before 5.19 take one piece in a ring's life.
    std::string register_memory(uint8_t* memory, size_t nbytes);
    // Let go of what was registered at this address; of nothing where that is nothing.
    void unregister_memory(uint8_t* memory);
    // The number that the kernel knows this memory by; -1 for memory that is not registered.
    int registered(const void* memory, uint32_t nbytes) const;

    // The caller keeps the number in flight at or below `entries`.
    void queue(bool write, int fd, void* memory, uint32_t nbytes, uint64_t offset, uint64_t tag) override;
    // Queue a device's own command of up to kCommandBytes (IORING_OP_URING_CMD), on memory that is `registered`; -1:
    // on other. Entries must be large.
    void queue_command(int fd, uint32_t operation, const void* command, size_t nbytes, int registered, uint64_t tag);
    void submit(unsigned wait) override;
    // Wait until there is a completion to reap, and hand nothing over. With Issuers::kAnyThread another thread may
    // queue and submit meanwhile, but not reap. Throws Refused.
    void wait();
    unsigned queued() const override { return queued_; }
    // How often the kernel was entered to submit or to wait.
    uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

    static constexpr size_t kCommandBytes = 80;

    bool reap(Completion& completion) override;

  private:
    struct Piece {
        uintptr_t memory = 0;
        size_t nbytes = 0;
        uintptr_t owner = 0;  // the address that was asked for: large memory is several pieces
    };

    int fd_ = -1;
    unsigned queued_ = 0;
    std::atomic<uint64_t> calls_{0};
    std::vector<Piece> pieces_;  // as the kernel numbers them
    void* rings_ = nullptr;
    size_t rings_bytes_ = 0;
    io_uring_sqe* entries_ = nullptr;
    size_t entries_bytes_ = 0;
    unsigned sq_shift_ = 0;  // an entry is 2^shift plain ones
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
