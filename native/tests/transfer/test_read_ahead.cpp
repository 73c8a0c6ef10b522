// What is told to the kernel: what is wanted and near, and nothing else.
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

// Whether the page cache has any page, or every page, of [begin, end).
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

bool come(int fd, uint64_t begin, uint64_t end) {
    for (int turn = 0; turn < 1000 && !pages(fd, begin, end).all; ++turn) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return pages(fd, begin, end).all;
}

// False where the file cannot leave the page cache, as in memory.
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
    CHECK(come(fd, 0, kMiB) && come(fd, 4 * kMiB, 6 * kMiB) && come(fd, 7 * kMiB, 8 * kMiB), "the next 8 MiB");
    CHECK(!pages(fd, 2 * kMiB, 4 * kMiB).any && !pages(fd, 8 * kMiB, kSize).any, "no gap, nothing further");
    wanted.reach(5 * kMiB);
    CHECK(come(fd, 8 * kMiB, 13 * kMiB), "further, as the reader goes on");
    wanted.reach(20 * kMiB);
    CHECK(come(fd, 13 * kMiB, 17 * kMiB) && !pages(fd, 18 * kMiB, kSize).any, "up to the last");
    CHECK(drop(fd), "out of the cache again");
    ReadAhead whole(fd, extents, kMiB, 5 * kMiB, true);
    whole.reach(kMiB);
    CHECK(come(fd, kMiB, 5 * kMiB), "gaps too, where they are read");
    CHECK(!pages(fd, 0, kMiB).any && !pages(fd, 6 * kMiB, kSize).any, "and no more than that");
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
