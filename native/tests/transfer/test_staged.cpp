// Tests staged transfers on a device that copies as late as it may, with copies, reads and writes that fail.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "checksum/crc32.hpp"
#include "memory/memory.hpp"
#include "tests/support/check.hpp"
#include "tests/support/unnamed_file.hpp"
#include "tests/transfer/staged_stand_ins.hpp"
#include "transfer/staged.hpp"

namespace {

using fastio::Control;
using fastio::Extent;
using fastio::Extents;
using fastio::kPage;
using fastio::Patch;

constexpr uint64_t kWindow = 4 * kPage;

std::mt19937_64 random_source(11);

uint64_t pick(uint64_t low, uint64_t high) { return low + random_source() % (high - low + 1); }

// Staging memory of some workers.
class Memory {
  public:
    explicit Memory(unsigned workers) : staging_(workers * 2 * kWindow) {
        for (unsigned worker = 0; worker < workers; ++worker) {
            memory.buffers.push_back(staging_.data() + worker * 2 * kWindow);
        }
    }
    fastio::StagedMemory memory{{}, kWindow};

  private:
    fastio::Mapping staging_;
};

// Extents on two devices and the host, with patches, and the image of their file.
struct Case {
    std::vector<std::vector<uint8_t>> memory;
    std::vector<Extent> extents;
    std::vector<int> devices;
    std::vector<Patch> patches;
    std::vector<uint8_t> image;

    explicit Case(size_t count) {
        uint64_t at = 0;
        for (size_t index = 0; index < count; ++index) {
            if (pick(0, 2) == 0) at += pick(0, 3) == 0 ? 50 * kPage : pick(0, 300);
            memory.emplace_back(pick(0, 3) == 0 ? pick(0, 40) : pick(0, 6 * kPage));
            for (uint8_t& byte : memory.back()) byte = static_cast<uint8_t>(random_source());
            const bool literal = index % 5 == 4 && memory.back().size() >= 4;
            extents.push_back({at, memory.back().size(), memory.back().data(), !literal && pick(0, 3) > 0});
            devices.push_back(static_cast<int>(pick(0, 2)) - 1);
            if (literal && extents[index - 1].checksum) patches.push_back({at, index - 1});
            at += memory.back().size();
        }
        image.assign(at, 0);
        for (const Extent& extent : extents) {
            if (extent.nbytes > 0) std::memcpy(&image[extent.offset], extent.address, extent.nbytes);
        }
        for (const Patch& patch : patches) {
            const uint32_t crc = crc_of(patch.index);
            for (int byte = 0; byte < 4; ++byte) image[patch.offset + byte] = static_cast<uint8_t>(crc >> (8 * byte));
        }
    }

    uint32_t crc_of(size_t index) const { return fastio::crc32(0, memory[index].data(), memory[index].size()); }

