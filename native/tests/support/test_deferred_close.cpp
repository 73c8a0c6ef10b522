// Descriptors closed by another thread: all of them, before anybody who waits goes on, and before a fork.
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

void check_waited() {
    for (int turn = 0; turn < 200; ++turn) {
        std::vector<int> fds;
        for (int count = 0; count < 5; ++count) fds.push_back(opened());
        for (int fd : fds) fastio::close_later(fd);
        fastio::wait_closed();
        for (int fd : fds) CHECK(!is_open(fd), "%d", fd);
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
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child has it still, or died: %d", status);
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

// A thread that has closed may still be ending. If it is in AddressSanitizer's allocator when the process forks, that
// is locked in the child for good (malloc's own is not): so none is.
void wait_alone() {
    for (bool alone = false; !alone; std::this_thread::yield()) {
        const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
        alone = std::distance(begin(tasks), end(tasks)) == 1;
    }
}

[[maybe_unused]] void check_a_child_closes_later_itself() {
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
    check_waited();
    check_threads();
    check_fork();
#ifndef __SANITIZE_THREAD__  // it has a thread of its own in each process, and starts none in a child of fork
    check_a_child_closes_later_itself();
#endif
}
