// State shared by the caller and a running transfer: progress, cancellation, and whether the memory may change.
#pragma once

#include <atomic>
#include <cstdint>

#include "support/errors.hpp"

namespace fastio {

struct Control {
    std::atomic<uint64_t> done{0};  // bytes
    std::atomic<bool> cancelled{false};
    // The source memory does not change during the transfer.
    std::atomic<bool> immutable{false};

    void advance(uint64_t nbytes) noexcept { done.fetch_add(nbytes, std::memory_order_relaxed); }
    void check() const {
        if (cancelled.load(std::memory_order_relaxed)) throw Refused("the transfer was cancelled");
    }
};

}  // namespace fastio
