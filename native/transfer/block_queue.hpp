// Keeps several blocks in flight on an I/O engine and resends the rest of short transfers.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "io_engine/io_engine.hpp"

namespace fastio {

// A block of the file and its memory. `nbytes` is the size of the request; `needed` is how many bytes must move: a
// direct read rounds its last block up, and that read ends early at the end of the file.
struct Block {
    uint64_t offset = 0;
    uint64_t nbytes = 0;
    uint64_t needed = 0;
    uint8_t* memory = nullptr;
    uint64_t moved = 0;
    bool staged = false;  // `memory` is a staging buffer
};

// Keeps up to `depth` blocks in flight, on `threads` threads, or on io_uring if `threads` is 0. The constructor throws
// Refused if the system cannot run that engine.
class BlockQueue {
  public:
    BlockQueue(bool write, int fd, unsigned depth, uint64_t alignment, unsigned threads);
    ~BlockQueue();

    bool has_room() const { return !free_.empty(); }
    bool is_empty() const { return in_flight_ == 0; }
    // The slot that the next send() uses. A caller may keep staging memory by slot.
    unsigned next_slot() const { return free_.back(); }
    void send(const Block& block);
    // Waits until a block is complete and returns it, with its slot, which is free again. After an error it waits until
    // nothing is in flight, then throws the error of the lowest failed block: SystemError, Truncated or Refused.
    Block receive(unsigned& slot);
    // Submits the queued requests without waiting.
    void flush() { engine_->submit(0); }
    // Waits for the submitted requests and ignores their results.
    void drain() noexcept;

  private:
    bool write_;
    int fd_;
    uint64_t alignment_;
    std::unique_ptr<IoEngine> engine_;
    std::vector<Block> blocks_;
    std::vector<unsigned> free_;
    unsigned in_flight_ = 0;
    std::exception_ptr failure_;
    uint64_t failure_offset_ = 0;  // of the failed block

    void resend(unsigned slot);
    int32_t transfer_on_this_thread(const Block& block) const;
    bool handle_completion(unsigned slot, int32_t result);
};

}  // namespace fastio
