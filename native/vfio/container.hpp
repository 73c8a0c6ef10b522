// This process's VFIO: one container, so that every device of it reaches the same memory at the same addresses, and one
// device's memory may be another's target (peer to peer).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "vfio/claim.hpp"
#include "vfio/iova.hpp"

namespace fastio {

// It is open while a device of it is. Any thread. A child of fork has none of its parent's descriptors: with them it
// would keep the devices from others after its parent has died.
class VfioContainer {
  public:
    static VfioContainer& of_process();

    // Open a claimed device; gives its descriptor, which stays the container's, as the claim does from then on. Throws
    // Refused with what would help, and leaves the claim to the caller.
    int open(VfioClaim&& claim);
    // And let go of it; with the last of its IOMMU group all of these go back to the drivers that had them.
    void close(const std::string& pci) noexcept;

    // Pin memory - or take a mapping of another device's, which cannot move - and let all devices reach it: whole pages
    // of page_bytes(). Gives the devices' address. Throws Refused with what would help.
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
    void learn_ranges();
    void forget_in_child() noexcept;
    std::string refusal_to_map(int error, uint64_t nbytes) const;
};

// Why memory that is known only as a dma-buf, as CUDA exports it, cannot be mapped for a controller here: in words.
std::string dma_buf_refusal();

}  // namespace fastio
