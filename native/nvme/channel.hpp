// Sends reads and writes to one namespace: commands in flight, their PRP lists, timeouts, and restarts.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "block_store/driver.hpp"
#include "nvme/controller.hpp"

namespace fastio {

// All methods but ready() are called under the store's lock. An overdue command is not aborted: Abort guarantees
// nothing, and the caller reuses the memory once the command has failed. Instead the controller is restarted, which
// ends every command: overdue ones fail with ETIMEDOUT, the others with a status after which the store may send them
// again. The controller is also restarted when it reports a fatal error or was reset from outside.
class NvmeChannel {
  public:
    NvmeChannel(NvmeController& controller, const NvmeNamespace& space);

    // Queues a command between the namespace and the device address `address`: whole LBAs, at most the controller's
    // largest transfer. The caller keeps no more commands in flight than the controller has slots.
    void send(bool write, uint64_t offset, uint32_t nbytes, uint64_t address, uint64_t tag, bool durable = false);
    // Completes a command without sending it to the controller.
    void complete_with(uint64_t tag, int32_t result) { finish(tag, result, 0); }
    void flush();
    // Whether reap() would return a completion. Any thread may call it while no thread reaps.
    bool ready() const;
    bool reap(DeviceCompletion& completion);
    // The first few restarts and their results.
    const std::vector<std::string>& notes() const { return notes_; }
    const NvmeNamespace& space() const { return space_; }

  private:
    static constexpr uint64_t kCheckMs = 50;  // how often to check for overdue commands

    struct Slot {
        bool used = false;
        uint32_t nbytes = 0;
        uint64_t tag = 0;
        uint64_t sent_ms = 0;
    };

    NvmeController& controller_;
    NvmeNamespace space_;
    std::vector<Slot> slots_;
    std::vector<uint16_t> free_;
    std::deque<DeviceCompletion> finished_;  // completed here, not by the controller
    std::atomic<bool> any_finished_{false};
    uint64_t checked_ms_ = 0;
    bool dead_ = false;
    std::vector<std::string> notes_;

    void finish(uint64_t tag, int32_t result, uint16_t status);
    void check_overdue();
    void restart(const std::string& reason);
};

}  // namespace fastio
