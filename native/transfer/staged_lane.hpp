// What one worker of a staged transfer owns: streams, and slots of staging memory with the copies that use them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "device/device_copies.hpp"
#include "transfer/staged.hpp"
#include "transfer/staged_windows.hpp"

namespace fastio {

// The error of the lowest window. Thread-safe.
class FirstFailure {
  public:
    void add(size_t window, std::exception_ptr failure);
    bool is_set() const { return is_set_; }
    // Throws the error, if there is one.
    void rethrow() const;

  private:
    std::mutex mutex_;
    std::atomic<bool> is_set_{false};
    std::exception_ptr failure_;
    size_t window_ = 0;
};

// Staging memory for one window, and the events behind its copies.
struct Slot {
    enum class Copies : uint8_t { kNone, kStarted, kMarked };
    struct Mark {
        void* event = nullptr;  // null until it is needed
        Copies copies = Copies::kNone;
    };

    uint8_t* memory = nullptr;
    size_t window = 0;        // the number of the window that uses it, or used it last
    std::vector<Mark> marks;  // by stream
};

class Lane {
  public:
    // `memory` is that of all its slots, of `window` bytes each.
    Lane(uint8_t* memory, uint64_t window, const DeviceCopies* copies);
    // Waits for all copies and ignores their errors.
    ~Lane();
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    // The slot that was used longest ago. Copies may still be under way.
    Slot& oldest();
    // Copy a run between its memory and `staged` in the slot: the host's at once; else the copy is started. Throw
    // Refused.
    void to_memory(Slot& slot, const MemoryRun& run, const uint8_t* staged);
    void to_slot(Slot& slot, const MemoryRun& run, uint8_t* staged);
    // Marks the end of the copies of a slot; `wait` waits until they have ended. Both throw Refused.
    void mark(Slot& slot);
    void wait(Slot& slot);
    // Waits for all slots, whether copies failed or not, and adds the failures.
    void finish(FirstFailure& failure) noexcept;

  private:
    struct Stream {
        int device;
        void* stream;
    };

    const DeviceCopies* copies_;
    std::vector<Slot> slots_;
    size_t turn_ = 0;
    std::vector<Stream> streams_;  // one for each device that was needed

    void* stream_of(Slot& slot, int device);
};

}  // namespace fastio
