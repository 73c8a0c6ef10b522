// Tests direct and cached transfers of random extents against an image of the file.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "checksum/crc32.hpp"
#include "memory/memory.hpp"
#include "tests/support/check.hpp"
#include "transfer/cached.hpp"
#include "transfer/direct.hpp"
#include "transfer/files.hpp"

namespace {

using fastio::Control;
using fastio::Extent;
using fastio::Extents;
using fastio::Patch;

std::mt19937_64 random_source(7);

uint64_t pick(uint64_t low, uint64_t high) { return low + random_source() % (high - low + 1); }

struct Case {
    std::vector<std::vector<uint8_t>> memory;
    std::vector<Extent> extents;
    std::vector<Patch> patches;
    std::vector<uint8_t> image;
};

Case make_case(size_t count, uint64_t largest) {
    Case made;
    uint64_t at = 0;
    made.memory.reserve(count);
    for (size_t index = 0; index < count; ++index) {
        at += pick(0, 3) == 0 ? pick(0, 9000) : 0;
        if (pick(0, 2) == 0) at = (at + 4095) / 4096 * 4096;
        uint64_t nbytes = pick(0, 4) == 0 ? pick(0, 40) : pick(0, largest);
        made.memory.emplace_back(nbytes + 1);
        for (uint8_t& byte : made.memory.back()) byte = static_cast<uint8_t>(random_source());
        bool literal = index % 2 == 1;
        made.extents.push_back({at, nbytes, made.memory.back().data(), !literal});
        if (literal && nbytes >= 4) {
            std::memset(made.memory.back().data(), 0, 4);
            made.patches.push_back({at, index - 1});
        }
        at += nbytes;
    }
    at += pick(0, 1) * pick(0, 5000);
    made.image.assign(at, 0);
    for (const Extent& extent : made.extents) {
        if (extent.nbytes > 0) std::memcpy(&made.image[extent.offset], extent.address, extent.nbytes);
    }
    for (const Patch& patch : made.patches) {
        const Extent& extent = made.extents[patch.index];
        uint32_t crc = fastio::crc32(0, extent.address, extent.nbytes);
        for (int byte = 0; byte < 4; ++byte) made.image[patch.offset + byte] = static_cast<uint8_t>(crc >> (8 * byte));
    }
    return made;
}

std::vector<uint8_t> contents(const std::string& path) {
    int fd = open(path.c_str(), O_RDONLY);
    std::vector<uint8_t> bytes(static_cast<size_t>(lseek(fd, 0, SEEK_END)));
    CHECK(pread(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "read back");
    close(fd);
    return bytes;
}

void check_write(const Case& made, const std::string& path, bool direct, uint64_t alignment) {
    uint64_t size = made.image.size();
    int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0, "open %s", path.c_str());
    fastio::allocate(fd, size);
    Extents extents(made.extents, size);
    Control control;
    std::vector<uint32_t> crcs;
    if (direct) {
        int other = open(path.c_str(), O_WRONLY | O_DIRECT);
        CHECK(other >= 0, "O_DIRECT");
        fastio::DirectWritten written =
            fastio::direct_write(other, size, extents, made.patches, {1 << 16, 4, alignment}, control);
        CHECK(!written.copied, "unchanged memory is not written again");
        crcs = written.checksums;
        close(other);
        CHECK(ftruncate(fd, static_cast<off_t>(size)) == 0, "truncate");
    } else {
        crcs = fastio::cached_write(fd, size, extents, made.patches, {1 << 16, 3, true}, control);
    }
    close(fd);
    CHECK(control.done == size, "the progress reaches the size");
    for (size_t index = 0; index < made.extents.size(); ++index) {
        const Extent& extent = made.extents[index];
        uint32_t wanted = extent.checksum ? fastio::crc32(0, extent.address, extent.nbytes) : 0;
        CHECK(crcs[index] == wanted, "crc of extent %zu", index);
    }
    CHECK(contents(path) == made.image, "the file equals the image (direct: %d)", direct);
}

void check_read(const Case& made, const std::string& path, bool direct, bool spanned, uint64_t alignment) {
    uint64_t size = made.image.size();
    fastio::Mapping mapping(size + 4096);
    std::vector<std::vector<uint8_t>> memory;
    std::vector<Extent> extents = made.extents;
    for (Extent& extent : extents) {
        memory.emplace_back(extent.nbytes + 1);
        extent.address = spanned ? mapping.data() + extent.offset : memory.back().data();
        extent.checksum = true;
    }
    fastio::Span span;
    if (spanned) span = {0, size, mapping.data()};
    Extents wanted(extents, size);
    Control control;
    std::vector<uint32_t> crcs;
    int fd = open(path.c_str(), O_RDONLY | (direct ? O_DIRECT : 0));
    CHECK(fd >= 0, "open to read");
    if (direct) {
        crcs = fastio::direct_read(fd, size, wanted, span, {1 << 16, 8, alignment}, control);
    } else {
        fastio::cached_read(fd, wanted, span, {1 << 18, 3, false}, control);
        for (const Extent& extent : extents) std::memset(extent.address, 0, extent.nbytes);
        crcs = fastio::cached_read(fd, wanted, span, {1 << 18, 1, true}, control);
    }
    close(fd);
    for (size_t index = 0; index < extents.size(); ++index) {
        const Extent& extent = extents[index];
        const uint8_t* expected = made.image.data() + extent.offset;
        CHECK(extent.nbytes == 0 || std::memcmp(extent.address, expected, extent.nbytes) == 0, "extent %zu", index);
        CHECK(crcs[index] == fastio::crc32(0, expected, extent.nbytes), "crc of extent %zu", index);
    }
}

// The file matches its checksums even if the memory changes during the write.
void check_changing(const std::string& path) {
    fastio::Mapping mapping(8 << 20);
    uint64_t size = mapping.nbytes();
    Extents extents({{0, size, mapping.data(), true}}, size);
    std::atomic<bool> stop{false};
    std::thread writer([&] {
        auto* words = reinterpret_cast<std::atomic<uint64_t>*>(mapping.data());
        for (uint64_t at = 0; !stop; at = (at + 8191) % (size / 8)) words[at].fetch_add(1, std::memory_order_relaxed);
    });
    int noticed = 0;
    for (int round = 0; round < 20; ++round) {
        for (bool direct : {true, false}) {
            int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | (direct ? O_DIRECT : 0), 0600);
            CHECK(fd >= 0, "open");
            Control control;
            std::vector<uint32_t> crcs;
            if (direct) {
                fastio::DirectWritten written =
                    fastio::direct_write(fd, size, extents, {}, {1 << 20, 4, 4096}, control);
                noticed += written.copied;
                crcs = written.checksums;
            } else {
                crcs = fastio::cached_write(fd, size, extents, {}, {1 << 19, 2, false}, control);
            }
            std::vector<uint8_t> bytes = contents(path);
            CHECK(crcs[0] == fastio::crc32(0, bytes.data(), bytes.size()), "the CRC is the file's (direct: %d)",
                  direct);
            CHECK(control.done == size, "progress counts each byte once (direct: %d)", direct);
            close(fd);
        }
    }
    stop = true;
    writer.join();
    CHECK(noticed > 0, "at least one direct write notices a change");
}

