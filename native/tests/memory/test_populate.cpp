// Tests the choice of page size, small pages for a while after a slow huge page, and that all pages are faulted in.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "memory/memory.hpp"
#include "memory/populate.hpp"
#include "tests/support/check.hpp"

namespace {

using fastio::kHugePage;
using fastio::kPage;
using fastio::Mapping;
using fastio::PageChoice;

constexpr double kSlow = 5e-3, kFast = 2e-4, kSmall = 9e-4, kPopulated = 4e-5;  // seconds of 2 MiB

// Returns how many bytes of small pages are used, at `seconds` per 2 MiB, until a huge page is tried again.
uint64_t small_interval(PageChoice& choice, double seconds) {
    uint64_t taken = 0;
    for (; choice.small(); taken += kHugePage) choice.record(kHugePage, seconds);
    return taken;
}

void check_choice() {
    PageChoice choice;
    for (int page = 0; page < 100; ++page) choice.record(kHugePage, kFast);
    CHECK(!choice.small(), "huge pages are used while they are fast");
    choice.record(512 << 10, kSlow);
    CHECK(choice.small(), "a part of a huge page may cost as much as all of it");
    for (int turn = 0; turn < 10; ++turn) choice.record(8 << 20, 4 * kPopulated);  // these pages were faulted in before
    CHECK(small_interval(choice, kSmall) == 16 << 20, "small pages are used for 16 MiB at first");
    for (uint64_t expected = 32 << 20; expected <= 256 << 20; expected *= 2) {
        choice.record(512 << 10, kPopulated);  // memory in a populated huge page does not count
        choice.record(kHugePage, kSlow);
        CHECK(small_interval(choice, kSmall) == expected, "the interval doubles to %lu", expected);
    }
    choice.record(kHugePage, kSlow);
    CHECK(small_interval(choice, kSmall) == 256 << 20, "the interval has a maximum");
    choice.record(kHugePage, kFast);
    choice.record(kHugePage, kSlow);
    CHECK(small_interval(choice, kSmall) == 16 << 20, "a fast huge page resets the interval");
    choice.record(kHugePage, kSlow);
    CHECK(small_interval(choice, kSlow) == kHugePage, "small pages that are as slow end the interval");
    choice.record(64 << 20, 32 * kFast);
    CHECK(!choice.small(), "the time is judged per huge page");
}

// Populates from several threads at any address: every page is faulted in, zero and writable.
void check_pages() {
    Mapping mapping(64 << 20);
    CHECK(!fastio::is_populated(mapping.data(), mapping.nbytes()), "a new mapping is not populated");
    std::vector<std::thread> threads;
    for (uint64_t part = 0; part < 4; ++part) {
        threads.emplace_back([&mapping, part] {
            for (uint64_t at = part * 16 << 20; at < (part + 1) * 16 << 20; at += 500'000) {
                fastio::populate(mapping.data() + at, std::min<uint64_t>(500'000, ((part + 1) * 16 << 20) - at));
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<unsigned char> there(mapping.nbytes() / kPage);
    CHECK(mincore(mapping.data(), mapping.nbytes(), there.data()) == 0, "mincore");
    for (size_t page = 0; page < there.size(); ++page) {
        CHECK(there[page] & 1, "page %zu is faulted in", page);
        CHECK(mapping.data()[page * kPage] == 0, "page %zu is zero", page);
    }
    CHECK(fastio::is_populated(mapping.data() + 1, mapping.nbytes() - 2), "all pages are populated");
    CHECK(madvise(mapping.data() + (20 << 20), kPage, MADV_DONTNEED) == 0, "madvise");
    CHECK(!fastio::is_populated(mapping.data(), mapping.nbytes()), "one page is missing");
    CHECK(fastio::is_populated(mapping.data(), 20 << 20), "the pages before the missing one are populated");
    std::memset(mapping.data(), 1, mapping.nbytes());
    fastio::populate(mapping.data() + 123, 1 << 20);
    CHECK(mapping.data()[123] == 1, "populating keeps the contents");
    fastio::populate(reinterpret_cast<uint8_t*>(kPage), kPage);  // unmapped memory: no effect
    Mapping large((64 << 20) + 5 * kPage);
    fastio::populate_in_threads(large.data(), large.nbytes());
    CHECK(fastio::is_populated(large.data(), large.nbytes()), "several threads populate all of it");
}

}  // namespace

int main() {
    check_choice();
    check_pages();
}
