// The files or block devices under a store, seen as one row of blocks: striped as RAID 0, grown when asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

constexpr uint64_t kStoreBlock = 4096;  // bytes: what any device and O_DIRECT take

// Where a block of the store lies, and how many after it lie behind it on the same device.
struct StorePlace {
    unsigned device;
    uint64_t block;
    uint64_t contiguous;
};

class StoreDevices {
  public:
    struct Device {
        int fd;
        uint64_t fixed_blocks;  // of a block device, which cannot grow; 0: a file
    };

    // Owns the descriptors. `limit_blocks`: the most blocks of the whole store; 0: what the devices have.
    StoreDevices(std::vector<Device> devices, uint64_t limit_blocks);
    ~StoreDevices();
    StoreDevices(const StoreDevices&) = delete;
    StoreDevices& operator=(const StoreDevices&) = delete;

    // Make at least `blocks` exist, and many more where there is room; gives how many do. Throws SystemError with
    // ENOSPC where there is none: no space, over the quota or a limit; or with the errno of a disk that fails.
    uint64_t grow(uint64_t blocks);
    StorePlace locate(uint64_t lba) const;
    size_t count() const { return devices_.size(); }
    int fd(unsigned device) const { return devices_[device].fd; }
    // Give the space of files back: a child of fork may hold them open.
    void discard() noexcept;
    void close() noexcept;

  private:
    std::vector<Device> devices_;
    uint64_t limit_;
    uint64_t blocks_ = 0;
    std::vector<uint64_t> sizes_;  // what each file has been given, in blocks

    void allocate_each(uint64_t blocks);
};

}  // namespace fastio
