#include "memory/populate.hpp"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "memory/memory.hpp"
#include "support/fork_safe_singleton.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace fastio {

namespace {

// More than 2 MiB of small pages take, 0.9 ms, and far more than a huge page that the host still has, 0.2 ms.
constexpr double kSlowSeconds = 1.5e-3, kSlowNbytes = kHugePage;
constexpr double kPopulatedSeconds = 1e-4;  // below this, the huge page was faulted in before

constexpr uint64_t kPiece = 32 << 20;  // what a thread populates at a time: whole huge pages
constexpr uint64_t kMaxThreads = 8;    // more would only share the bandwidth of memory

// How many processors this thread may run on.
uint64_t allowed_processors() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<uint64_t>(CPU_COUNT(&set)) : 1;
}

// CPU time of this thread: other programs and threads do not add to it, but the work of the host does.
double thread_cpu_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Shared {
    std::mutex mutex;
    PageChoice choice;
};

}  // namespace

void PageChoice::record(uint64_t nbytes, double seconds) {
    const double huge_pages = static_cast<double>(nbytes) / kSlowNbytes;
    bool slow = seconds > kSlowSeconds * std::max(1.0, huge_pages);
    if (small() && seconds < kPopulatedSeconds * huge_pages) return;  // they were faulted in before
    if (!small()) {
        small_left_ = slow ? interval_ : 0;
        if (slow) interval_ = std::min(2 * interval_, kMaxInterval);
        if (!slow && seconds > kPopulatedSeconds) interval_ = kMinInterval;
    } else {
        small_left_ = slow ? 0 : small_left_ - std::min(small_left_, nbytes);
    }
}

bool is_populated(const uint8_t* address, uint64_t nbytes) {
    const uint64_t begin = reinterpret_cast<uintptr_t>(address) / kPage * kPage;
    const uint64_t end = round_up(reinterpret_cast<uintptr_t>(address) + nbytes, kPage);
    std::vector<unsigned char> pages((end - begin) / kPage);
    if (mincore(reinterpret_cast<void*>(begin), end - begin, pages.data()) != 0) return false;
    return std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

void populate(uint8_t* address, uint64_t nbytes) noexcept {
    uint64_t begin = reinterpret_cast<uintptr_t>(address) / kPage * kPage;
    uint64_t end = round_up(reinterpret_cast<uintptr_t>(address) + nbytes, kPage);
    void* data = reinterpret_cast<void*>(begin);
    Shared& all = fork_safe_singleton<Shared>();
    bool small = false;
    {
        std::lock_guard<std::mutex> lock(all.mutex);
        small = all.choice.small();
    }
    if (small) madvise(data, end - begin, MADV_NOHUGEPAGE);
    double began = thread_cpu_seconds();
    if (madvise(data, end - begin, MADV_POPULATE_WRITE) != 0) return;
    double took = thread_cpu_seconds() - began;
    std::lock_guard<std::mutex> lock(all.mutex);
    if (small == all.choice.small()) all.choice.record(end - begin, took);
}

void populate_in_threads(uint8_t* address, uint64_t nbytes) noexcept {
    const uint64_t pieces = (nbytes + kPiece - 1) / kPiece;
    std::atomic<uint64_t> next{0};
    auto work = [&]() noexcept {
        for (uint64_t piece = next++; piece < pieces; piece = next++) {
            populate(address + piece * kPiece, std::min(kPiece, nbytes - piece * kPiece));
        }
    };
    std::vector<std::thread> threads;
    try {
        threads.reserve(kMaxThreads);  // so that no thread is lost when the vector grows
        uint64_t wanted = std::min<uint64_t>({allowed_processors(), kMaxThreads, pieces});
        while (threads.size() + 1 < wanted) threads.emplace_back(work);
    } catch (const std::exception&) {  // no memory or no threads: fewer do the work
    }
    work();
    for (std::thread& thread : threads) thread.join();
}

}  // namespace fastio
