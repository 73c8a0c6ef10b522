#include "support/latch.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace fastio {

namespace {

// The longest single wait: the kernel takes a finite number of seconds. Callers wait in a loop.
constexpr double kMaxSeconds = 3600;

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* until) {
    return ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation | FUTEX_PRIVATE_FLAG, value, until,
                     nullptr, 0);
}

}  // namespace

void Latch::open() noexcept {
    open_.store(1, std::memory_order_release);
    futex(open_, FUTEX_WAKE, INT_MAX, nullptr);
}

bool Latch::wait(double seconds) noexcept {
    if (is_open() || !(seconds > 0)) return is_open();
    seconds = std::min(seconds, kMaxSeconds);
    const auto whole = static_cast<time_t>(seconds);
    const timespec time{whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
    futex(open_, FUTEX_WAIT, 0, &time);  // the result does not matter: the word is read below
    return is_open();
}

}  // namespace fastio
