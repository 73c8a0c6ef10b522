#include "nvme/channel.hpp"

#include <cerrno>

#include "nvme/prp.hpp"

namespace fastio {

namespace {

// "Command Aborted By Host", which Linux also uses for commands that it gave up; and the same with "Do Not Retry".
constexpr uint16_t kAbortedByHost = 0x371, kAbortedNoRetry = 0x4371;
constexpr size_t kMaxNotes = 16;  // a controller may fail again and again

}  // namespace

NvmeChannel::NvmeChannel(NvmeController& controller, const NvmeNamespace& space)
    : controller_(controller), space_(space), slots_(controller.slots()) {
    for (unsigned slot = controller.slots(); slot > 0; --slot) free_.push_back(static_cast<uint16_t>(slot - 1));
}

void NvmeChannel::send(bool write, uint64_t offset, uint32_t nbytes, uint64_t address, uint64_t tag, bool durable) {
    if (dead_) return finish(tag, -ENODEV, 0);
    const uint16_t slot = free_.back();
    free_.pop_back();
    slots_[slot] = {true, nbytes, tag, controller_.now_ms()};
    const Prps prps = make_prps(address, nbytes, controller_.prp_list(slot), controller_.prp_list_address(slot));
    nvme::Command command{};
    command.opcode = write ? nvme::kWrite : nvme::kRead;
    command.id = slot;
    command.nsid = space_.id;
    command.prp1 = prps.first;
    command.prp2 = prps.second;
    nvme::set_lbas(command, offset / space_.lba_bytes, nbytes / space_.lba_bytes);
    if (durable) command.cdw12 |= nvme::kForceUnitAccess;
    controller_.queue(write).push(command);
}

void NvmeChannel::flush() {
    for (NvmeQueue& queue : controller_.queues()) queue.ring();
}

bool NvmeChannel::ready() const {
    if (any_finished_.load(std::memory_order_relaxed)) return true;
    for (const NvmeQueue& queue : controller_.queues()) {
        if (queue.ready()) return true;
    }
    return false;
}

bool NvmeChannel::reap(DeviceCompletion& completion) {
    if (!finished_.empty()) {
        completion = finished_.front();
        finished_.pop_front();
        any_finished_ = !finished_.empty();
        return true;
    }
    for (NvmeQueue& queue : controller_.queues()) {
        nvme::Completion taken;
        if (!queue.pop(taken)) continue;
        if (taken.id >= slots_.size() || !slots_[taken.id].used) {
            restart("it completed a command that was not sent");
            return reap(completion);
        }
        Slot& slot = slots_[taken.id];
        slot.used = false;
        free_.push_back(taken.id);
        const auto status = static_cast<uint16_t>(taken.status >> 1);
        completion = {slot.tag, status == 0 ? static_cast<int32_t>(slot.nbytes) : -EIO, status};
        return true;
    }
    if (free_.size() < slots_.size()) check_overdue();
    return !finished_.empty() && reap(completion);
}

void NvmeChannel::finish(uint64_t tag, int32_t result, uint16_t status) {
    finished_.push_back({tag, result, status});
    any_finished_ = true;
}

// Called when no completion arrived: every kCheckMs it checks whether the controller stopped or commands are overdue.
void NvmeChannel::check_overdue() {
    const uint64_t now = controller_.now_ms();
    if (now - checked_ms_ < kCheckMs) return;
    checked_ms_ = now;
    const std::string stopped = controller_.stop_reason();
    if (!stopped.empty()) return restart(stopped);
    unsigned overdue = 0;
    for (const Slot& slot : slots_) overdue += slot.used && now - slot.sent_ms > controller_.timeout_ms() ? 1 : 0;
    if (overdue == 0) return;
    restart(std::to_string(overdue) + " commands timed out after " + std::to_string(controller_.timeout_ms()) + " ms");
}

void NvmeChannel::restart(const std::string& reason) {
    const uint64_t now = controller_.now_ms();
    const std::string refusal = controller_.restart();
    dead_ = !refusal.empty();
    free_.clear();
    for (size_t number = slots_.size(); number > 0; --number) {
        Slot& slot = slots_[number - 1];
        free_.push_back(static_cast<uint16_t>(number - 1));
        if (!slot.used) continue;
        slot.used = false;
        if (now - slot.sent_ms > controller_.timeout_ms()) {
            finish(slot.tag, -ETIMEDOUT, kAbortedNoRetry);
        } else {
            finish(slot.tag, dead_ ? -ENODEV : -EIO, dead_ ? kAbortedNoRetry : kAbortedByHost);
        }
    }
    if (notes_.size() == kMaxNotes) return;
    const std::string name = "controller " + controller_.name();
    notes_.push_back(dead_ ? name + " was given up: " + reason + ", and then: " + refusal
                           : name + " was restarted: " + reason);
}

}  // namespace fastio
