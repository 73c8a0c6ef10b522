// What moves a store's commands to and from its devices. A driver knows of no index, no allocator and no retry.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace fastio {

struct DeviceCommand {
    bool write;
    int fd;
    uint8_t* memory;
    uint32_t nbytes;
    uint64_t offset;
    uint64_t tag;
};

struct DeviceCompletion {
    uint64_t tag;
    int32_t result;  // bytes moved, or minus an errno
};

// Called under the store's lock (but for wait), by any thread; never with more than `depth` commands sent and not
// reaped.
class StoreDriver {
  public:
    virtual ~StoreDriver() = default;

    virtual unsigned depth() const = 0;
    // Make commands to and from this memory cheaper, where the driver can. It stays for the driver's life. Gives why
    // it could not; nothing where it could, or has nothing to do.
    virtual std::string adopt(uint8_t* memory, uint64_t nbytes) = 0;
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
};

// "uring" or "threads". Throws Refused where it cannot work here.
std::unique_ptr<StoreDriver> make_store_driver(const std::string& name);
std::unique_ptr<StoreDriver> make_uring_driver();
std::unique_ptr<StoreDriver> make_threads_driver();

}  // namespace fastio
