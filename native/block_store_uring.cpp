// The driver "uring": one io_uring for all devices of a store.
#include "block_store_driver.hpp"
#include "ring.hpp"

namespace fastio {

namespace {

constexpr unsigned kDepth = 32;

class UringDriver final : public StoreDriver {
  public:
    unsigned depth() const override { return kDepth; }

    std::string adopt(uint8_t* memory, uint64_t nbytes) override {
        std::string refusal = ring_.register_memory(memory, nbytes);
        return refusal.empty() ? refusal : "io_uring does not register memory (" + refusal + ")";
    }

    void disown(uint8_t* memory) override { ring_.unregister_memory(memory); }

    void send(const DeviceCommand& command) override {
        ring_.queue(command.write, command.fd, command.memory, command.nbytes, command.offset, command.tag);
    }

    void flush() override {
        if (ring_.queued() > 0) ring_.submit(0);
    }

    void wait() override { ring_.wait(); }

    bool reap(DeviceCompletion& completion) override {
        Ring::Completion taken;
        if (!ring_.reap(taken)) return false;
        completion = {taken.tag, taken.result};
        return true;
    }

    unsigned unsent() const override { return ring_.queued(); }

    uint64_t system_calls() const override { return ring_.calls(); }

  private:
    // Forward and backward may run on different threads.
    Ring ring_{kDepth, Ring::Issuers::kAnyThread};
};

}  // namespace

std::unique_ptr<StoreDriver> make_uring_driver() { return std::make_unique<UringDriver>(); }

}  // namespace fastio
