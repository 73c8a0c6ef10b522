// Another device's memory, as a place that a disk can write to and read from (peer to peer).
#pragma once

#include <cstdint>
#include <string>

#include "vfio/device.hpp"

namespace fastio {

// Claims a PCI device that no driver of the kernel's has, and maps one of its BARs. A store takes the memory like any
// other: BlockStore::map(address, nbytes). It must have let go of it (unmap, close) before this ends.
class VfioPeer {
  public:
    // Throws Refused with what would help.
    VfioPeer(const std::string& pci, unsigned bar)
        : device_(VfioClaim(pci, VfioRole::kPeer)), bar_(device_.map_bar(bar)) {}

    // Reads and writes by the processor work as well, slowly: nothing of it is cached.
    uint8_t* address() const { return bar_.memory; }
    uint64_t nbytes() const { return bar_.nbytes; }
    // The device goes; its memory reads as zeros from then on. Twice is fine.
    void close() noexcept { device_.leave(); }

  private:
    VfioDevice device_;
    VfioDevice::Bar bar_;
};

}  // namespace fastio
