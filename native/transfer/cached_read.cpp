#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "memory/memory.hpp"
#include "memory/populate.hpp"
#include "transfer/cached.hpp"
#include "transfer/read_ahead.hpp"
#include "transfer/read_units.hpp"
#include "transfer/workers.hpp"

namespace fastio {

namespace {

// Small enough that the checksum finds the bytes that were just read in the processor's cache.
constexpr uint64_t kChunk = 512 << 10;

// Another thread pays off for this much unpopulated memory, because faulting huge pages in may be slow: on a virtual
// machine that gives free memory back to its host, a page takes 5 ms instead of 0.1.
constexpr uint64_t kFreshBytesPerThread = 8 << 20;

unsigned useful_threads(unsigned wanted, uint64_t nbytes, bool used) {
    if (used) return wanted;
    return static_cast<unsigned>(std::clamp<uint64_t>(nbytes / kFreshBytesPerThread, 1, wanted));
}

// Whether the memory of a read was used before. Samples of it tell: it is all new, or all used.
bool is_used(const Extents& extents, const Span& span) {
    constexpr size_t kSamples = 64;
    if (span.address != nullptr) {
        for (size_t sample = 0; sample < kSamples; ++sample) {
            if (!is_populated(span.address + sample * (span.nbytes / kSamples), 1)) return false;
        }
        return is_populated(span.address + span.nbytes - 1, 1);
    }
    const auto& all = extents.all();
    const size_t step = all.size() / kSamples + 1;
    for (size_t index = 0; index < all.size(); index += step) {
        const Extent& extent = all[index];
        if (extent.address == nullptr || extent.nbytes == 0) continue;
        if (!is_populated(extent.address + extent.nbytes - 1, 1)) return false;
    }
    return true;
}

void read_all(int fd, uint8_t* memory, uint64_t nbytes, uint64_t offset) {
    while (nbytes > 0) {
        ssize_t got = pread(fd, memory, nbytes, static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw SystemError(errno, "read", offset);
        if (got == 0) throw Truncated(offset);
        memory += got;
        nbytes -= static_cast<uint64_t>(got);
        offset += static_cast<uint64_t>(got);
    }
}

// Reads [begin, end) of the file into the span, chunk by chunk.
void read_span(int fd, const Extents& extents, const Span& span, uint64_t begin, uint64_t end, ReadAhead* ahead,
               std::vector<Part>& parts) {
    uint8_t* memory = span.address + (begin - span.offset);
    populate(memory, end - begin);
    for (uint64_t at = begin; at < end; at += kChunk) {
        uint64_t stop = std::min(at + kChunk, end);
        uint8_t* target = memory + (at - begin);
        if (ahead) ahead->reach(at);
        read_all(fd, target, stop - at, at);
        extents.measure(at, stop, target, parts);
    }
}

// Reads the parts of the extents in [begin, end), each directly into its own memory, or into `scratch` if it has none.
void read_extents(int fd, const Extents& extents, uint64_t begin, uint64_t end, ReadAhead* ahead,
                  std::unique_ptr<Staging>& scratch, std::vector<Part>& parts) {
    const auto& all = extents.all();
    for (size_t index = extents.first_after(begin); index < all.size() && all[index].offset < end; ++index) {
        uint64_t from = std::max(all[index].offset, begin);
        uint64_t to = std::min(all[index].end(), end);
        for (uint64_t at = from; at < to; at += kChunk) {
            uint64_t stop = std::min(at + kChunk, to);
            if (all[index].address == nullptr && scratch == nullptr) scratch = std::make_unique<Staging>(kChunk);
            uint8_t* memory = all[index].address;
            uint8_t* target = memory == nullptr ? scratch->data() : memory + (at - all[index].offset);
            if (ahead) ahead->reach(at);
            read_all(fd, target, stop - at, at);
            extents.measure(at, stop, target, parts);
        }
    }
}

}  // namespace

std::vector<uint32_t> cached_read(int fd, const Extents& extents, const Span& span, const CachedReadOptions& options,
                                  Control& control) {
    Checksums checksums(extents.all().size());
    const bool is_span = span.address != nullptr;
    const uint64_t begin = is_span ? span.offset : extents.begin();
    const uint64_t end = is_span ? span.offset + span.nbytes : extents.end();
    if (begin == end) return checksums.values();
    const bool used = options.threads > 1 && is_used(extents, span);
    const unsigned threads = useful_threads(options.threads, end - begin, used);
    const uint64_t block = unit_size(end - begin, threads, options.block, used);
    const std::vector<ReadUnit> units = is_span ? units_of_span(span, block) : units_of_extents(extents, block);
    std::vector<std::vector<Part>> parts(units.size());
    std::vector<std::unique_ptr<Staging>> scratch(threads);  // each created on first use
    ReadAhead read_ahead(fd, extents, begin, end, is_span);
    ReadAhead* ahead = options.cold && threads == 1 ? &read_ahead : nullptr;
    run_workers(threads, units.size(), [&](unsigned thread, uint64_t number) {
        control.check();
        const auto [from, to] = units[number];
        if (is_span) {
            read_span(fd, extents, span, from, to, ahead, parts[number]);
        } else {
            read_extents(fd, extents, from, to, ahead, scratch[thread], parts[number]);
        }
        control.advance(to - from);
    });
    for (const std::vector<Part>& measured : parts) checksums.add(measured);
    return checksums.values();
}

}  // namespace fastio
