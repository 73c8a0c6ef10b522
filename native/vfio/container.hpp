// The VFIO container of this process. All devices share it, so they access the same memory at the same addresses, and
// one device's memory may be another's target (peer to peer).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "vfio/claim.hpp"
#include "vfio/iova.hpp"

namespace fastio {

// Open while any of its devices is open. Thread-safe. A forked child closes its parent's descriptors, which would keep
// the devices from other processes after the parent has ended.
class VfioContainer {
  public:
    static VfioContainer& instance();

    // Opens a claimed device and returns its descriptor. The container owns the descriptor, and from then on the claim.
    // Throws Refused with the cure; the caller then keeps the claim.
    int open(VfioClaim&& claim);
    // Closes a device. With the last one of an IOMMU group, all devices of the group return to their drivers.
    void close(const std::string& pci) noexcept;

    // Lets all devices access memory, in whole pages of page_bytes(). Host memory is pinned; mapped memory of another
    // device cannot move. Returns the device address. Throws Refused with the cure.
    uint64_t map(uint8_t* memory, uint64_t nbytes);
    void unmap(uint64_t address, uint64_t nbytes) noexcept;
    uint64_t page_bytes();

  private:
    struct Group {
        int fd = -1;
        std::map<std::string, int> devices;
        std::vector<VfioClaim> claims;
    };

    std::mutex mutex_;
    int fd_ = -1;
    std::map<unsigned, Group> groups_;
    IovaAllocator addresses_;
    uint64_t page_bytes_ = 4096;

    VfioContainer();
    void open_container();
    Group& open_group(unsigned number, const std::string& pci);
    void close_if_empty(unsigned number) noexcept;
    void read_iova_ranges();
    void forget_in_child() noexcept;
    std::string refusal_to_map(int error, uint64_t nbytes) const;
};

// Returns why a dma-buf, as CUDA exports it, cannot be mapped for a controller here.
std::string dma_buf_refusal();

}  // namespace fastio
