// The interface of a driver, which moves a store's commands to and from its devices. A driver knows no indices, no
// allocation and no retries.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fastio {

struct DeviceCommand {
    bool write;
    unsigned device;
    int fd;  // -1 if the driver opened the device itself
    uint8_t* memory;
    uint32_t nbytes;  // a multiple of kStoreBlock, as is `offset`
    uint64_t offset;
    uint64_t tag;          // below depth(); unique among the commands in flight
    bool durable = false;  // a write completes when it survives a power cut; drivers of files ignore it
};

struct DeviceCompletion {
    uint64_t tag;
    int32_t result;       // bytes moved, or a negative errno: EIO for an error with an NVMe status
    uint16_t status = 0;  // the NVMe status field without its phase bit (see nvme/status.hpp); 0: none
};

// All methods but wait() are called under the store's lock, by any thread. At most depth() commands are sent and not
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
    // Makes commands on this memory possible or cheaper, if the driver can: host memory, or mapped memory of another
    // device. The memory must stay until unmap_memory() or the driver's destruction. Returns why it failed, or an empty
    // string.
    virtual std::string map_memory(uint8_t* memory, uint64_t nbytes) = 0;
    // Called before mapped memory is freed, when no command uses it any more.
    virtual void unmap_memory(uint8_t*) {}
    // Whether a command may use this memory directly. Other memory goes through a bounce buffer, which was mapped.
    virtual bool reaches(const uint8_t*, uint64_t) const { return true; }
    // The maximum bytes of one command: whole blocks, at least one.
    virtual uint64_t largest_transfer() const { return 1 << 20; }
    // The devices that the driver opened itself, in the order of DeviceCommand::device. Empty if the caller opened
    // them.
    virtual std::vector<Device> devices() const { return {}; }

    virtual void send(const DeviceCommand& command) = 0;
    // Submits the sent commands. Throws Refused if the driver stopped working; it may be called again.
    virtual void flush() = 0;
    // Sleeps until there is a completion to reap. Called WITHOUT the lock, by one thread at a time, when all sent
    // commands are flushed and at least one is in flight. Other threads may send and flush meanwhile, but not reap.
    // Throws Refused.
    virtual void wait() = 0;
    // Takes one completion. Returns false if there is none.
    virtual bool reap(DeviceCompletion& completion) = 0;
    // The number of commands that were sent but not submitted, after a flush that failed.
    virtual unsigned unsent() const = 0;

    // Unusual events so far, such as fallbacks and restarts, with their reasons.
    virtual std::vector<std::string> notes() const { return {}; }
    // Counts so far: doorbell writes, and system calls to move data.
    virtual uint64_t doorbells() const { return 0; }
    virtual uint64_t system_calls() const { return 0; }
};

// Creates "uring" or "threads", on devices that the caller opened, or "nvme", on the caller's descriptors of
// /dev/ngXnY. Throws Refused if the driver cannot work here.
std::unique_ptr<StoreDriver> make_store_driver(const std::string& name, const std::vector<int>& fds = {});
// Creates "vfio" or "spdk", which open the named devices themselves. Throws Refused with the cure.
std::unique_ptr<StoreDriver> make_store_driver(const std::string& name, const std::vector<std::string>& devices);

std::unique_ptr<StoreDriver> make_uring_driver();
std::unique_ptr<StoreDriver> make_threads_driver();
std::unique_ptr<StoreDriver> make_nvme_driver(const std::vector<int>& fds);
// Device names: "0000:03:00.0", or "0000:03:00.0/2" for namespace 2.
std::unique_ptr<StoreDriver> make_vfio_driver(const std::vector<std::string>& devices);
// Device names: "trtype=PCIe traddr=0000:03:00.0", "trtype=TCP traddr=..."
std::unique_ptr<StoreDriver> make_spdk_driver(const std::vector<std::string>& devices);

}  // namespace fastio
