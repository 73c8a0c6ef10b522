#include "support/deferred_close.hpp"

#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace fastio {

namespace {

struct Pending {
    std::mutex mutex;
    std::condition_variable changed;
    unsigned count = 0;

    void wait(std::unique_lock<std::mutex>& lock) {
        changed.wait(lock, [this] { return count == 0; });
    }
};

Pending* instance = nullptr;

void before_fork() {
    std::unique_lock<std::mutex> lock(instance->mutex);
    instance->wait(lock);
    lock.release();
}

void after_fork() { instance->mutex.unlock(); }

Pending& pending() {
    static Pending& own = []() -> Pending& {
        instance = new Pending;  // never destroyed: a thread may still use it at exit
        pthread_atfork(before_fork, after_fork, after_fork);
        return *instance;
    }();
    return own;
}

void close_counted(int fd) {
    ::close(fd);
    Pending& own = pending();
    std::lock_guard<std::mutex> lock(own.mutex);
    --own.count;
    own.changed.notify_all();
}

}  // namespace

void close_later(int fd) noexcept {
    {
        std::lock_guard<std::mutex> lock(pending().mutex);
        ++pending().count;
    }
    try {
        std::thread(close_counted, fd).detach();
    } catch (const std::system_error&) {  // no thread available
        close_counted(fd);
    }
}

void wait_closed() noexcept {
    std::unique_lock<std::mutex> lock(pending().mutex);
    pending().wait(lock);
}

}  // namespace fastio
