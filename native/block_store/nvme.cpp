// The driver "nvme": sends NVMe commands by io_uring to the kernel's passthrough devices, past block layer and file
// system.
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "block_store/devices.hpp"
#include "block_store/ring.hpp"
#include "nvme/passthrough.hpp"
#include "nvme/wire.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

constexpr unsigned kNvmeDepth = 64;
constexpr uint16_t kAbortedByHost = 0x371;  // the kernel's status for commands that a reset cancelled

static_assert(sizeof(PassthroughCommand) <= Ring::kCommandBytes);

constexpr uint32_t kPassthroughIo = _IOWR('N', 0x80, PassthroughCommand);

class NvmeDriver final : public RingDriver {
  public:
    explicit NvmeDriver(const std::vector<int>& fds) : RingDriver(kNvmeDepth, Ring::Entries::kLarge) {
        for (int fd : fds) namespaces_.push_back(identify_passthrough(fd));
        for (unsigned device = 0; device < namespaces_.size(); ++device) try_read(device);
    }

    unsigned depth() const override { return kNvmeDepth; }

    bool reaches(const uint8_t* memory, uint64_t) const override {
        return std::all_of(namespaces_.begin(), namespaces_.end(), [memory](const PassthroughNamespace& space) {
            return reinterpret_cast<uintptr_t>(memory) % space.memory_alignment == 0;
        });
    }

    uint64_t largest_transfer() const override {
        uint64_t most = StoreDriver::largest_transfer();
        for (const PassthroughNamespace& space : namespaces_) most = std::min(most, space.largest_transfer);
        return most;
    }

    std::vector<Device> devices() const override {
        std::vector<Device> list;
        for (const PassthroughNamespace& space : namespaces_) {
            list.push_back({space.name, space.nbytes / kStoreBlock, space.lba_bytes, space.model, space.serial});
        }
        return list;
    }

    std::vector<std::string> notes() const override {
        if (takes_registered_) return {};
        return {
            "this kernel takes no registered memory for NVMe commands (Invalid argument): it maps it for each command"};
    }

    void send(const DeviceCommand& command) override {
        const PassthroughNamespace& space = namespaces_[command.device];
        PassthroughCommand passthrough{};
        passthrough.opcode = command.write ? nvme::kWrite : nvme::kRead;
        passthrough.nsid = space.nsid;
        passthrough.memory = reinterpret_cast<uintptr_t>(command.memory);
        passthrough.nbytes = command.nbytes;
        nvme::set_lbas(passthrough, command.offset / space.lba_bytes, command.nbytes / space.lba_bytes);
        if (command.durable) passthrough.cdw12 |= nvme::kForceUnitAccess;
        const int registered = takes_registered_ ? ring_.registered(command.memory, command.nbytes) : -1;
        sent_[command.tag] = {command.nbytes, registered >= 0};
        ring_.queue_command(space.fd, kPassthroughIo, &passthrough, sizeof passthrough, registered, command.tag);
    }

    bool reap(DeviceCompletion& completion) override {
        Ring::Completion taken;
        if (!ring_.reap(taken)) return false;
        const Sent& sent = sent_[taken.tag];
        if (taken.result > 0) {
            completion = {taken.tag, -EIO, static_cast<uint16_t>(taken.result)};
        } else if (taken.result == -EINTR) {
            completion = {taken.tag, -EIO, kAbortedByHost};
        } else if (taken.result == -EINVAL && sent.registered) {
            // Kernels before 6.12 count all pages up to the end of the registered buffer, and refuse so many.
            takes_registered_ = false;
            completion = {taken.tag, -EAGAIN};
        } else {
            completion = {taken.tag, taken.result == 0 ? static_cast<int32_t>(sent.nbytes) : taken.result};
        }
        return true;
    }

  private:
    struct Sent {
        uint32_t nbytes = 0;
        bool registered = false;
    };

    std::vector<PassthroughNamespace> namespaces_;
    std::array<Sent, kNvmeDepth> sent_{};
    bool takes_registered_ = true;

    // Reads one block, because a kernel that forbids or lacks passthrough fails only the first data command.
    void try_read(unsigned device) {
        alignas(kStoreBlock) uint8_t block[kStoreBlock] = {};
        send({false, device, -1, block, kStoreBlock, 0, 0});
        ring_.submit(1);
        Ring::Completion taken;
        while (!ring_.reap(taken)) ring_.wait();
        if (taken.result >= 0 || taken.result == -EINTR) return;  // the store reports NVMe errors
        const bool forbidden = taken.result == -EACCES || taken.result == -EPERM;
        throw Refused(namespaces_[device].name + " refuses NVMe commands by io_uring (" + std::strerror(-taken.result) +
                      (forbidden ? "): before Linux 6.2 they need root (CAP_SYS_ADMIN)"
                                 : "): they need Linux 5.19 and the passthrough device /dev/ngXnY; without \"nvme:\","
                                   " use the block device /dev/nvmeXnY"));
    }
};

}  // namespace

std::unique_ptr<StoreDriver> make_nvme_driver(const std::vector<int>& fds) { return std::make_unique<NvmeDriver>(fds); }

}  // namespace fastio
