// Another device's memory, which a disk can write to and read from (peer to peer).
#pragma once

#include <cstdint>
#include <string>

#include "vfio/device.hpp"

namespace fastio {

// Claims a PCI device without a kernel driver and maps one of its BARs. Pass the memory to BlockStore::map(address,
// nbytes), and unmap it or close the store before this object is destroyed.
class VfioPeer {
  public:
    // Throws Refused with the cure.
    VfioPeer(const std::string& pci, unsigned bar)
        : device_(VfioClaim(pci, VfioRole::kPeer)), bar_(device_.map_bar(bar)) {}

    // The CPU can access it, too, but slowly, because it is uncached.
    uint8_t* address() const { return bar_.memory; }
    uint64_t nbytes() const { return bar_.nbytes; }
    // Closes the device. Its memory reads as zeros from then on. May be called twice.
    void close() noexcept { device_.leave(); }

  private:
    VfioDevice device_;
    VfioDevice::Bar bar_;
};

}  // namespace fastio
