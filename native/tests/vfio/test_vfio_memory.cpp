// Tests device addresses: PRPs against the specification, allocated addresses and mapped pieces against simple tables.
#include <map>
#include <random>
#include <vector>

#include "nvme/prp.hpp"
#include "tests/support/check.hpp"
#include "vfio/iova.hpp"
#include "vfio/memory.hpp"

namespace {

std::mt19937_64 random_source(23);

uint64_t pick(uint64_t low, uint64_t high) { return low + random_source() % (high - low + 1); }

void check_prps(uint64_t address, uint64_t nbytes) {
    constexpr uint64_t kList = 0x7000;
    std::vector<uint64_t> list(fastio::kPrpsInList + 1, 0xabcd);
    const fastio::Prps prps = fastio::make_prps(address, nbytes, list.data(), kList);
    CHECK(list.back() == 0xabcd, "the entries for %lu bytes fit in one page", (unsigned long)nbytes);
    std::vector<uint64_t> pages;
    for (uint64_t page = address / 4096 * 4096 + 4096; page < address + nbytes; page += 4096) pages.push_back(page);
    CHECK(prps.first == address, "PRP1 is the address");
    if (pages.empty()) {
        CHECK(prps.second == 0, "PRP2 is 0 if one page is enough");
    } else if (pages.size() == 1) {
        CHECK(prps.second == pages[0], "PRP2 is the second page");
    } else {
        CHECK(prps.second == kList, "PRP2 is the list");
        list.resize(pages.size());
        CHECK(list == pages, "the list of %lu bytes at %#lx", (unsigned long)nbytes, (unsigned long)address);
    }
}

void test_prps() {
    for (uint64_t within : {0, 4, 512, 4092}) {
        for (uint64_t nbytes : {512, 4096 - 512, 4096, 4097, 8192, 8192 + 512, 1 << 20, 2 << 20}) {
            check_prps(0x10000000 + within, nbytes);
        }
    }
    for (int turn = 0; turn < 2000; ++turn) {
        check_prps(pick(0, 1 << 20) * 4, pick(1, pick(1, fastio::kLargestByPrp / 4)) * 4);
    }
}

void test_addresses() {
    const std::vector<fastio::IovaAllocator::Range> ranges = {{0x1000000, 0x1ffffff}, {0, 0x2fffff}};
    fastio::IovaAllocator allocator;
    CHECK(!allocator.allocate(4096, 4096), "without ranges, nothing is allocated");
    allocator.set_ranges(ranges);
    std::map<uint64_t, uint64_t> used;
    int full = 0;
    for (int turn = 0; turn < 5000; ++turn) {
        if (!used.empty() && pick(0, 2) == 0) {
            auto chosen = std::next(used.begin(), static_cast<long>(pick(0, used.size() - 1)));
            allocator.free(chosen->first);
            used.erase(chosen);
            continue;
        }
        const uint64_t nbytes = pick(1, 200) * 4096, alignment = pick(0, 1) == 0 ? 4096 : 1 << 20;
        const uint64_t phase = pick(0, alignment / 4096 - 1) * 4096;
        const std::optional<uint64_t> address = allocator.allocate(nbytes, alignment, phase);
        if (!address) {
            ++full;
            continue;
        }
        CHECK(*address % alignment == phase, "the address has its phase");
        const uint64_t last = *address + nbytes - 1;
        bool inside = false;
        for (const auto& range : ranges) inside = inside || (*address >= range.first && last <= range.last);
        CHECK(inside && *address >= 1 << 20, "%#lx lies in a range", (unsigned long)*address);
        for (const auto& [first, end] : used) CHECK(last < first || *address > end, "allocations do not overlap");
        used[*address] = last;
    }
    CHECK(full > 0 && full < 2500, "the space is full at times, not %d times", full);
}

void test_end_of_the_address_space() {
    fastio::IovaAllocator allocator;
    allocator.set_ranges({{~uint64_t{0} - 0x1fff, ~uint64_t{0}}});
    CHECK(allocator.allocate(4096, 4096) == ~uint64_t{0} - 0x1fff, "the second-last page is allocated");
    CHECK(allocator.allocate(4096, 4096) == ~uint64_t{0} - 0xfff, "the last page is allocated");
    CHECK(!allocator.allocate(4096, 4096), "there is no further page");
    CHECK(!allocator.allocate(4096, 1 << 20, 0x1000), "the search does not wrap around");
}

void test_pieces() {
    std::vector<uint8_t> memory(1 << 16);
    fastio::MappedMemory mapped;
    uint8_t* base = memory.data();
    mapped.add({base + 1000, 1000, 0x5000});
    mapped.add({base + 2000, 96, 0x9000});
    CHECK(mapped.address_of(base + 1000, 1000) == 0x5000, "a whole piece is found");
    CHECK(mapped.address_of(base + 1999, 1) == 0x5000 + 999, "the last byte of a piece is found");
    CHECK(!mapped.address_of(base + 1999, 2),
          "memory across two pieces is not found: their addresses are not contiguous");
    CHECK(!mapped.address_of(base + 999, 2) && !mapped.address_of(base + 2096, 1),
          "memory before and behind a piece is not found");
    CHECK(mapped.overlaps(base, 1001) && !mapped.overlaps(base, 1000), "overlap at the start of a piece");
    CHECK(mapped.overlaps(base + 2095, 8) && !mapped.overlaps(base + 2096, 8), "overlap at the end of a piece");
    CHECK(mapped.overlaps(base, 1 << 16) && mapped.overlaps(base + 1500, 1), "overlap around and inside a piece");
    CHECK(!mapped.remove(base + 1001), "a piece is removed only by its start");
    CHECK(mapped.remove(base + 1000)->address == 0x5000 && !mapped.address_of(base + 1000, 1),
          "a removed piece is not found");
    CHECK(mapped.pieces().size() == 1, "the other piece stays");
}

}  // namespace

int main() {
    test_prps();
    test_addresses();
    test_end_of_the_address_space();
    test_pieces();
}