    void check(const std::vector<uint32_t>& crcs) const {
        for (size_t index = 0; index < extents.size(); ++index) {
            CHECK(crcs[index] == (extents[index].checksum ? crc_of(index) : 0), "the CRC of extent %zu", index);
        }
    }
};

void test_bytes_and_checksums() {
    for (int round = 0; round < 60; ++round) {
        Case made(pick(1, 30));
        const uint64_t size = made.image.size();
        Memory staging(static_cast<unsigned>(pick(1, 5)));
        LateDevice device;
        const fastio::StagedPlaces places{made.devices, device.copies()};
        Control control;
        MemoryFile file(std::vector<uint8_t>(size, 0));
        made.check(fastio::staged_write(file, size, Extents(made.extents, size), made.patches, places, staging.memory,
                                        control));
        CHECK(file.bytes == made.image, "the file is the image");

        std::vector<std::vector<uint8_t>> filled;
        std::vector<Extent> targets = made.extents;
        for (Extent& target : targets) {
            filled.emplace_back(target.nbytes + 1, uint8_t{0xA5});
            target.address = filled.back().data();
        }
        for (size_t index = 0; index < targets.size(); ++index) {  // with the patches
            const auto begin = made.image.begin() + static_cast<ptrdiff_t>(targets[index].offset);
            made.memory[index].assign(begin, begin + static_cast<ptrdiff_t>(targets[index].nbytes));
        }
        made.check(fastio::staged_read(file, Extents(targets, size), {}, places, staging.memory, control));
        for (size_t index = 0; index < targets.size(); ++index) {
            CHECK(filled[index].back() == 0xA5, "nothing behind extent %zu is changed", index);
            filled[index].pop_back();
            CHECK(filled[index] == made.memory[index], "extent %zu is filled", index);
        }
        CHECK(device.alive() == 0, "streams or events are left");
    }
}

void test_a_span_is_filled_by_one_copy_a_window() {
    const uint64_t size = 8 * kWindow;
    std::vector<Extent> extents;
    std::vector<uint8_t> memory(size);
    for (uint64_t at = 0; at < size; at += 1000) {
        extents.push_back({at, std::min<uint64_t>(990, size - at), &memory[at], false});
    }
    std::vector<uint8_t> contents(size);
    for (uint8_t& byte : contents) byte = static_cast<uint8_t>(random_source());
    MemoryFile file(contents);
    LateDevice device;
    Memory staging(3);
    Control control;
    const fastio::StagedPlaces places{std::vector<int>(extents.size(), 0), device.copies()};
    fastio::staged_read(file, Extents(extents, size), {0, size, memory.data()}, places, staging.memory, control);
    CHECK(device.started() == 8, "%lld copies, expected one for each window", (long long)device.started());
    for (const Extent& extent : extents) {
        CHECK(std::memcmp(extent.address, &contents[extent.offset], extent.nbytes) == 0, "an extent is filled");
    }
}

// One extent of `windows` windows on a device.
struct Plain {
    explicit Plain(uint64_t windows)
        : memory(windows * kWindow), size(memory.size()), extents({{0, size, memory.data(), true}}, size) {}

    std::vector<uint8_t> memory;
    uint64_t size;
    Extents extents;

