// A small io_uring: raw system calls, no liburing. One thread at a time submits and reaps.
#pragma once

#include <linux/io_uring.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace fastio {

class Ring {
  public:
    // Whether only the thread that made the ring enters the kernel with it, which is cheaper, or any may.
    enum class Issuers { kOneThread, kAnyThread };

    // Throws Refused where io_uring is forbidden or missing.
    explicit Ring(unsigned entries, Issuers issuers = Issuers::kOneThread);
    ~Ring();
    Ring(const Ring&) = delete;
    Ring& operator=(const Ring&) = delete;

    // Have the kernel pin and map this memory once, instead of for every request: those that lie in it are cheaper from
    // then on. It must stay mapped for the ring's life; one piece a ring. Gives why the kernel refused, or nothing.
    std::string register_memory(uint8_t* memory, size_t nbytes);

    // Queue a read or write; the caller keeps the number in flight at or below `entries`.
    void queue(bool write, int fd, void* memory, uint32_t nbytes, uint64_t offset, uint64_t tag);
    // Hand all that is queued to the kernel and wait for at least `wait` completions. Throws Refused where the ring
    // has stopped working; what was not handed over then never will be.
    void submit(unsigned wait);
    // Wait until there is a completion to reap, and hand nothing over. With Issuers::kAnyThread another thread may
    // queue and submit meanwhile, but not reap. Throws Refused.
    void wait();
    // How many requests are queued and not yet handed over.
    unsigned queued() const { return queued_; }

    struct Completion {
        uint64_t tag;
        int32_t result;
    };
    // Take one completion; false if there is none.
    bool reap(Completion& completion);

  private:
    int fd_ = -1;
    unsigned queued_ = 0;
    uintptr_t registered_ = 0;
    size_t registered_bytes_ = 0;
    void* rings_ = nullptr;
    size_t rings_bytes_ = 0;
    io_uring_sqe* entries_ = nullptr;
    size_t entries_bytes_ = 0;
    unsigned* sq_tail_ = nullptr;
    unsigned* sq_array_ = nullptr;
    unsigned sq_mask_ = 0;
    unsigned* cq_head_ = nullptr;
    unsigned* cq_tail_ = nullptr;
    io_uring_cqe* completions_ = nullptr;
    unsigned cq_mask_ = 0;

    bool is_registered(const void* memory, uint32_t nbytes) const;
    void unmap() noexcept;
};

}  // namespace fastio
