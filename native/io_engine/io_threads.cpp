#include "io_engine/io_threads.hpp"

#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "support/errors.hpp"

namespace fastio {

IoThreads::IoThreads(unsigned threads) {
    for (unsigned number = 0; number < threads; ++number) {
        try {
            threads_.emplace_back([this] { work(); });
        } catch (const std::system_error& error) {
            if (number == 0) throw Refused(std::string("no thread could be started: ") + error.what());
            return;
        }
    }
}

IoThreads::~IoThreads() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    wanted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void IoThreads::queue(bool write, int fd, void* memory, uint32_t nbytes, uint64_t offset, uint64_t tag) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        requests_.push_back({write, fd, memory, nbytes, offset, tag});
    }
    wanted_.notify_one();
}

void IoThreads::submit(unsigned wait) {
    if (wait == 0) return;
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, [this, wait] { return completions_.size() >= wait; });
}

bool IoThreads::reap(Completion& completion) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (completions_.empty()) return false;
    completion = completions_.front();
    completions_.pop_front();
    return true;
}

void IoThreads::work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        wanted_.wait(lock, [this] { return stopping_ || !requests_.empty(); });
        if (requests_.empty()) return;
        const Request request = requests_.front();
        requests_.pop_front();
        lock.unlock();
        const auto offset = static_cast<off_t>(request.offset);
        const ssize_t moved = request.write ? pwrite(request.fd, request.memory, request.nbytes, offset)
                                            : pread(request.fd, request.memory, request.nbytes, offset);
        const auto result = static_cast<int32_t>(moved < 0 ? -errno : moved);
        lock.lock();
        completions_.push_back({request.tag, result});
        finished_.notify_one();
    }
}

}  // namespace fastio
