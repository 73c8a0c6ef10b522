#include "counts.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "describe.hpp"
#include "host.hpp"
#include "memory/memory.hpp"
#include "tests/support/check.hpp"
#include "vfio/peer.hpp"

namespace rig {

namespace {

constexpr uint64_t kMiB = 1 << 20, kBlob = 4 * kMiB;

struct Cost {
    uint64_t commands, doorbells, system_calls, copied;
};

void report(const Cost& cost) {
    ask("counts end mib=" + std::to_string(2 * kBlob / kMiB) + " commands=" + std::to_string(cost.commands) +
        " doorbells=" + std::to_string(cost.doorbells) + " system_calls=" + std::to_string(cost.system_calls) +
        " copied=" + std::to_string(cost.copied));
}

void by_store(const std::string& driver, const Places& places, uint8_t* memory, const std::string& label) {
    auto store = open_store(driver, places);
    store->map(memory, kBlob);
    const fastio::BlockStore::Stats before = store->stats();
    ask("counts begin " + label);
    std::optional<fastio::BlockStore::Failure> failure;
    for (bool write : {true, false}) {
        store->issue(1, memory, kBlob, write);
        store->wait(1, failure);
        CHECK(!failure, "%s", describe(driver, *failure).c_str());
    }
    const fastio::BlockStore::Stats stats = store->stats();
    const Cost cost{stats.commands_written + stats.commands_read, stats.doorbells - before.doorbells,
                    stats.system_calls - before.system_calls, 2 * stats.bytes_bounced};
    report(cost);
}

void by_kernel(bool cached, const std::string& place, uint8_t* memory, const std::string& label) {
    const std::string path = kernel_device(place);
    const int fd = open(path.c_str(), cached ? O_RDWR : O_RDWR | O_DIRECT);
    CHECK(fd >= 0, "open %s: %s", path.c_str(), std::strerror(errno));
    ask("counts begin " + label);
    Cost cost{};
    for (bool write : {true, false}) {
        if (cached && !write) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);  // or nothing is read from the disk
        for (uint64_t at = 0; at < kBlob; at += kMiB) {
            const auto offset = static_cast<off_t>(at);
            const ssize_t moved = write ? pwrite(fd, memory + at, kMiB, offset) : pread(fd, memory + at, kMiB, offset);
            CHECK(moved == static_cast<ssize_t>(kMiB), "%s moved %zd bytes", path.c_str(), moved);
            ++cost.system_calls;
            // The copy between page cache and buffer reads and writes each byte once.
            if (cached) cost.copied += 2 * kMiB;
        }
        if (!cached || !write) continue;
        CHECK(fsync(fd) == 0, "fsync: %s", std::strerror(errno));
        ++cost.system_calls;
    }
    report(cost);
    close(fd);
}

}  // namespace

void test_counts(const std::string& driver, const Places& places) {
    fastio::Mapping mapping(kBlob);
    std::memset(mapping.data(), 1, kBlob);
    if (driver == "pread" || driver == "pread-cached") {
        by_kernel(driver == "pread-cached", places.at(0), mapping.data(), driver);
    } else {
        by_store(driver, places, mapping.data(), driver);
    }
}

void test_counts_in_bar(const std::string& driver, const Places& places) {
    const fastio::VfioPeer bar(kPeer, kPeerBar);
    by_store(driver, places, bar.address() + kPeerSpare, driver + ", peer memory");
}

}  // namespace rig
