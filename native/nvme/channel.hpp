// Reads and writes of one namespace: commands on their way, their PRP lists, time-outs, and what a restart does to
// them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "block_store/driver.hpp"
#include "nvme/controller.hpp"

namespace fastio {

// Under the store's lock, but for ready(). A command that does not come back in time is not aborted alone: an Abort
// promises nothing, and the memory is the caller's again when he is told. The controller is restarted, which ends every
// command: the overdue ones fail with ETIMEDOUT, the others with a status after which the store may send them again. It
// is restarted as well when it reports a fatal error, or somebody has reset it.
class NvmeChannel {
  public:
    NvmeChannel(NvmeController& controller, const NvmeNamespace& space);

    // Queue a command between the namespace and `address`, as the device calls it: whole LBAs, at most the controller's
    // largest transfer. There is room: no more than its slots are under way.
    void send(bool write, uint64_t offset, uint32_t nbytes, uint64_t address, uint64_t tag);
    // A command that does not even go to the controller.
    void complete_with(uint64_t tag, int32_t result) { settle(tag, result, 0); }
    void flush();
    // Whether reap() would give one. Any thread, while none reaps.
    bool ready() const;
    bool reap(DeviceCompletion& completion);
    // Restarts so far, the first few, and what came of them.
    const std::vector<std::string>& notes() const { return notes_; }
    const NvmeNamespace& space() const { return space_; }

  private:
    static constexpr uint64_t kLookMs = 50;  // how often to look for what is overdue, when nothing comes

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
    std::deque<DeviceCompletion> settled_;  // without a completion of the controller's
    std::atomic<bool> any_settled_{false};
    uint64_t looked_ms_ = 0;
    bool dead_ = false;
    std::vector<std::string> notes_;

    void settle(uint64_t tag, int32_t result, uint16_t status);
    void look();
    void restart(const std::string& reason);
};

}  // namespace fastio
