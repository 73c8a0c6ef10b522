// Descriptors closed by another thread: all of them, before anybody who waits goes on, and before a fork.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "../late_close.hpp"
#include "check.hpp"

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

void check_fork() {
    for (int turn = 0; turn < 100; ++turn) {
        int fd = opened();
        fastio::close_later(fd);
        pid_t child = fork();
        if (child == 0) {
            bool held = is_open(fd);
            fastio::close_later(opened());  // it can do so itself
            fastio::wait_closed();
            _exit(held);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "the child has it still, or died: %d", status);
    }
}

}  // namespace

int main() {
    check_waited();
    check_threads();
    check_fork();
}
