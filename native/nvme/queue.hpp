// A pair of submission and completion queue (NVMe base specification, 3.3).
#pragma once

#include <atomic>
#include <cstdint>

#include "nvme/wire.hpp"

namespace fastio {

// device_write_fence: writes to memory become visible before later writes to the device. device_read_fence: later reads
// return data no older than earlier reads. On Arm, C++'s fences do not order accesses of devices.
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

// Does not interpret commands. The caller keeps fewer than `entries` commands pushed and not popped, so neither ring
// can be full.
class NvmeQueue {
  public:
    NvmeQueue() = default;
    // Both rings have `entries` entries and lie in memory that the device can access.
    NvmeQueue(nvme::Command* commands, nvme::Completion* completions, unsigned entries,
              volatile uint32_t* tail_doorbell, volatile uint32_t* head_doorbell);

    // Resets the rings, for a controller that was restarted.
    void clear();
    // Puts a command into the ring. ring() tells the controller.
    void push(const nvme::Command& command);
    // Writes the tail doorbell for pushed commands and, only then, the head doorbell for popped completions: at most
    // two writes. The head can wait, because the controller has room for the completions of all commands pushed before
    // the last ring().
    void ring();
    // Whether pop() would return a completion. Any thread may call it while no thread pops.
    bool ready() const;
    bool pop(nvme::Completion& completion);

    uint64_t doorbells() const { return doorbells_; }

  private:
    nvme::Command* commands_ = nullptr;
    nvme::Completion* completions_ = nullptr;
    unsigned entries_ = 0;
    volatile uint32_t* tail_doorbell_ = nullptr;
    volatile uint32_t* head_doorbell_ = nullptr;
    unsigned tail_ = 0, written_tail_ = 0;
    unsigned head_ = 0, written_head_ = 0;
    uint16_t phase_ = 1;  // of new completions: the controller inverts it with every pass over the ring
    uint64_t doorbells_ = 0;
};

}  // namespace fastio
