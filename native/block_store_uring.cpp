// The driver "uring": one io_uring for all devices of a store.
#include "block_store_ring.hpp"

namespace fastio {

namespace {

constexpr unsigned kDepth = 32;

class UringDriver final : public RingDriver {
  public:
    UringDriver() : RingDriver(kDepth) {}

    unsigned depth() const override { return kDepth; }

    void send(const DeviceCommand& command) override {
        ring_.queue(command.write, command.fd, command.memory, command.nbytes, command.offset, command.tag);
    }

    bool reap(DeviceCompletion& completion) override {
        Ring::Completion taken;
        if (!ring_.reap(taken)) return false;
        completion = {taken.tag, taken.result};
        return true;
    }
};

}  // namespace

std::unique_ptr<StoreDriver> make_uring_driver() { return std::make_unique<UringDriver>(); }

}  // namespace fastio
