// Drives one NVMe namespace through SPDK, over one queue pair. Compiled only with FASTIO_SPDK.
#pragma once

#include <spdk/nvme.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "block_store/driver.hpp"

namespace fastio {

// A connection to a controller, shared by its namespaces.
class SpdkController {
  public:
    // Throws Refused.
    explicit SpdkController(const spdk_nvme_transport_id& where, const std::string& name);
    ~SpdkController();
    SpdkController(const SpdkController&) = delete;
    SpdkController& operator=(const SpdkController&) = delete;

    bool is_at(const spdk_nvme_transport_id& where) const;
    spdk_nvme_ctrlr* get() const { return controller_; }
    // Set when a command took too long. SpdkDevice::poll() then recovers.
    bool timed_out = false;

  private:
    spdk_nvme_transport_id where_;
    spdk_nvme_ctrlr* controller_;
};

// Not thread-safe. Every command passed to send() is completed once, in `completions`.
class SpdkDevice {
  public:
    // `id`: an SPDK transport id, with ns=N to use another namespace than the first. Throws Refused.
    SpdkDevice(std::shared_ptr<SpdkController> controller, const std::string& id,
               std::deque<DeviceCompletion>& completions);
    ~SpdkDevice();
    SpdkDevice(const SpdkDevice&) = delete;
    SpdkDevice& operator=(const SpdkDevice&) = delete;

    StoreDriver::Device describe() const;
    uint64_t largest_transfer() const;
    // SPDK may have no free request: the command then waits here until others are done.
    void send(const DeviceCommand& command);
    // Submits waiting commands, processes completions, and recovers a queue pair that failed.
    void poll();

  private:
    struct Running {
        SpdkDevice* device;
        uint64_t tag;
        uint32_t nbytes;
    };

    std::shared_ptr<SpdkController> controller_;
    std::string id_;
    std::deque<DeviceCompletion>& completions_;
    uint32_t nsid_ = 0;
    spdk_nvme_ns* namespace_ = nullptr;
    spdk_nvme_qpair* queue_ = nullptr;
    std::deque<DeviceCommand> waiting_;
    unsigned running_ = 0;
    unsigned recoveries_ = 0;  // since the last command that succeeded
    unsigned polls_ = 0;

    void find_namespace();
    // Returns 0 or a negative errno: -ENOMEM if there is no room now.
    int submit(const DeviceCommand& command);
    void submit_waiting();
    void recover();
    // Fails all commands with this errno, now and later.
    void give_up(int error);
    static void done(void* argument, const spdk_nvme_cpl* completion);
};

}  // namespace fastio
