// A PCI device of this process: its BARs, its right to reach memory, its reset.
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

    // Throws Refused with what would help.
    explicit VfioDevice(VfioClaim&& claim);
    ~VfioDevice();
    VfioDevice(const VfioDevice&) = delete;
    VfioDevice& operator=(const VfioDevice&) = delete;

    // Map BAR 0 to 5, whole; it stays until leave(). Throws Refused.
    Bar map_bar(unsigned number);
    // Whether it may reach memory. Its own answers to reads and writes in any case.
    void set_bus_master(bool on) noexcept;
    bool reset() noexcept;
    // Give the device up: the kernel resets it, and it may go back to the driver that had it. What was mapped reads as
    // zeros from then on, so that a thread which is late finds memory there. Twice is fine.
    void leave() noexcept;

    const std::string& pci() const { return pci_; }

  private:
    std::string pci_;
    long owner_;  // the process; a child of fork has neither descriptor nor mappings
    int fd_ = -1;
    uint64_t config_ = 0;  // where its configuration space is in the descriptor
    std::vector<Bar> bars_;
};

}  // namespace fastio
