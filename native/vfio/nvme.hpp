// An NVMe controller over VFIO: its PCI device, one namespace and the channel to it.
#pragma once

#include <string>
#include <utility>

#include "block_store/driver.hpp"
#include "nvme/channel.hpp"
#include "nvme/controller.hpp"
#include "vfio/device.hpp"

namespace fastio {

class VfioNvmeHost final : public NvmeHost {
  public:
    explicit VfioNvmeHost(VfioClaim&& claim) : device_(std::move(claim)), bar_(device_.map_bar(0)) {}

    volatile uint8_t* registers() override { return bar_.memory; }
    uint64_t register_bytes() const override { return bar_.nbytes; }
    uint64_t map(uint8_t* memory, uint64_t nbytes) override;
    void unmap(uint64_t address, uint64_t nbytes) noexcept override;
    void set_bus_master(bool on) noexcept override { device_.set_bus_master(on); }
    bool reset() noexcept override { return device_.reset(); }
    uint64_t now_ms() const override;
    void pause() override;
    void leave() noexcept { device_.leave(); }

  private:
    VfioDevice device_;
    VfioDevice::Bar bar_;
};

// Names are "0000:03:00.0", for a controller with a single namespace, or "0000:03:00.0/2".
class VfioNvme {
  public:
    // Takes the controller from the kernel's driver. Throws Refused with the cure.
    static VfioClaim claim(const std::string& name);
    VfioNvme(const std::string& name, VfioClaim&& claim, unsigned slots, uint32_t timeout_ms);

    NvmeController& controller() { return controller_; }
    NvmeChannel& channel() { return channel_; }
    const NvmeChannel& channel() const { return channel_; }
    StoreDriver::Device describe() const;
    uint64_t largest_transfer() const { return controller_.largest_transfer(); }
    uint64_t doorbells() const { return controller_.doorbells(); }
    unsigned slots() const { return controller_.slots(); }

    // Shuts the controller down and returns it to the kernel, at exit, when other threads may still use it.
    void leave() noexcept;

  private:
    std::string name_;
    VfioNvmeHost host_;
    NvmeController controller_;
    NvmeChannel channel_;
};

}  // namespace fastio
