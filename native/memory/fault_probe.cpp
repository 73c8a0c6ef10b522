#include "memory/fault_probe.hpp"

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "memory/memory.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

constexpr int kCannotMap = 1;

// Makes system calls only: other threads may have held any lock when the child was made.
[[noreturn]] void read_all_pages(int fd, uint64_t nbytes) {
    prctl(PR_SET_DUMPABLE, 0);  // no core file
    std::signal(SIGBUS, SIG_DFL);
    std::signal(SIGSEGV, SIG_DFL);
    void* mapped = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) _exit(kCannotMap);
    const volatile uint8_t* bytes = static_cast<uint8_t*>(mapped);
    for (uint64_t at = 0; at < nbytes; at += kPage) (void)bytes[at];
    _exit(0);
}

}  // namespace

int fault_signal(int fd, uint64_t nbytes) {
    // Not fork(): its handlers are for children that go on. Without an exit signal the program's SIGCHLD handler does
    // not run, and does not take the status.
    long child = syscall(SYS_clone, 0, nullptr, nullptr, nullptr, nullptr);
    if (child == 0) read_all_pages(fd, nbytes);
    if (child < 0) throw SystemError(errno, "clone", 0);
    int status = 0;
    while (waitpid(static_cast<pid_t>(child), &status, __WALL) < 0) {
        if (errno != EINTR) throw SystemError(errno, "waitpid", 0);
    }
    if (WIFSIGNALED(status)) return WTERMSIG(status);
    return WEXITSTATUS(status) == 0 ? 0 : -1;
}

}  // namespace fastio
