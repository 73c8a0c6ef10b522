// SPDK's environment (DPDK's memory and PCI), which a process starts once and keeps.
#pragma once

#include <cstdint>
#include <string>

namespace fastio {

// Why this build has no SPDK, and how to get one that has; nothing where it has.
std::string why_no_spdk();

// Start it, or find it started. `pci`: devices on PCIe are wanted, and memory that they can reach; without, it takes
// ordinary pages. Throws Refused.
void start_spdk(bool pci);

// The 2 MiB pieces that lie wholly in [memory, memory + nbytes), made reachable by DMA through the IOMMU.
class SpdkMemory {
  public:
    // Throws Refused where there is no such piece, or the IOMMU does not take it.
    SpdkMemory(uint8_t* memory, uint64_t nbytes);
    ~SpdkMemory();
    SpdkMemory(SpdkMemory&& other) noexcept;
    SpdkMemory& operator=(SpdkMemory&&) = delete;

    bool holds(const uint8_t* memory, uint64_t nbytes) const;

  private:
    uint8_t* first_;
    uint64_t nbytes_;
};

}  // namespace fastio
