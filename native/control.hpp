// Shared by the caller and a running transfer: bytes done so far, the wish to stop, and what its memory is like.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "errors.hpp"

namespace fastio {

struct Control {
    std::atomic<uint64_t> done{0};
    std::atomic<bool> cancelled{false};
    // So many bytes of the file, from its first on, lie in memory by now: who writes it waits for the others.
    std::atomic<uint64_t> ready{UINT64_MAX};
    // Nobody changes the memory that is ready.
    std::atomic<bool> still{false};

    void advance(uint64_t nbytes) noexcept { done.fetch_add(nbytes, std::memory_order_relaxed); }
    void check() const {
        if (cancelled.load(std::memory_order_relaxed)) throw Refused("the transfer was cancelled");
    }
    bool has(uint64_t end) const noexcept { return ready.load(std::memory_order_acquire) >= end; }
    void wait_for(uint64_t end) const {
        while (!has(end)) {
            check();
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
    }
};

}  // namespace fastio
