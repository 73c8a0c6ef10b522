// An NVMe controller driven from here: brought up, asked what it has, restarted, shut down (NVMe base specification,
// chapter 3; FlashNeuron, section 3.4).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "memory/memory.hpp"
#include "nvme/host.hpp"
#include "nvme/queue.hpp"

namespace fastio {

struct NvmeNamespace {
    uint32_t id;
    uint64_t lbas;
    uint32_t lba_bytes;
};

// Polled: it is never asked for an interrupt. One thread at a time.
class NvmeController {
  public:
    // Brings it up with room for at most `slots` commands under way. `name` is for errors. Throws Refused.
    NvmeController(NvmeHost& host, std::string name, unsigned slots, uint32_t timeout_ms);
    ~NvmeController();
    NvmeController(const NvmeController&) = delete;
    NvmeController& operator=(const NvmeController&) = delete;

    const std::string& name() const { return name_; }
    const std::string& model() const { return model_; }
    const std::string& serial() const { return serial_; }
    uint32_t timeout_ms() const { return timeout_ms_; }
    unsigned slots() const { return slots_; }
    // Bytes one command may move: what the controller takes (MDTS) and what one PRP list can tell.
    uint64_t largest_transfer() const { return largest_transfer_; }

    // Ids of those that are active, lowest first. Throws Refused.
    std::vector<uint32_t> namespaces();
    // Throws Refused for one that is not there, or formatted in a way that a block store cannot use.
    NvmeNamespace describe(uint32_t id);

    // The queues. Reads have one of their own where the controller grants two: it takes turns between queues, so that a
    // prefetch does not stand in line behind the writes of a whole forward pass.
    NvmeQueue& queue(bool write) { return pairs_[write || pairs_.size() == 1 ? 0 : 1]; }
    std::vector<NvmeQueue>& queues() { return pairs_; }
    uint64_t doorbells() const;
    uint64_t now_ms() const { return host_.now_ms(); }

    // A page for the PRP list of a command, and the device's address of it.
    uint64_t* prp_list(unsigned slot) { return reinterpret_cast<uint64_t*>(at(prps_ + slot * kPage)); }
    uint64_t prp_list_address(unsigned slot) const { return base_ + prps_ + slot * kPage; }

    // Why it does not run any more, such as "it is gone"; "" where it runs.
    const char* why_stopped() const;
    // From any state to one with empty queues: what it was at is forgotten, and it touches no memory of that any more.
    // Gives why it does not come back (then it reaches no memory at all), or nothing.
    std::string restart() noexcept;
    // Tell it that the end has come, and stop it. Twice is fine.
    void shut_down() noexcept;

  private:
    // memory_: the admin queue's rings, a page for what Identify tells, the rings of I/O queues, the PRP lists.
    static constexpr unsigned kAdminEntries = kPage / sizeof(nvme::Command);
    static constexpr uint64_t kIdentifyPage = 2 * kPage;
    static constexpr uint64_t kPairRings = 3 * kPage;

    NvmeHost& host_;
    std::string name_;
    uint32_t timeout_ms_;
    uint64_t capabilities_;
    unsigned slots_;
    unsigned entries_;  // of each I/O queue
    uint64_t prps_;     // where the PRP lists begin in memory_
    Mapping memory_;
    uint64_t base_ = 0;  // the device's address of memory_
    NvmeQueue admin_;
    std::vector<NvmeQueue> pairs_;
    uint16_t next_admin_id_ = 0;
    uint32_t shutdown_ms_ = 0;
    std::string model_, serial_;
    uint64_t largest_transfer_ = 0;

    // Of one I/O queue's rings: submission, then completion.
    uint64_t submission_bytes() const { return round_up(entries_ * sizeof(nvme::Command), kPage); }
    uint64_t pair_bytes() const { return submission_bytes() + round_up(entries_ * sizeof(nvme::Completion), kPage); }
    uint8_t* at(uint64_t offset) const { return memory_.data() + offset; }
    uint32_t read32(uint64_t offset) const;
    void write32(uint64_t offset, uint32_t value);
    void write64(uint64_t offset, uint64_t value);
    uint64_t read_capabilities() const;
    volatile uint32_t* doorbell(unsigned queue, bool completion) const;
    NvmeQueue make_queue(unsigned number, uint64_t offset, unsigned entries) const;
    // How long it may take to become ready, or to stop (CAP.TO).
    uint64_t patience_ms() const { return ((capabilities_ >> 24 & 0xff) + 1) * 500; }
    bool wait_for(uint32_t mask, uint32_t value, uint64_t limit_ms) const;
    void disable();
    void enable();

    // One admin command, to its end; gives dword 0 of the completion. Throws Refused with the status in words.
    uint32_t admin(nvme::Command command, const char* what);
    const uint8_t* identify(uint32_t namespace_id, nvme::Identified structure, const char* what);
    void identify_controller();
    void create_queues();
};

}  // namespace fastio
