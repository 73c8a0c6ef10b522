// One thread's part of a direct read: its own engine, its own staging blocks, its own share of the blocks.
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
#include "transfer/staging_choice.hpp"

namespace fastio {

// What all the readers of one file share.
struct Reading {
    Reading(int fd, uint64_t size, Extents extents, const Span& span, const DirectOptions& options, Control& control);

    // A block failed there: none behind it is sent any more. 0: no more at all.
    void stop(uint64_t offset);

    const int fd;
    const Extents extents;
    const Span span;
    const DirectOptions options;
    Control& control;
    Blocks blocks;
    SharedStagingChoice* choice = nullptr;  // null: what can land lands
    std::atomic<uint64_t> limit{UINT64_MAX};
    std::atomic<bool> is_ending{false};  // all blocks are taken: the disk is not kept busy any more
};

class DirectReader {
  public:
    // Throws Refused where the system has no such engine.
    DirectReader(Reading& reading, unsigned depth);

    // Until every block that this one took is there. Throws what the lowest of the failed blocks met with, once nothing
    // is in flight.
    void run();
    // The checksums of the parts of each block, by the block's offset; in no order.
    std::vector<std::pair<uint64_t, std::vector<Part>>>& parts() { return parts_; }

  private:
    Reading& reading_;
    std::unique_ptr<Staging> staging_;  // outlives the queue, which waits for what is in flight
    std::vector<uint8_t*> free_;        // its blocks
    Queue queue_;
    std::vector<Block> taken_;  // and not sent yet, from `at_` on
    size_t at_ = 0;
    std::vector<std::pair<uint64_t, std::vector<Part>>> parts_;

    void fill();
    bool send();
    void receive();
};

}  // namespace fastio
