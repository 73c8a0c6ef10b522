#include "transfer/staged_file.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "memory/memory.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

// Small enough that the checksum finds the bytes that were just read in the processor's cache.
constexpr uint64_t kReadChunk = 512 << 10;

constexpr uint64_t round_down(uint64_t value) { return value / kPage * kPage; }

// Returns the bytes that one system call moved; 0 at the end of the file. Throws SystemError.
template <typename Call>
uint64_t move(const Call& call, const char* operation, uint64_t offset) {
    for (;;) {
        const ssize_t moved = call();
        if (moved >= 0) return static_cast<uint64_t>(moved);
        if (errno != EINTR) throw SystemError(errno, operation, offset);
    }
}

// Moves whole pages of [at, end), as many as it can, and returns where it stopped: at the end; where a transfer ended
// within a page; or where O_DIRECT was refused, which it notes in `fd`. `call(fd, at)` moves what begins at `at`.
template <typename Call>
uint64_t move_directly(std::atomic<int>& fd, int refused, uint64_t at, uint64_t end, const char* operation,
                       const Call& call) {
    while (at < end) {
        const int direct = fd;
        if (direct < 0) return at;
        uint64_t moved = 0;
        try {
            moved = move([&] { return call(direct, at); }, operation, at);
        } catch (const SystemError& error) {
            if (error.error != EINVAL) throw;
            fd = refused;
            return at;
        }
        if (at + moved >= end) return end;
        if (moved < kPage) return at;
        at += round_down(moved);
    }
    return at;
}

}  // namespace

void OpenFile::read(uint8_t* page, uint64_t begin, uint64_t end,
                    const std::function<void(uint64_t, uint64_t)>& filled) {
    const uint64_t base = round_down(begin);
    auto read_pages = [&](int fd, uint64_t at) {
        return pread(fd, page + (at - base), round_up(end, kPage) - at, static_cast<off_t>(at));
    };
    uint64_t at = std::max(begin, move_directly(direct_, kRefused, base, end, "read", read_pages));
    if (at > begin) filled(begin, at);
    while (at < end) {
        const uint64_t stop = std::min(at + kReadChunk, end);
        for (uint64_t from = at; from < stop;) {
            const uint64_t got = move(
                [&] { return pread(fd_, page + (from - base), stop - from, static_cast<off_t>(from)); }, "read", from);
            if (got == 0) throw Truncated(from);
            from += got;
        }
        filled(at, stop);
        at = stop;
    }
}

void OpenFile::write(const uint8_t* page, uint64_t begin, uint64_t end) {
    auto write_pages = [&](int fd, uint64_t at) {
        return pwrite(fd, page + (at - begin), round_down(end) - at, static_cast<off_t>(at));
    };
    uint64_t at = move_directly(direct_, kRefused, begin, round_down(end), "write", write_pages);
    while (at < end) {
        const uint64_t put =
            move([&] { return pwrite(fd_, page + (at - begin), end - at, static_cast<off_t>(at)); }, "write", at);
        if (put == 0) throw SystemError(EIO, "write", at);
        at += put;
    }
}

}  // namespace fastio
