#include "transfer/read_units.hpp"

#include <algorithm>

#include "memory/memory.hpp"

namespace fastio {

namespace {

// The last units leave at most a thirty-second of each thread's share to one of them. Smaller units cost more than they
// gain.
constexpr uint64_t kUnitsPerThread = 32, kSmallestUnit = 512 << 10;

}  // namespace

uint64_t unit_size(uint64_t nbytes, unsigned threads, uint64_t block, bool used) {
    if (!used || block <= kSmallestUnit) return block;
    return std::clamp(round_up(nbytes / (kUnitsPerThread * threads), kSmallestUnit), kSmallestUnit, block);
}

std::vector<ReadUnit> units_of_span(const Span& span, uint64_t block) {
    std::vector<ReadUnit> units;
    const uint64_t end = span.offset + span.nbytes;
    for (uint64_t at = span.offset; at < end; at = units.back().end) {
        units.push_back({at, std::min((at / block + 1) * block, end)});
    }
    return units;
}

std::vector<ReadUnit> units_of_extents(const Extents& extents, uint64_t block) {
    std::vector<ReadUnit> units;
    uint64_t held = block;  // bytes of the last unit; the first extent begins one
    uint64_t behind = 0;    // the address behind the last piece
    for (const Extent& extent : extents.all()) {
        for (uint64_t at = 0; at < extent.nbytes;) {
            const uint64_t address = reinterpret_cast<uintptr_t>(extent.address) + at;
            const uint64_t in_page = address % kHugePage;
            const bool follows = address >= behind && address - behind < kPage;
            const bool enters_page = follows && in_page <= address - behind;
            if (held == block || enters_page) {
                units.push_back({extent.offset + at, 0});
                held = 0;
            }
            const uint64_t nbytes = std::min({extent.nbytes - at, block - held, kHugePage - in_page});
            at += nbytes;
            held += nbytes;
            units.back().end = extent.offset + at;
            behind = address + nbytes;
        }
    }
    return units;
}

}  // namespace fastio