    void move(bool write, fastio::StagedFile& file, unsigned workers, const LateDevice& device) {
        Memory staging(workers);
        Control control;
        const fastio::StagedPlaces places{{0}, device.copies()};
        if (write) {
            fastio::staged_write(file, size, extents, {}, places, staging.memory, control);
        } else {
            fastio::staged_read(file, extents, {}, places, staging.memory, control);
        }
    }
};

constexpr uint64_t kWindows = 9;

void test_a_copy_that_fails_at_each_window() {
    for (const bool write : {false, true}) {
        for (unsigned workers = 1; workers <= 3; ++workers) {
            for (int64_t number = 0; number < static_cast<int64_t>(kWindows); ++number) {
                for (const bool at_start : {false, true}) {
                    LateDevice device(at_start ? LateDevice::Faults{number, -1} : LateDevice::Faults{-1, number});
                    Plain plain(kWindows);
                    MemoryFile file(std::vector<uint8_t>(plain.size));
                    std::string reason;
                    try {
                        plain.move(write, file, workers, device);
                    } catch (const fastio::Refused& error) {
                        reason = error.reason;
                    }
                    CHECK(reason.find(at_start ? "cannot start" : "copy failed") != std::string::npos, "got '%s'",
                          reason.c_str());
                    CHECK(device.alive() == 0, "streams or events are left");
                }
            }
        }
    }
}

// The read or write of window `number` fails. With `after`, it waits until that of window `after` has failed.
void check_failing_file(bool write, unsigned workers, uint64_t number, uint64_t after) {
    std::mutex mutex;
    std::condition_variable changed;
    bool has_failed = after == number;
    uint64_t started = 0;
    auto before = [&](uint64_t offset) {
        std::unique_lock<std::mutex> lock(mutex);
        ++started;
        if (offset / kWindow == number) {
            changed.wait(lock, [&] { return has_failed; });
            throw fastio::SystemError(EIO, "move", offset);
        }
        if (offset / kWindow == after) {
            has_failed = true;
            changed.notify_all();
            throw fastio::SystemError(EIO, "move", offset);
        }
    };
    LateDevice device;
    Plain plain(kWindows);
    MemoryFile file(std::vector<uint8_t>(plain.size), before);
    uint64_t offset = UINT64_MAX;
    try {
        plain.move(write, file, workers, device);
    } catch (const fastio::SystemError& error) {
        CHECK(error.error == EIO, "the errno");
        offset = error.offset;
    }
    CHECK(offset == number * kWindow, "the error is of offset %llu, expected that of window %llu",
          (unsigned long long)offset, (unsigned long long)number);
    CHECK(device.alive() == 0, "streams or events are left");
    CHECK(workers > 1 || started == number + 1, "nothing is started after an error");
}

void test_a_file_that_fails_at_each_window() {
    for (const bool write : {false, true}) {
        for (uint64_t number = 0; number < kWindows; ++number) {
            for (unsigned workers = 1; workers <= 3; ++workers) check_failing_file(write, workers, number, number);
        }
    }
    // The lowest window's error is thrown, though a later one failed before it.
    for (uint64_t number = 0; number + 1 < kWindows; ++number) check_failing_file(false, 2, number, number + 1);
}

// While the read of window 2 fails, the other worker reads window 3, until the failed one has ended.
void test_the_other_worker_starts_nothing_after_an_error() {
    LateDevice device;
    std::atomic<uint64_t> started{0};
    auto before = [&](uint64_t offset) {
        ++started;
        while (offset < 2 * kWindow && started < 2) {  // each worker has one of the first two windows
        }
        if (offset == 2 * kWindow) {
            while (device.alive() < 4) {  // each has a stream and an event
            }
            throw fastio::SystemError(EIO, "read", offset);
        }
        while (offset > 2 * kWindow && device.alive() >= 4) {
        }
    };
    Plain plain(kWindows);
    MemoryFile file(std::vector<uint8_t>(plain.size), before);
    bool failed = false;
    try {
        plain.move(false, file, 2, device);
    } catch (const fastio::SystemError&) {
        failed = true;
    }
    CHECK(failed && started <= 4, "%llu windows were started", (unsigned long long)started);
}

void test_cancelling_starts_nothing_more() {
    LateDevice device;
    Plain plain(kWindows);
    Control control;
    uint64_t reads = 0;
    MemoryFile file(std::vector<uint8_t>(plain.size), [&](uint64_t) { control.cancelled = ++reads == 3; });
    Memory staging(1);
    bool refused = false;
    try {
        fastio::staged_read(file, plain.extents, {}, {{0}, device.copies()}, staging.memory, control);
    } catch (const fastio::Refused&) {
        refused = true;
    }
    CHECK(refused && reads == 3, "%llu windows were read", (unsigned long long)reads);
    CHECK(control.done == 3 * kWindow, "the progress");
    CHECK(device.alive() == 0, "streams or events are left");
}

// A file with O_DIRECT, and memory that is not aligned for it: the rest goes through the page cache.
void test_memory_that_direct_io_refuses() {
    const int fd = unnamed_file();
    const int direct = open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_DIRECT);
    const fastio::Mapping memory(8 * kPage);
    const uint64_t size = 3 * kPage + 77;
    for (const uint64_t shift : {0, 1}) {
        uint8_t* page = memory.data() + shift;
        for (uint64_t at = 0; at < size; ++at) page[at] = static_cast<uint8_t>(at * 3 + at / 256 + shift);
        const std::vector<uint8_t> expected(page, page + size);
        fastio::OpenFile file(fd, direct);
        file.write(page, 0, size);
        const bool takes_it = direct < 0 || pread(direct, page, kPage, 0) >= 0;
        std::memset(page, 0, size);
        uint64_t seen = 100;
        file.read(page, 100, size, [&](uint64_t from, uint64_t to) {
            CHECK(from == seen && to > from && std::memcmp(page + from, &expected[from], to - from) == 0, "a part");
            seen = to;
        });
        CHECK(seen == size, "read up to %llu", (unsigned long long)seen);
        CHECK(file.was_refused() == !takes_it, "whether it was refused");
        try {
            file.read(page, kPage, size + 1, [](uint64_t, uint64_t) {});
            CHECK(false, "the file is too short");
        } catch (const fastio::Truncated& error) {
            CHECK(error.offset == size, "the offset");
        }
    }
    close(fd);
    if (direct >= 0) close(direct);
}

}  // namespace

int main() {
    test_bytes_and_checksums();
    test_a_span_is_filled_by_one_copy_a_window();
    test_a_copy_that_fails_at_each_window();
    test_a_file_that_fails_at_each_window();
    test_the_other_worker_starts_nothing_after_an_error();
    test_cancelling_starts_nothing_more();
    test_memory_that_direct_io_refuses();
    return 0;
}
