// A submission and a completion queue that belong together (NVMe base specification, 3.3).
#pragma once

#include <atomic>
#include <cstdint>

#include "nvme/wire.hpp"

namespace fastio {

// What was written to memory is there before what is written to the device from now on, and what is read from now on is
// younger than what was read. Devices are not among those that C++'s fences order on Arm.
inline void device_write_fence() {
#if defined(__aarch64__)
    asm volatile("dmb oshst" ::: "memory");
#else
    std::atomic_thread_fence(std::memory_order_release);
#endif
}

inline void device_read_fence() {
#if defined(__aarch64__)
    asm volatile("dmb oshld" ::: "memory");
#else
    std::atomic_thread_fence(std::memory_order_acquire);
#endif
}

// Knows of no command's meaning. The caller keeps fewer than `entries` commands pushed and not popped: then neither of
// the two rings can ever be full.
class NvmeQueue {
  public:
    NvmeQueue() = default;
    // The rings lie in memory that the device reaches, `entries` long both.
    NvmeQueue(nvme::Command* commands, nvme::Completion* completions, unsigned entries,
              volatile uint32_t* tail_doorbell, volatile uint32_t* head_doorbell);

    // As new: for a controller that has forgotten its queues.
    void clear();
    // Put a command into the ring; the controller hears of it by ring().
    void push(const nvme::Command& command);
    // Tell the controller of what was pushed and, only then, of what was popped: at most two writes, however many those
    // are. It need not hear of what was popped any sooner: what it has still to complete was pushed before the last
    // ring(), and for all of that there is room.
    void ring();
    // Whether pop() would give one. Any thread, while none pops.
    bool ready() const;
    bool pop(nvme::Completion& completion);

    uint64_t doorbells() const { return doorbells_; }

  private:
    nvme::Command* commands_ = nullptr;
    nvme::Completion* completions_ = nullptr;
    unsigned entries_ = 0;
    volatile uint32_t* tail_doorbell_ = nullptr;
    volatile uint32_t* head_doorbell_ = nullptr;
    unsigned tail_ = 0, told_tail_ = 0;
    unsigned head_ = 0, told_head_ = 0;
    uint16_t phase_ = 1;  // of completions that are new: the controller inverts it with every turn
    uint64_t doorbells_ = 0;
};

}  // namespace fastio
