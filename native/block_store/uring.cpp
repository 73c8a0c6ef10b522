// The driver "uring": one io_uring for all devices of a store.
#include <unistd.h>

#include <array>
#include <cerrno>

#include "block_store/ring.hpp"

namespace fastio {

namespace {

constexpr unsigned kUringDepth = 32;

class UringDriver final : public RingDriver {
  public:
    UringDriver() : RingDriver(kUringDepth) {}

    unsigned depth() const override { return kUringDepth; }

    void send(const DeviceCommand& command) override {
        sent_[command.tag] = command;
        ring_.queue(command.write, command.fd, command.memory, command.nbytes, command.offset, command.tag);
    }

    bool reap(DeviceCompletion& completion) override {
        Ring::Completion taken;
        if (!ring_.reap(taken)) return false;
        completion = {taken.tag, taken.result == -ECANCELED ? transfer_on_this_thread(sent_[taken.tag]) : taken.result};
        return true;
    }

  private:
    std::array<DeviceCommand, kUringDepth> sent_{};  // by tag

    // Runs a command that the kernel cancelled with a blocking call. The submitting thread has ended, as autograd's
    // threads do, or the kernel could not start a worker thread, because the user or the container has reached its
    // process limit.
    static int32_t transfer_on_this_thread(const DeviceCommand& command) {
        const auto offset = static_cast<off_t>(command.offset);
        ssize_t moved = command.write ? ::pwrite(command.fd, command.memory, command.nbytes, offset)
                                      : ::pread(command.fd, command.memory, command.nbytes, offset);
        return moved < 0 ? -errno : static_cast<int32_t>(moved);
    }
};

}  // namespace

std::unique_ptr<StoreDriver> make_uring_driver() { return std::make_unique<UringDriver>(); }

}  // namespace fastio
