// Tests that read-ahead covers the wanted bytes near the reader, and nothing else.
#include <fcntl.h>
#include <sys/mman.h>

#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/check.hpp"
#include "tests/support/unnamed_file.hpp"
#include "transfer/read_ahead.hpp"

namespace {

using fastio::Extent;
using fastio::Extents;
using fastio::ReadAhead;

constexpr uint64_t kMiB = 1 << 20, kSize = 24 * kMiB;
constexpr size_t kPage = 4096;

// Whether the page cache has any page, or all pages, of [begin, end).
struct Pages {
    bool any, all;
};

Pages pages(int fd, uint64_t begin, uint64_t end) {
    void* memory = mmap(nullptr, kSize, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED, "mmap");
    std::vector<unsigned char> there((end - begin) / kPage);
    CHECK(mincore(static_cast<uint8_t*>(memory) + begin, end - begin, there.data()) == 0, "mincore");
    munmap(memory, kSize);
    Pages found{false, true};
    for (unsigned char page : there) (page & 1 ? found.any : found.all) = page & 1;
    return found;
}

// Waits until all pages are in the page cache. Returns false after 10 s.
bool wait_cached(int fd, uint64_t begin, uint64_t end) {
    for (int turn = 0; turn < 1000 && !pages(fd, begin, end).all; ++turn) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return pages(fd, begin, end).all;
}

// Drops the file from the page cache. Returns false if that is impossible, as on tmpfs.
bool drop(int fd) {
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return !pages(fd, 0, kSize).any;
}

void check(int fd) {
    std::vector<uint8_t> memory(kSize);
    Extents extents({{0, kMiB, memory.data(), false},
                     {4 * kMiB, 2 * kMiB, memory.data(), false},
                     {7 * kMiB, 10 * kMiB, memory.data(), false}},
                    kSize);
    if (!drop(fd)) return;
    ReadAhead wanted(fd, extents, 0, kSize, false);
    wanted.reach(0);
    CHECK(wait_cached(fd, 0, kMiB) && wait_cached(fd, 4 * kMiB, 6 * kMiB) && wait_cached(fd, 7 * kMiB, 8 * kMiB),
          "the next 8 MiB are read");
    CHECK(!pages(fd, 2 * kMiB, 4 * kMiB).any && !pages(fd, 8 * kMiB, kSize).any, "no gap and nothing beyond is read");
    wanted.reach(5 * kMiB);
    CHECK(wait_cached(fd, 8 * kMiB, 13 * kMiB), "read-ahead follows the reader");
    wanted.reach(20 * kMiB);
    CHECK(wait_cached(fd, 13 * kMiB, 17 * kMiB) && !pages(fd, 18 * kMiB, kSize).any, "it reads up to the last extent");
    CHECK(drop(fd), "the file leaves the page cache again");
    ReadAhead whole(fd, extents, kMiB, 5 * kMiB, true);
    whole.reach(kMiB);
    CHECK(wait_cached(fd, kMiB, 5 * kMiB), "a whole range is read with its gaps");
    CHECK(!pages(fd, 0, kMiB).any && !pages(fd, 6 * kMiB, kSize).any, "nothing outside the range is read");
}

}  // namespace

int main() {
    int fd = unnamed_file();
    std::vector<uint8_t> bytes(kSize, 1);
    CHECK(write(fd, bytes.data(), kSize) == static_cast<ssize_t>(kSize) && fsync(fd) == 0, "write");
    check(fd);
    close(fd);
    return 0;
}
