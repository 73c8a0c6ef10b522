// Tests how a read through the page cache is divided: all bytes once, and no huge page of packed memory in two units.
#include <algorithm>
#include <cstring>
#include <vector>

#include "memory/memory.hpp"
#include "tests/support/check.hpp"
#include "transfer/read_units.hpp"

namespace {

using fastio::Extent;
using fastio::Extents;
using fastio::kHugePage;
using fastio::ReadUnit;

constexpr uint64_t kMiB = 1 << 20, kSize = 1ULL << 30;

uint8_t* at(uint64_t address) {
    uint8_t* memory;
    std::memcpy(&memory, &address, sizeof memory);
    return memory;
}

void check_all_once(const Extents& extents, const std::vector<ReadUnit>& units, uint64_t block) {
    std::vector<uint64_t> left;
    for (const Extent& extent : extents.all()) left.push_back(extent.nbytes);
    uint64_t end = 0;
    for (const ReadUnit& unit : units) {
        CHECK(unit.begin >= end && unit.end > unit.begin, "units are sorted and not empty");
        end = unit.end;
        uint64_t nbytes = 0;
        for (size_t index = 0; index < left.size(); ++index) {
            const Extent& extent = extents.all()[index];
            const uint64_t from = std::max(extent.offset, unit.begin), to = std::min(extent.end(), unit.end);
            if (to <= from) continue;
            nbytes += to - from;
            left[index] -= to - from;
        }
        CHECK(nbytes > 0 && nbytes <= block, "a unit has at most a block of bytes");
    }
    CHECK(std::count(left.begin(), left.end(), 0) == static_cast<long>(left.size()), "every byte is in a unit");
}

// A quarter of each row, packed: eight huge pages of memory from 64 MiB of the file.
void test_packed_rows_share_no_huge_page() {
    constexpr uint64_t kRow = 16 << 10, kPart = 4 << 10, kBase = 7 * kHugePage + 3 * kPart + 64;
    std::vector<Extent> rows;
    for (uint64_t row = 0; row < 8 * kHugePage / kPart; ++row) {
        rows.push_back({8 + row * kRow, kPart, at(kBase + row * kPart), false});
    }
    const Extents extents(rows, kSize);
    const std::vector<ReadUnit> units = fastio::units_of_extents(extents, 2 * kMiB);
    check_all_once(extents, units, 2 * kMiB);
    CHECK(units.size() == 9, "a unit for each huge page");
    for (size_t index = 1; index < units.size(); ++index) {
        const Extent& first = rows[extents.first_after(units[index].begin)];
        const uint64_t address = reinterpret_cast<uintptr_t>(first.address) + (units[index].begin - first.offset);
        CHECK(address % kHugePage == 0, "a unit begins with a huge page");
    }
}

void test_small_extents_anywhere_share_units() {
    std::vector<Extent> all;
    for (uint64_t number = 0; number < 1000; ++number) {
        all.push_back({number * 3000, number % 7 == 0 ? 0U : 1000U, at(kHugePage * (1000 - number) + 500), true});
    }
    const Extents extents(all, kSize);
    const std::vector<ReadUnit> units = fastio::units_of_extents(extents, kMiB / 2);
    check_all_once(extents, units, kMiB / 2);
    CHECK(units.size() < 1000 / 100, "extents that do not lie one behind the other share units");
    CHECK(fastio::units_of_extents(Extents({}, kSize), kMiB).empty(), "nothing to read");
}

void test_a_span_is_cut_at_multiples_of_the_block() {
    const std::vector<ReadUnit> units = fastio::units_of_span({3 * kMiB, 6 * kMiB, at(kHugePage)}, 2 * kMiB);
    CHECK(units.size() == 4 && units[0].begin == 3 * kMiB && units[0].end == 4 * kMiB, "the first is short");
    CHECK(units[3].begin == 8 * kMiB && units[3].end == 9 * kMiB, "the last is short");
}

// Each thread takes the next unit when it has read its last one, all at the same speed.
void test_threads_have_equal_shares() {
    constexpr uint64_t kShard = 155 * kMiB, kBlock = 2 * kMiB;
    const Extents one({{64, kShard, at(5 * kHugePage + 64), true}}, kSize);
    std::vector<Extent> many;
    for (uint64_t number = 0; number < 2000; ++number) {
        many.push_back({8 + number * 80'000, 79'000, at(kHugePage + number * 81'000), true});
    }
    for (unsigned threads : {2U, 4U, 8U, 16U}) {
        for (const Extents& extents : {one, Extents(many, kSize)}) {
            const uint64_t nbytes = extents.end() - extents.begin();
            const uint64_t size = fastio::unit_size(nbytes, threads, kBlock, true);
            const std::vector<ReadUnit> units = fastio::units_of_extents(extents, size);
            check_all_once(extents, units, kBlock);
            std::vector<uint64_t> shares(threads, 0);
            for (const ReadUnit& unit : units) *std::min_element(shares.begin(), shares.end()) += unit.end - unit.begin;
            const uint64_t most = *std::max_element(shares.begin(), shares.end());
            CHECK(most * threads <= nbytes * 105 / 100, "%u threads: one has %lu bytes of %lu", threads,
                  (unsigned long)most, (unsigned long)nbytes);
        }
        CHECK(fastio::unit_size(kShard, threads, kBlock, false) == kBlock, "new memory is faulted in by huge pages");
    }
}

}  // namespace

int main() {
    test_packed_rows_share_no_huge_page();
    test_small_extents_anywhere_share_units();
    test_threads_have_equal_shares();
    test_a_span_is_cut_at_multiples_of_the_block();
    return 0;
}
