// Starts SPDK's environment (DPDK memory and PCI), once per process.
#pragma once

#include <cstdint>
#include <string>

namespace fastio {

// Returns why this build has no SPDK, and how to get it; empty if it has SPDK.
std::string why_no_spdk();

// Starts the environment unless it runs. `pci`: support PCIe devices, with memory that they can access; without it,
// SPDK uses ordinary pages. Throws Refused.
void start_spdk(bool pci);

// Registers the aligned 2 MiB pieces inside [memory, memory + nbytes) for DMA through the IOMMU.
class SpdkMemory {
  public:
    // Throws Refused if there is no such piece, or the IOMMU refuses it.
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