// If several blocks fail at once, the error has the offset of the lowest one, although it fails last: only its last
// page fails, but all of the others.
void check_lowest_failure(const std::string& path, bool direct) {
    constexpr uint64_t kBlock = 8 << 20, kBlocks = 3, kRoom = kBlock - 4096;
    fastio::Mapping memory(kBlocks * kBlock);
    std::memset(memory.data(), 1, memory.nbytes());
    const uint64_t size = memory.nbytes();
    Extents extents({{0, size, memory.data(), true}}, size);
    rlimit normal{};
    CHECK(getrlimit(RLIMIT_FSIZE, &normal) == 0, "getrlimit");
    const rlimit small{kRoom, normal.rlim_max};
    std::signal(SIGXFSZ, SIG_IGN);
    for (int round = 0; round < 10; ++round) {
        int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | (direct ? O_DIRECT : 0), 0600);
        CHECK(fd >= 0, "open");
        uint64_t written_to = 0, read_to = 0;
        Control control;
        CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0, "setrlimit");
        try {
            if (direct) {
                fastio::direct_write(fd, size, extents, {}, {kBlock, kBlocks, 4096}, control);
            } else {
                fastio::cached_write(fd, size, extents, {}, {kBlock, kBlocks, false}, control);
            }
        } catch (const fastio::SystemError& error) {
            written_to = error.error == EFBIG ? error.offset : 0;
        }
        CHECK(setrlimit(RLIMIT_FSIZE, &normal) == 0, "setrlimit");
        CHECK(written_to == kRoom, "the write fails at the limit, not at %lu (direct: %d)", (unsigned long)written_to,
              direct);
        try {
            if (direct) {
                fastio::direct_read(fd, size, extents, {}, {kBlock, kBlocks, 4096}, control);
            } else {
                fastio::cached_read(fd, extents, {}, {kBlock, kBlocks, false}, control);
            }
        } catch (const fastio::Truncated& error) {
            read_to = error.offset;
        }
        CHECK(read_to == kRoom, "the read reports the end of the file, not %lu (direct: %d)", (unsigned long)read_to,
              direct);
        close(fd);
    }
}

