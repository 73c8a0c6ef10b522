// Which pages memory is made of: small ones for a while after a huge one that was slow; all is there either way.
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

constexpr double kDear = 5e-3, kCheap = 2e-4, kSmall = 9e-4, kNothing = 4e-5;  // seconds of 2 MiB

// How many bytes of small pages are taken, each 2 MiB of them at that price, until a huge one is tried again.
uint64_t spell(PageChoice& choice, double price) {
    uint64_t taken = 0;
    for (; choice.small(); taken += kHugePage) choice.record(kHugePage, price);
    return taken;
}

void check_choice() {
    PageChoice choice;
    for (int page = 0; page < 100; ++page) choice.record(kHugePage, kCheap);
    CHECK(!choice.small(), "huge pages as long as they are cheap");
    choice.record(512 << 10, kDear);
    CHECK(choice.small(), "a part of a huge page costs all of it");
    for (int turn = 0; turn < 10; ++turn) choice.record(8 << 20, 4 * kNothing);  // these pages were there before
    CHECK(spell(choice, kSmall) == 16 << 20, "for a while");
    for (uint64_t expected = 32 << 20; expected <= 256 << 20; expected *= 2) {
        choice.record(512 << 10, kNothing);  // what lies in a huge page that is there already says nothing
        choice.record(kHugePage, kDear);
        CHECK(spell(choice, kSmall) == expected, "longer, the oftener in a row: %lu", expected);
    }
    choice.record(kHugePage, kDear);
    CHECK(spell(choice, kSmall) == 256 << 20, "but not for ever");
    choice.record(kHugePage, kCheap);
    choice.record(kHugePage, kDear);
    CHECK(spell(choice, kSmall) == 16 << 20, "from the start again, once one was cheap");
    choice.record(kHugePage, kDear);
    CHECK(spell(choice, kDear) == kHugePage, "small pages that are as slow end the spell");
    choice.record(64 << 20, 32 * kCheap);
    CHECK(!choice.small(), "by price, not by size");
}

// From several threads, at any place: every page is there, zero, and may be written.
void check_pages() {
    Mapping mapping(64 << 20);
    CHECK(!fastio::is_populated(mapping.data(), mapping.nbytes()), "nothing is there");
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
        CHECK(there[page] & 1, "page %zu is there", page);
        CHECK(mapping.data()[page * kPage] == 0, "page %zu is zero", page);
    }
    CHECK(fastio::is_populated(mapping.data() + 1, mapping.nbytes() - 2), "all is there");
    CHECK(madvise(mapping.data() + (20 << 20), kPage, MADV_DONTNEED) == 0, "madvise");
    CHECK(!fastio::is_populated(mapping.data(), mapping.nbytes()), "one page is not");
    CHECK(fastio::is_populated(mapping.data(), 20 << 20), "it lies behind these");
    std::memset(mapping.data(), 1, mapping.nbytes());
    fastio::populate(mapping.data() + 123, 1 << 20);
    CHECK(mapping.data()[123] == 1, "what is there stays");
    fastio::populate(reinterpret_cast<uint8_t*>(kPage), kPage);  // nobody's: nothing happens
}

}  // namespace

int main() {
    check_choice();
    check_pages();
}
