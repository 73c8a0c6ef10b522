// Blocks in flight on an engine. Every completion is one of three: an error, short (the rest is sent again), done.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "transfer/io_engine.hpp"

namespace fastio {

// A block of the file and the memory it goes from or to. `nbytes` is what is sent; `needed` is what must move:
// the last block of a direct read is rounded up and ends early at the end of the file.
struct Block {
    uint64_t offset = 0;
    uint64_t nbytes = 0;
    uint64_t needed = 0;
    uint8_t* memory = nullptr;
    uint64_t moved = 0;
    bool staged = false;    // `memory` is that of staging
    bool can_land = false;  // of a read: its bytes need no staging
};

// Keeps up to `depth` blocks moving: by io_uring, or so many `threads`, where there are any. After an error nothing
// more is sent, and what is in flight is waited for. Throws Refused where the system has no such engine.
class Queue {
  public:
    Queue(bool write, int fd, unsigned depth, uint64_t alignment, unsigned threads);
    ~Queue();

    bool has_room() const { return !free_.empty(); }
    bool is_empty() const { return in_flight_ == 0; }
    // The slot that the next send() uses: staging memory may be kept by slot.
    unsigned next_slot() const { return free_.back(); }
    void send(const Block& block);
    // Wait until a block is whole; gives its slot, free again, and what it was. Throws SystemError, Truncated or
    // Refused once nothing is in flight any more: what the lowest of the failed blocks met with.
    Block receive(unsigned& slot);
    // Tell the kernel what is queued, without waiting.
    void flush() { engine_->submit(0); }
    void drain() noexcept;

  private:
    bool write_;
    int fd_;
    uint64_t alignment_;
    std::unique_ptr<Engine> engine_;
    std::vector<Block> blocks_;
    std::vector<unsigned> free_;
    unsigned in_flight_ = 0;
    std::exception_ptr failure_;
    uint64_t failure_offset_ = 0;  // of its block

    void resend(unsigned slot);
    int32_t move_here(const Block& block) const;
    bool settle(unsigned slot, int32_t result);
};

}  // namespace fastio
