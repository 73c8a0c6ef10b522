// Waiting until something is over, with nothing but one word of memory: a child that is forked meanwhile finds no lock
// that nobody holds any more, and may let go of it.
#pragma once

#include <atomic>
#include <cstdint>

namespace fastio {

// Once opened, it stays open. Safe to use from several threads.
class Latch {
  public:
    bool is_open() const noexcept { return open_.load(std::memory_order_acquire) != 0; }
    void open() noexcept;
    // Returns when it is open, after so many seconds, or when this thread hears a signal; gives whether it is open.
    bool wait(double seconds) noexcept;

  private:
    std::atomic<uint32_t> open_{0};
};

}  // namespace fastio
