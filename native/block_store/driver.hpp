// What moves a store's commands to and from its devices. A driver knows of no index, no allocator and no retry.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fastio {

struct DeviceCommand {
    bool write;
    unsigned device;
    int fd;  // -1 where the driver opened the devices by itself
    uint8_t* memory;
    uint32_t nbytes;  // as `offset` a multiple of kStoreBlock
    uint64_t offset;
    uint64_t tag;  // below depth(); no two under way have the same
};

struct DeviceCompletion {
    uint64_t tag;
    int32_t result;       // bytes moved, or minus an errno: EIO for an error that NVMe has a status for
    uint16_t status = 0;  // NVMe's status field without the phase bit (see nvme/status.hpp); 0: none
};

// Called under the store's lock (but for wait), by any thread; never with more than `depth` commands sent and not
// reaped.
class StoreDriver {
  public:
    struct Device {
        std::string name;
        uint64_t blocks;  // of kStoreBlock bytes
        uint32_t lba_bytes;
        std::string model, serial;
    };

    virtual ~StoreDriver() = default;

    virtual unsigned depth() const = 0;
    // Make commands to and from this memory possible or cheaper, where the driver can: host memory, or another
    // device's that is mapped here. It stays until disown() or the driver's end. Gives why it could not; nothing where
    // it could, or has nothing to do.
    virtual std::string adopt(uint8_t* memory, uint64_t nbytes) = 0;
    // Before adopted memory goes away; no command uses it any more.
    virtual void disown(uint8_t*) {}
    // Whether a command may use this memory as it lies; other memory goes through a bounce, which was adopted.
    virtual bool reaches(const uint8_t*, uint64_t) const { return true; }
    // How many bytes one command may move: whole blocks, and at least one.
    virtual uint64_t largest_transfer() const { return 1 << 20; }
    // What the driver itself knows of its devices, in the order of DeviceCommand::device; none: only the caller does.
    virtual std::vector<Device> devices() const { return {}; }

    virtual void send(const DeviceCommand& command) = 0;
    // Hand over what was sent. Throws Refused where the driver has stopped working; it may be called again.
    virtual void flush() = 0;
    // Sleep until there is a completion to reap. Called WITHOUT the lock, by one thread at a time, with all that was
    // sent flushed and something under way. Others may send and flush meanwhile, but not reap. Throws Refused.
    virtual void wait() = 0;
    // Take one completion; false if there is none.
    virtual bool reap(DeviceCompletion& completion) = 0;
    // Sent, but known to nobody: after a flush that was refused.
    virtual unsigned unsent() const = 0;

    // What did not go the usual way so far, and why.
    virtual std::vector<std::string> notes() const { return {}; }
    // What it cost so far: writes to a device's doorbells, and calls of the kernel to move data.
    virtual uint64_t doorbells() const { return 0; }
    virtual uint64_t system_calls() const { return 0; }
};

// "uring" and "threads", whose devices are the caller's; "nvme" on his descriptors of /dev/ngXnY. Throws Refused where
// the driver cannot work here.
std::unique_ptr<StoreDriver> make_store_driver(const std::string& name, const std::vector<int>& fds = {});
// "vfio" and "spdk", which open the devices of these names by themselves. Throws Refused with what would help.
std::unique_ptr<StoreDriver> make_store_driver(const std::string& name, const std::vector<std::string>& devices);

std::unique_ptr<StoreDriver> make_uring_driver();
std::unique_ptr<StoreDriver> make_threads_driver();
std::unique_ptr<StoreDriver> make_nvme_driver(const std::vector<int>& fds);
// "0000:03:00.0", or "0000:03:00.0/2" for its namespace 2.
std::unique_ptr<StoreDriver> make_vfio_driver(const std::vector<std::string>& devices);
// "trtype=PCIe traddr=0000:03:00.0", "trtype=TCP traddr=..."
std::unique_ptr<StoreDriver> make_spdk_driver(const std::vector<std::string>& devices);

}  // namespace fastio
