// The files or block devices under a store as one array of blocks, striped like RAID 0. Files grow on demand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

constexpr uint64_t kStoreBlock = 4096;  // bytes; suits any device and O_DIRECT

// Where a block of the store lies, and how many blocks from it on are contiguous on that device.
struct StorePlace {
    unsigned device;
    uint64_t block;
    uint64_t contiguous;
};

class StoreDevices {
  public:
    struct Device {
        int fd;
        uint64_t fixed_blocks;  // the size of a block device, which cannot grow; 0: a file
    };

    // Takes ownership of the descriptors. `limit_blocks`: the maximum size of the store; 0: no limit but the devices.
    StoreDevices(std::vector<Device> devices, uint64_t limit_blocks);
    ~StoreDevices();
    StoreDevices(const StoreDevices&) = delete;
    StoreDevices& operator=(const StoreDevices&) = delete;

    // Allocates at least `blocks` blocks, and many more if there is room. Returns how many exist. Throws SystemError:
    // ENOSPC if there is no room (disk full, quota, limit), else the errno of the failing disk.
    uint64_t grow(uint64_t blocks);
    StorePlace locate(uint64_t lba) const;
    size_t count() const { return devices_.size(); }
    int fd(unsigned device) const { return devices_[device].fd; }
    // Truncates the files: a forked child may still hold them open, which would keep their space.
    void discard() noexcept;
    void close() noexcept;

  private:
    std::vector<Device> devices_;
    uint64_t limit_;
    uint64_t blocks_ = 0;
    std::vector<uint64_t> sizes_;  // allocated blocks of each device

    void allocate_each(uint64_t blocks);
};

}  // namespace fastio
