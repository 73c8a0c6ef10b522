// One thread of a direct read, with its own I/O engine and staging blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "memory/memory.hpp"
#include "transfer/block_queue.hpp"
#include "transfer/blocks.hpp"
#include "transfer/control.hpp"
#include "transfer/direct.hpp"
#include "transfer/extents.hpp"

namespace fastio {

// State that all readers of one file share.
struct ReadState {
    ReadState(int fd, uint64_t size, Extents extents, const Span& span, const DirectOptions& options, Control& control);

    // Stops sending blocks at or behind `offset`, where a block failed. 0 stops all sending.
    void stop(uint64_t offset);

    const int fd;
    const Extents extents;
    const Span span;
    const DirectOptions options;
    Control& control;
    Blocks blocks;
    std::atomic<uint64_t> limit{UINT64_MAX};
};

class DirectReader {
  public:
    // Throws Refused if the system cannot run the engine.
    explicit DirectReader(ReadState& state);

    // Returns when every block that this reader took is read. After an error it waits until nothing is in flight, then
    // throws the error of the lowest failed block.
    void run();
    // The offset of each block and the checksums of its parts, unordered.
    std::vector<std::pair<uint64_t, std::vector<Part>>>& parts() { return parts_; }

  private:
    ReadState& state_;
    std::unique_ptr<Staging> staging_;  // declared before the queue, whose destructor waits for requests in flight
    std::vector<uint8_t*> free_;        // staging blocks
    BlockQueue queue_;
    std::vector<Block> taken_;  // those from `at_` on are not sent yet
    size_t at_ = 0;
    std::vector<std::pair<uint64_t, std::vector<Part>>> parts_;

    void fill();
    bool send();
    void receive();
};

}  // namespace fastio
