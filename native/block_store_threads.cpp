// The driver "threads": pread and pwrite on a few threads, for where io_uring is forbidden.
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "block_store_driver.hpp"
#include "errors.hpp"

namespace fastio {

namespace {

constexpr unsigned kThreads = 4;
constexpr unsigned kDepth = 2 * kThreads;

class ThreadsDriver final : public StoreDriver {
  public:
    ThreadsDriver() {
        for (unsigned number = 0; number < kThreads; ++number) {
            try {
                threads_.emplace_back([this] { work(); });
            } catch (const std::system_error& error) {
                if (number == 0) throw Refused(std::string("no thread could be started: ") + error.what());
                break;
            }
        }
    }

    ~ThreadsDriver() override {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
        }
        wanted_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    unsigned depth() const override { return kDepth; }

    std::string adopt(uint8_t*, uint64_t) override { return {}; }

    void send(const DeviceCommand& command) override {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            commands_.push_back(command);
        }
        wanted_.notify_one();
    }

    void flush() override {}

    void wait() override {
        std::unique_lock<std::mutex> lock(mutex_);
        finished_.wait(lock, [this] { return !completions_.empty(); });
    }

    bool reap(DeviceCompletion& completion) override {
        std::lock_guard<std::mutex> lock(mutex_);
        if (completions_.empty()) return false;
        completion = completions_.front();
        completions_.pop_front();
        return true;
    }

    unsigned unsent() const override { return 0; }

  private:
    std::mutex mutex_;
    std::condition_variable wanted_, finished_;
    std::deque<DeviceCommand> commands_;
    std::deque<DeviceCompletion> completions_;
    bool stopping_ = false;
    std::vector<std::thread> threads_;  // last: they use all of the above

    void work() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wanted_.wait(lock, [this] { return stopping_ || !commands_.empty(); });
            if (commands_.empty()) return;
            DeviceCommand command = commands_.front();
            commands_.pop_front();
            lock.unlock();
            DeviceCompletion completion{command.tag, move(command)};
            lock.lock();
            completions_.push_back(completion);
            finished_.notify_one();
        }
    }

    static int32_t move(const DeviceCommand& command) {
        auto offset = static_cast<off_t>(command.offset);
        ssize_t moved = command.write ? pwrite(command.fd, command.memory, command.nbytes, offset)
                                      : pread(command.fd, command.memory, command.nbytes, offset);
        return static_cast<int32_t>(moved < 0 ? -errno : moved);
    }
};

}  // namespace

std::unique_ptr<StoreDriver> make_threads_driver() { return std::make_unique<ThreadsDriver>(); }

}  // namespace fastio
