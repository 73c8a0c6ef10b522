// Drives an NVMe controller: initializes, identifies, restarts and shuts it down (NVMe base specification, chapter 3;
// FlashNeuron, section 3.4).
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

// Polls and never enables interrupts. Not thread-safe.
class NvmeController {
  public:
    // Initializes the controller for at most `slots` commands in flight. `name` is for errors. Throws Refused.
    NvmeController(NvmeHost& host, std::string name, unsigned slots, uint32_t timeout_ms);
    ~NvmeController();
    NvmeController(const NvmeController&) = delete;
    NvmeController& operator=(const NvmeController&) = delete;

    const std::string& name() const { return name_; }
    const std::string& model() const { return model_; }
    const std::string& serial() const { return serial_; }
    uint32_t timeout_ms() const { return timeout_ms_; }
    unsigned slots() const { return slots_; }
    // The maximum bytes of one command: the lesser of the controller's limit (MDTS) and one PRP list.
    uint64_t largest_transfer() const { return largest_transfer_; }

    // Returns the ids of the active namespaces, lowest first. Throws Refused.
    std::vector<uint32_t> namespaces();
    // Throws Refused if the namespace is missing or has a format that a block store cannot use.
    NvmeNamespace describe(uint32_t id);

    // Returns the queue for writes or reads. Reads have their own queue if the controller grants two. It serves queues
    // in turn, so a prefetch does not wait behind the writes of a whole forward pass.
    NvmeQueue& queue(bool write) { return pairs_[write || pairs_.size() == 1 ? 0 : 1]; }
    std::vector<NvmeQueue>& queues() { return pairs_; }
    uint64_t doorbells() const;
    uint64_t now_ms() const { return host_.now_ms(); }

    // The page for the PRP list of a command, and its device address.
    uint64_t* prp_list(unsigned slot) { return reinterpret_cast<uint64_t*>(at(prps_ + slot * kPage)); }
    uint64_t prp_list_address(unsigned slot) const { return base_ + prps_ + slot * kPage; }

    // Returns why the controller stopped, such as "it is gone"; "" if it runs.
    const char* stop_reason() const;
    // Restarts the controller from any state, with empty queues: it drops its commands and no longer accesses their
    // memory. Returns why that failed (the controller then has no access to any memory), or an empty string.
    std::string restart() noexcept;
    // Shuts the controller down in an orderly way and disables it. May be called twice.
    void shut_down() noexcept;

  private:
    // The layout of memory_: the admin queue's rings, a page for Identify data, the I/O queues' rings, the PRP lists.
    static constexpr unsigned kAdminEntries = kPage / sizeof(nvme::Command);
    static constexpr uint64_t kIdentifyPage = 2 * kPage;
    static constexpr uint64_t kPairRings = 3 * kPage;

    NvmeHost& host_;
    std::string name_;
    uint32_t timeout_ms_;
    uint64_t capabilities_;
    unsigned slots_;
    unsigned entries_;  // of each I/O queue
    uint64_t prps_;     // the offset of the PRP lists in memory_
    Mapping memory_;
    uint64_t base_ = 0;  // the device address of memory_
    NvmeQueue admin_;
    std::vector<NvmeQueue> pairs_;
    uint16_t next_admin_id_ = 0;
    uint32_t shutdown_ms_ = 0;
    std::string model_, serial_;
    uint64_t largest_transfer_ = 0;

    // The rings of one I/O queue: submission, then completion.
    uint64_t submission_bytes() const { return round_up(entries_ * sizeof(nvme::Command), kPage); }
    uint64_t pair_bytes() const { return submission_bytes() + round_up(entries_ * sizeof(nvme::Completion), kPage); }
    uint8_t* at(uint64_t offset) const { return memory_.data() + offset; }
    uint32_t read32(uint64_t offset) const;
    void write32(uint64_t offset, uint32_t value);
    void write64(uint64_t offset, uint64_t value);
    uint64_t read_capabilities() const;
    volatile uint32_t* doorbell(unsigned queue, bool completion) const;
    NvmeQueue make_queue(unsigned number, uint64_t offset, unsigned entries) const;
    // How long the controller may take to become ready or to stop (CAP.TO).
    uint64_t ready_timeout_ms() const { return ((capabilities_ >> 24 & 0xff) + 1) * 500; }
    bool wait_for(uint32_t mask, uint32_t value, uint64_t limit_ms) const;
    void disable();
    void enable();

    // Runs one admin command and returns dword 0 of its completion. Throws Refused with the status in words.
    uint32_t admin(nvme::Command command, const char* what);
    const uint8_t* identify(uint32_t namespace_id, nvme::IdentifyStructure structure, const char* what);
    void identify_controller();
    void create_queues();
};

}  // namespace fastio
