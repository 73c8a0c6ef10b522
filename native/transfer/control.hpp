// Shared by the caller and a running transfer: bytes done so far, the wish to stop, and what its memory is like.
#pragma once

#include <atomic>
#include <cstdint>

#include "support/errors.hpp"

namespace fastio {

struct Control {
    std::atomic<uint64_t> done{0};
    std::atomic<bool> cancelled{false};
    // Nobody changes the memory meanwhile.
    std::atomic<bool> still{false};

    void advance(uint64_t nbytes) noexcept { done.fetch_add(nbytes, std::memory_order_relaxed); }
    void check() const {
        if (cancelled.load(std::memory_order_relaxed)) throw Refused("the transfer was cancelled");
    }
};

}  // namespace fastio
