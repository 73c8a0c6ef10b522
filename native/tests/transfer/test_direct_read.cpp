// Tests direct reads that are large enough for several readers, in place and through staging blocks: bytes, checksums
// and errors.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "checksum/crc32.hpp"
#include "memory/memory.hpp"
#include "tests/support/check.hpp"
#include "transfer/direct.hpp"

namespace {

using fastio::Control;
using fastio::Extent;
using fastio::Extents;
using fastio::kPage;
using fastio::Mapping;
using fastio::Span;

constexpr uint64_t kSize = (80 << 20) + 1234, kRoom = (80 << 20) + kPage;
fastio::DirectOptions options{512 << 10, 64, kPage, 0};
std::mt19937_64 random_source(11);

// Returns random extents, with and without gaps, page-aligned or not, each at its file offset in `memory`.
std::vector<Extent> extents_at(uint8_t* memory) {
    std::vector<Extent> made;
    for (uint64_t at = 0; at < kSize;) {
        at += random_source() % 3 == 0 ? random_source() % 100'000 : 0;
        if (random_source() % 2 == 0) at = fastio::round_up(at, kPage);
        if (at >= kSize) break;
        uint64_t nbytes = std::min(random_source() % 3'000'000, kSize - at);
        made.push_back({at, nbytes, memory + at, random_source() % 4 != 0});
        at += nbytes;
    }
    return made;
}

void check_contents(int fd, const Mapping& image, bool spanned) {
    Mapping memory(kRoom);
    std::vector<Extent> wanted = extents_at(memory.data());
    const Span span{0, kSize, spanned ? memory.data() : nullptr};
    for (size_t index = 0; index < wanted.size() && !spanned; index += 5) wanted[index].address = nullptr;
    Control control;
    std::vector<uint32_t> crcs = fastio::direct_read(fd, kSize, Extents(wanted, kSize), span, options, control);
    for (size_t index = 0; index < wanted.size(); ++index) {
        const Extent& extent = wanted[index];
        const uint8_t* expected = image.data() + extent.offset;
        CHECK(extent.address == nullptr || std::memcmp(extent.address, expected, extent.nbytes) == 0,
              "extent %zu (spanned: %d)", index, spanned);
        uint32_t crc = extent.checksum ? fastio::crc32(0, expected, extent.nbytes) : 0;
        CHECK(crcs[index] == crc, "crc of extent %zu (spanned: %d)", index, spanned);
    }
    CHECK(!spanned || control.done == kSize, "%lu bytes counted", (unsigned long)control.done);
    CHECK(!spanned || std::memcmp(memory.data(), image.data(), kSize) == 0, "the gaps between extents are read, too");
}

// Two reads at once, one of them cancelled: after it has returned, nothing writes to its memory any more.
void check_cancelled_beside_another(int fd, const Mapping& image) {
    std::thread other([&] { check_contents(fd, image, true); });
    for (int round = 0; round < 5; ++round) {
        Mapping memory(kRoom);
        Control control;
        std::thread canceller([&] {
            while (control.done == 0) std::this_thread::yield();
            control.cancelled = true;
        });
        try {
            fastio::direct_read(fd, kSize, Extents({{0, kSize, memory.data(), true}}, kSize), {0, kSize, memory.data()},
                                options, control);
        } catch (const fastio::Refused&) {
        }
        canceller.join();
        std::memset(memory.data(), 7, kRoom);
        for (uint64_t at = 0; at < kRoom; ++at)
            CHECK(memory.data()[at] == 7, "byte %lu stays as it was", (unsigned long)at);
    }
    other.join();
}

// The file is shorter than expected: the error has the exact end, whichever reader meets it first.
void check_the_lowest_failure(int fd) {
    for (uint64_t end : {uint64_t{0}, 3 * kPage, uint64_t{65 << 20}, uint64_t{79 << 20} + kPage}) {
        CHECK(ftruncate(fd, static_cast<off_t>(end)) == 0, "truncate");
        for (int round = 0; round < 5; ++round) {
            Mapping memory(kRoom);
            uint64_t reported = kSize;
            Control control;
            try {
                fastio::direct_read(fd, kSize, Extents({{0, kSize, memory.data(), true}}, kSize),
                                    {0, kSize, memory.data()}, options, control);
            } catch (const fastio::Truncated& error) {
                reported = error.offset;
            }
            CHECK(reported == end, "expected end %lu, got %lu", (unsigned long)end, (unsigned long)reported);
        }
    }
}

void check_cancelled(int fd) {
    Mapping memory(kRoom);
    Control control;
    control.cancelled = true;
    bool refused = false;
    try {
        fastio::direct_read(fd, kSize, Extents({{0, kSize, memory.data(), true}}, kSize), {0, kSize, memory.data()},
                            options, control);
    } catch (const fastio::Refused&) {
        refused = true;
    }
    CHECK(refused, "a cancelled read stops");
}

}  // namespace

int main() {
    char path[] = "direct-read-test-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0, "mkstemp");
    Mapping image(kRoom);
    for (uint64_t at = 0; at < kRoom; at += 8) {
        uint64_t value = random_source();
        std::memcpy(image.data() + at, &value, 8);
    }
    int fd = open(path, O_RDWR | O_DIRECT);
    CHECK(fd >= 0, "O_DIRECT");
    for (unsigned threads : {0, 4}) {  // io_uring, then threads
        options.threads = threads;
        CHECK(pwrite(file, image.data(), kSize, 0) == static_cast<ssize_t>(kSize), "write");
        for (int round = 0; round < 6; ++round) {
            options.staged = round % 2 == 1;
            options.readers = 1 + static_cast<unsigned>(round);
            for (bool spanned : {true, false}) check_contents(fd, image, spanned);
        }
        check_cancelled_beside_another(fd, image);
        check_cancelled(fd);
        check_the_lowest_failure(fd);
    }
    close(fd);
    close(file);
    unlink(path);
    std::puts("direct reads: ok");
    return 0;
}
