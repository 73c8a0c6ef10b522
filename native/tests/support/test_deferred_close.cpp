// Tests that deferred closes are done before wait_closed() returns, and before a fork.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include "support/deferred_close.hpp"
#include "tests/support/check.hpp"

namespace {

int opened() { return open("/", O_PATH | O_CLOEXEC); }

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

void check_wait_closed() {
    for (int turn = 0; turn < 200; ++turn) {
        std::vector<int> fds;
        for (int count = 0; count < 5; ++count) fds.push_back(opened());
        for (int fd : fds) fastio::close_later(fd);
        fastio::wait_closed();
        for (int fd : fds) CHECK(!is_open(fd), "descriptor %d is closed", fd);
    }
}

void check_threads() {
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number) {
        threads.emplace_back([] {
            for (int turn = 0; turn < 200; ++turn) {
                fastio::close_later(opened());
                if (turn % 3 == 0) fastio::wait_closed();
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    fastio::wait_closed();
}

void check_ended(pid_t child) {
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child has the descriptor closed, status 0; got %d",
          status);
}

void check_fork() {
    for (int turn = 0; turn < 100; ++turn) {
        int fd = opened();
        fastio::close_later(fd);
        pid_t child = fork();
        if (child == 0) _exit(is_open(fd));
        check_ended(child);
    }
}

// Waits until the closing threads have ended. If one is in AddressSanitizer's allocator during a fork, the child
// inherits its lock locked (malloc's own lock is safe).
void wait_alone() {
    for (bool alone = false; !alone; std::this_thread::yield()) {
        const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
        alone = std::distance(begin(tasks), end(tasks)) == 1;
    }
}

[[maybe_unused]] void check_close_later_in_a_child() {
    for (int turn = 0; turn < 100; ++turn) {
        fastio::close_later(opened());
        wait_alone();
        pid_t child = fork();
        if (child == 0) {
            int fd = opened();
            fastio::close_later(fd);
            fastio::wait_closed();
            _exit(is_open(fd));
        }
        check_ended(child);
    }
}

}  // namespace

int main() {
    check_wait_closed();
    check_threads();
    check_fork();
#ifndef __SANITIZE_THREAD__  // it runs a thread of its own, and starts no threads in a forked child
    check_close_later_in_a_child();
#endif
}
