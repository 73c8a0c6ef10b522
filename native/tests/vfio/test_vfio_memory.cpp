// Where devices find memory: PRPs against a walk by the specification, addresses and pieces against plain tables.
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
    CHECK(list.back() == 0xabcd, "more than one page of entries for %lu bytes", (unsigned long)nbytes);
    std::vector<uint64_t> pages;
    for (uint64_t page = address / 4096 * 4096 + 4096; page < address + nbytes; page += 4096) pages.push_back(page);
    CHECK(prps.first == address, "PRP1");
    if (pages.empty()) {
        CHECK(prps.second == 0, "PRP2 is reserved where one page is enough");
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
    CHECK(!allocator.allocate(4096, 4096), "no ranges yet");
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
        CHECK(*address % alignment == phase, "phase");
        const uint64_t last = *address + nbytes - 1;
        bool inside = false;
        for (const auto& range : ranges) inside = inside || (*address >= range.first && last <= range.last);
        CHECK(inside && *address >= 1 << 20, "%#lx is outside", (unsigned long)*address);
        for (const auto& [first, end] : used) CHECK(last < first || *address > end, "given twice");
        used[*address] = last;
    }
    CHECK(full > 0 && full < 2500, "%d times full", full);
}

void test_the_end_of_all_addresses() {
    fastio::IovaAllocator allocator;
    allocator.set_ranges({{~uint64_t{0} - 0x1fff, ~uint64_t{0}}});
    CHECK(allocator.allocate(4096, 4096) == ~uint64_t{0} - 0x1fff, "the page before the last");
    CHECK(allocator.allocate(4096, 4096) == ~uint64_t{0} - 0xfff, "the last page");
    CHECK(!allocator.allocate(4096, 4096), "nothing behind it");
    CHECK(!allocator.allocate(4096, 1 << 20, 0x1000), "nor by wrapping around");
}

void test_pieces() {
    std::vector<uint8_t> memory(1 << 16);
    fastio::AdoptedMemory adopted;
    uint8_t* base = memory.data();
    adopted.add({base + 1000, 1000, 0x5000});
    adopted.add({base + 2000, 96, 0x9000});
    CHECK(adopted.address_of(base + 1000, 1000) == 0x5000, "a whole piece");
    CHECK(adopted.address_of(base + 1999, 1) == 0x5000 + 999, "its last byte");
    CHECK(!adopted.address_of(base + 1999, 2), "not across two pieces: they are apart for the device");
    CHECK(!adopted.address_of(base + 999, 2) && !adopted.address_of(base + 2096, 1), "before and behind");
    CHECK(adopted.overlaps(base, 1001) && !adopted.overlaps(base, 1000), "overlap at the begin");
    CHECK(adopted.overlaps(base + 2095, 8) && !adopted.overlaps(base + 2096, 8), "overlap at the end");
    CHECK(adopted.overlaps(base, 1 << 16) && adopted.overlaps(base + 1500, 1), "overlap around and inside");
    CHECK(!adopted.remove(base + 1001), "a piece goes by its begin");
    CHECK(adopted.remove(base + 1000)->address == 0x5000 && !adopted.address_of(base + 1000, 1), "gone");
    CHECK(adopted.pieces().size() == 1, "the other stays");
}

}  // namespace

int main() {
    test_prps();
    test_addresses();
    test_the_end_of_all_addresses();
    test_pieces();
}
