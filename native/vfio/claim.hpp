// A PCI device taken from its kernel driver for vfio-pci, and given back.
#pragma once

#include <string>

namespace fastio {

enum class VfioRole { kNvme, kPeer };

// Takes an NVMe controller from the kernel's nvme driver, unless somebody uses a namespace of it; a peer only where no
// driver has it. A device that is with vfio-pci already is left there at the end, too - but not one that a process of
// ours took and was killed before it gave it back: a note of who had it is in /run/fastio until then.
class VfioClaim {
  public:
    // Throws Refused: what stands in the way and the command that would change it.
    VfioClaim(const std::string& pci, VfioRole role);
    ~VfioClaim();  // to the driver that had it. The device's VFIO group must be closed by then.
    VfioClaim(VfioClaim&& other) noexcept;
    VfioClaim& operator=(VfioClaim&&) = delete;

    const std::string& pci() const { return pci_; }
    // Its IOMMU group. Throws Refused where there is no IOMMU.
    unsigned group() const;
    // It is known by now that no other process has it: what a killed one left to do is ours.
    void inherit();
    // It is the parent's: this is a child of fork.
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
