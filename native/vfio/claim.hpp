// Takes a PCI device from its kernel driver for vfio-pci, and returns it.
#pragma once

#include <string>

namespace fastio {

enum class VfioRole { kNvme, kPeer };

// Takes an NVMe controller from the kernel's nvme driver, unless one of its namespaces is in use; takes a peer device
// only if no driver has it. A device that is bound to vfio-pci already stays there at the end, unless a fastio process
// took it and was killed before it returned it: a note in /run/fastio names the original driver until then.
class VfioClaim {
  public:
    // Throws Refused with the obstacle and the command that removes it.
    VfioClaim(const std::string& pci, VfioRole role);
    // Returns the device to the driver that had it. The device's VFIO group must be closed by then.
    ~VfioClaim();
    VfioClaim(VfioClaim&& other) noexcept;
    VfioClaim& operator=(VfioClaim&&) = delete;

    const std::string& pci() const { return pci_; }
    // Returns the device's IOMMU group. Throws Refused if there is no IOMMU.
    unsigned group() const;
    // Takes over the duty of a killed process to return the device. Called once no other process can have it open.
    void take_over();
    // Called in a forked child: the parent returns the device.
    void disclaim() noexcept { taken_ = false; }

  private:
    std::string pci_;
    bool taken_ = false;
    std::string from_;  // the kernel's driver that had it; "": none had

    void take(const std::string& driver);
    void keep_note() const;
    void give_back() noexcept;
};

}  // namespace fastio
