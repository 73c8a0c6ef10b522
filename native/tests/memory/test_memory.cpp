// Tests mappings: they do not overlap, fresh ones are zero, and released ones are reused.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "memory/memory.hpp"
#include "tests/support/check.hpp"

namespace {

using fastio::kHugePage;
using fastio::kPage;
using fastio::Mapping;
using fastio::Pages;

void check_sizes() {
    for (uint64_t nbytes : {0, 1, 4096, 4097, 1 << 20, (1 << 20) + 1, 3 << 19, (2 << 20) + 1, 3 << 20, 50000000}) {
        Mapping exact(nbytes), mapping(nbytes, Pages::kRecycled);
        CHECK(exact.nbytes() == fastio::round_up(nbytes ? nbytes : 1, kPage), "%zu for %zu", exact.nbytes(), nbytes);
        CHECK(mapping.nbytes() >= exact.nbytes(), "%zu for %zu", mapping.nbytes(), nbytes);
        CHECK(mapping.nbytes() <= exact.nbytes() + exact.nbytes() / 3, "%zu for %zu", mapping.nbytes(), nbytes);
        bool huge = mapping.nbytes() >= kHugePage;
        CHECK(reinterpret_cast<uintptr_t>(mapping.data()) % (huge ? kHugePage : kPage) == 0, "the mapping is aligned");
        std::memset(mapping.data(), 1, mapping.nbytes());
    }
}

void check_recycled() {
    uint8_t* address = nullptr;
    {
        Mapping mapping(100000, Pages::kRecycled);
        address = mapping.data();
        std::memset(address, 7, mapping.nbytes());
    }
    Mapping fresh(100000);
    CHECK(fresh.data() != address && fresh.data()[0] == 0, "fresh pages are zero");
    Mapping large(300000, Pages::kRecycled);
    CHECK(large.data() != address, "a region that is too small is not reused");
    Mapping again(90000, Pages::kRecycled), other(90000, Pages::kRecycled);
    CHECK(again.data() == address && other.data() != address, "a region is reused once");
}

// The last released regions are kept, up to 32 MiB, except those that returned pages to the system.
void check_cache_limits() {
    uint8_t* large = nullptr;
    {
        Mapping mapping(20 << 20, Pages::kRecycled);
        large = mapping.data();
        std::memset(large, 7, mapping.nbytes());
    }
    CHECK(Mapping(20 << 20, Pages::kRecycled).data()[0] == 7, "a large region is reused");
    {
        Mapping larger(33 << 20, Pages::kRecycled);
    }
    CHECK(Mapping(20 << 20, Pages::kRecycled).data()[0] == 7,
          "a region that is too large for the cache evicts nothing");
    {
        Mapping other(8 << 20, Pages::kRecycled), another(8 << 20, Pages::kRecycled);
    }
    CHECK(Mapping(20 << 20, Pages::kRecycled).data()[0] == 0, "newer regions evict older ones");
    auto shared = std::make_shared<Mapping>(24 << 20, Pages::kRecycled);
    std::memset(shared->data(), 9, shared->nbytes());
    {
        auto first = std::make_unique<fastio::Slice>(shared, 0, 1 << 20);
        fastio::Slice second(shared, 1 << 20, 1 << 20);
        first.reset();
    }
    shared.reset();
    for (uint64_t nbytes = 16 << 20; nbytes <= 24 << 20; nbytes += 1 << 20) {
        CHECK(Mapping(nbytes, Pages::kRecycled).data()[3 << 20] != 9, "a region with returned pages is not reused");
    }
}

void check_disjoint() {
    std::mt19937 random(1);
    struct Alive {
        std::unique_ptr<Mapping> mapping;
        uint8_t mark;
    };
    std::vector<Alive> alive;
    for (int turn = 0; turn < 5000; ++turn) {
        if (alive.size() > 40 || (!alive.empty() && random() % 2)) {
            size_t index = random() % alive.size();
            const Mapping& mapping = *alive[index].mapping;
            for (uint64_t at = 0; at < mapping.nbytes(); at += kPage) {
                CHECK(mapping.data()[at] == alive[index].mark, "no other mapping overlaps this one");
            }
            alive.erase(alive.begin() + static_cast<ptrdiff_t>(index));
            continue;
        }
        auto made = std::make_unique<Mapping>(random() % 700000, random() % 4 ? Pages::kRecycled : Pages::kFresh);
        uint8_t mark = static_cast<uint8_t>(turn % 251 + 1);
        std::memset(made->data(), mark, made->nbytes());
        alive.push_back({std::move(made), mark});
    }
}

// A child has no memory that is kept from it, and does not unmap what it has at the address. Not under ThreadSanitizer:
// there the child cannot map memory at that address.
void check_kept_from_children() {
#if !defined(__SANITIZE_THREAD__)
    auto shared = std::make_shared<Mapping>(4 << 20);
    shared->keep_from_children();
    std::memset(shared->data(), 1, shared->nbytes());
    auto slice = std::make_unique<fastio::Slice>(shared, 0, 2 << 20),
         rest = std::make_unique<fastio::Slice>(shared, 2 << 20, 2 << 20);
    pid_t child = fork();
    if (child == 0) {
        void* own = mmap(shared->data(), shared->nbytes(), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (own != shared->data()) _exit(1);
        std::memset(own, 2, shared->nbytes());
        const uint8_t* data = shared->data();
        slice.reset();
        rest.reset();
        shared.reset();
        _exit(data[0] == 2 && data[3 << 20] == 2 ? 0 : 2);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child exits with %d", status);
    CHECK(shared->data()[0] == 1, "the parent keeps it");
#endif
}

}  // namespace

int main() {
    check_kept_from_children();
    check_sizes();
    check_recycled();
    check_cache_limits();
    check_disjoint();
}