// Only the parts of blocks that extents fill are read.
void check_reads_only_extents(const std::string& path) {
    constexpr uint64_t kBlock = 1 << 20, kSize = 8 * kBlock;
    int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, kSize) == 0, "a file of zeros");
    std::vector<uint8_t> memory(8400, 1);
    Extents extents({{100, 200, memory.data(), true},
                     {2 * kBlock - 4096, 8192, memory.data() + 200, true},
                     {kSize - 7, 7, memory.data() + 8392, true}},
                    kSize);
    Control control;
    fastio::direct_read(fd, kSize, extents, {}, {kBlock, 4, 4096}, control);
    close(fd);
    CHECK(control.done == 4096 + 8192 + 4096, "four pages are read, not %lu bytes", (unsigned long)control.done);
    for (uint64_t at = 0; at < 8400; ++at) CHECK(memory[at] == (at < 8399 ? 0 : 1), "byte %lu", (unsigned long)at);
}

void check_staging_alignment() {
    for (uint64_t alignment = 4096; alignment <= 1 << 20; alignment *= 2) {
        fastio::Staging one(8192, alignment), other(8192, alignment);  // two, because one may be aligned by chance
        auto both = reinterpret_cast<uintptr_t>(one.data()) | reinterpret_cast<uintptr_t>(other.data());
        CHECK(both % alignment == 0, "staging is aligned to %lu", (unsigned long)alignment);
    }
}

void check_errors(const std::string& path) {
    std::vector<uint8_t> memory(1 << 20);
    Extents extents({{0, memory.size(), memory.data(), true}}, memory.size());
    int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(ftruncate(fd, 1000) == 0, "truncate");
    Control control;
    bool thrown = false;
    try {
        fastio::cached_read(fd, extents, {}, {1 << 18, 2, false}, control);
    } catch (const fastio::Truncated& error) {
        thrown = error.offset == 1000;
    }
    CHECK(thrown, "a short file is an error");
    control.cancelled = true;
    thrown = false;
    try {
        fastio::cached_write(fd, memory.size(), extents, {}, {1 << 16, 2, false}, control);
    } catch (const fastio::Refused&) {
        thrown = true;
    }
    CHECK(thrown, "a cancelled transfer stops");
    close(fd);
    thrown = false;
    Control fresh;
    try {
        fastio::direct_write(-1, memory.size(), extents, {}, {1 << 16, 4, 4096}, fresh);
    } catch (const fastio::SystemError& error) {
        thrown = error.error == EBADF;
    }
    CHECK(thrown, "a bad descriptor is an error");
    thrown = false;
    try {
        Extents overlapping({{0, 10, memory.data(), false}, {5, 10, memory.data(), false}}, 100);
    } catch (const fastio::Refused&) {
        thrown = true;
    }
    CHECK(thrown, "overlapping extents are refused");
}

}  // namespace

int main() {
    char folder[] = "transfer-test-XXXXXX";
    CHECK(mkdtemp(folder) != nullptr, "mkdtemp");
    std::string path = std::string(folder) + "/file";
    for (int round = 0; round < 60; ++round) {
        Case made = make_case(pick(0, 30), round % 3 == 0 ? 400000 : 5000);
        if (made.image.empty()) continue;
        const uint64_t alignment = 4096 << 2 * (round % 3);
        for (bool direct : {false, true}) {
            check_write(made, path, direct, alignment);
            check_read(made, path, direct, false, alignment);
            check_read(made, path, direct, true, 4096);
        }
    }
    check_staging_alignment();
    check_changing(path);
    for (bool direct : {false, true}) check_lowest_failure(path, direct);
    check_reads_only_extents(path);
    check_errors(path);
    unlink(path.c_str());
    rmdir(folder);
    std::puts("transfers: ok");
    return 0;
}
