// A one-shot event on one futex word. It has no lock that a forked child could inherit locked, so the child may destroy
// it.
#pragma once

#include <atomic>
#include <cstdint>

namespace fastio {

// Once opened, it stays open. Thread-safe.
class Latch {
  public:
    bool is_open() const noexcept { return open_.load(std::memory_order_acquire) != 0; }
    void open() noexcept;
    // Returns when the latch is open, after `seconds`, or when this thread receives a signal. Returns whether it is
    // open.
    bool wait(double seconds) noexcept;

  private:
    std::atomic<uint32_t> open_{0};
};

}  // namespace fastio
