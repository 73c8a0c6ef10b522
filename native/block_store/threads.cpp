// The driver "threads": pread and pwrite on a few threads, for where io_uring is forbidden.
#include "block_store/driver.hpp"
#include "io_engine/io_threads.hpp"

namespace fastio {

namespace {

constexpr unsigned kThreads = 4;
constexpr unsigned kThreadDepth = 2 * kThreads;

class ThreadsDriver final : public StoreDriver {
  public:
    unsigned depth() const override { return kThreadDepth; }

    std::string map_memory(uint8_t*, uint64_t) override { return {}; }

    void send(const DeviceCommand& command) override {
        threads_.queue(command.write, command.fd, command.memory, command.nbytes, command.offset, command.tag);
    }

    void flush() override {}

    void wait() override { threads_.submit(1); }

    bool reap(DeviceCompletion& completion) override {
        IoEngine::Completion done{};
        if (!threads_.reap(done)) return false;
        completion = {done.tag, done.result};
        return true;
    }

    unsigned unsent() const override { return 0; }

  private:
    IoThreads threads_{kThreads};
};

}  // namespace

std::unique_ptr<StoreDriver> make_threads_driver() { return std::make_unique<ThreadsDriver>(); }

}  // namespace fastio
