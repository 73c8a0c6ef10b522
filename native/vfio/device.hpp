// A PCI device opened through VFIO: its BARs, its bus master bit, its reset.
#pragma once

#include <string>
#include <vector>

#include "vfio/claim.hpp"

namespace fastio {

class VfioDevice {
  public:
    struct Bar {
        uint8_t* memory;
        uint64_t nbytes;
    };

    // Throws Refused with the cure.
    explicit VfioDevice(VfioClaim&& claim);
    ~VfioDevice();
    VfioDevice(const VfioDevice&) = delete;
    VfioDevice& operator=(const VfioDevice&) = delete;

    // Maps all of BAR 0 to 5 until leave(). Throws Refused.
    Bar map_bar(unsigned number);
    // Sets whether the device may access memory. Its own memory stays accessible in any case.
    void set_bus_master(bool on) noexcept;
    bool reset() noexcept;
    // Closes the device: the kernel resets it, and it may return to its driver. Mapped BARs read as zeros from then on,
    // so that a late access by another thread does not fault. May be called twice.
    void leave() noexcept;

    const std::string& pci() const { return pci_; }

  private:
    std::string pci_;
    long owner_;  // the process id; a forked child has neither descriptor nor mappings
    int fd_ = -1;
    uint64_t config_ = 0;  // the offset of the configuration space in the descriptor
    std::vector<Bar> bars_;
};

}  // namespace fastio
