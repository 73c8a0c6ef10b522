// Tests that a batch of copies copies all bytes, by one thread or several, again and again, with the CRC-32s of blocks.

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "checksum/block_crcs.hpp"
#include "checksum/copy_batch.hpp"
#include "checksum/crc32.hpp"
#include "support/errors.hpp"
#include "tests/support/check.hpp"

namespace {

using fastio::Control;
using fastio::CopyBatch;
using Bytes = std::vector<uint8_t>;

std::mt19937_64 generator{20261128};

uint64_t below(uint64_t bound) { return generator() % bound; }

void fill(Bytes& bytes) {
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
}

void check_copies(size_t threads) {
    const std::vector<uint64_t> sizes{0, 1, 100, 65536, 65537, 1 << 20, (4 << 20) - 1, 4 << 20, (9 << 20) + 5};
    std::vector<Bytes> sources, targets;
    std::vector<CopyBatch::Copy> copies;
    std::vector<uint64_t> blocks;
    for (size_t number = 0; number < 20; ++number) {
        sources.emplace_back(sizes[below(sizes.size())]);
        targets.emplace_back(sources.back().size());
        blocks.push_back(uint64_t{64 << 10} << below(7));
        copies.push_back({targets.back().data(), sources.back().data(), sources.back().size(), blocks.back()});
    }
    CopyBatch batch(copies);
    for (int round = 0; round < 3; ++round) {
        for (Bytes& source : sources) fill(source);
        batch.begin();
        Control control;
        std::vector<std::thread> running;
        for (size_t thread = 0; thread < threads; ++thread) {
            running.emplace_back([&] {
                while (batch.run(control, 1 << 20)) continue;
            });
        }
        for (std::thread& thread : running) thread.join();
        CHECK(targets == sources, "round %d by %zu threads", round, threads);
        for (size_t number = 0; number < copies.size(); ++number) {
            const Bytes& source = sources[number];
            CHECK(batch.crcs()[number] == fastio::crc32(0, source.data(), source.size()), "copy %zu", number);
            CHECK(batch.block_crcs(number) == fastio::crc32_blocks(source.data(), source.size(), blocks[number]),
                  "blocks of copy %zu", number);
        }
    }
}

template <typename Work>
bool refuses(Work work) {
    try {
        work();
    } catch (const fastio::Refused&) {
        return true;
    }
    return false;
}

void check_cancelled() {
    Bytes source(3 << 20), target(source.size());
    fill(source);
    CopyBatch batch({{target.data(), source.data(), 1 << 20, 64 << 10},
                     {target.data() + (1 << 20), source.data() + (1 << 20), 2 << 20, 64 << 10}});
    Control control;
    CHECK(batch.run(control, 1), "the second copy is left");
    control.cancelled = true;
    CHECK(!batch.run(control, 1), "none is begun");
    CHECK(std::count(target.begin() + (1 << 20), target.end(), 0) == 2 << 20, "nothing of the second copy");
    CHECK(refuses([&] { batch.crcs(); }), "no CRC-32s of copies that were not made");
    CHECK(refuses([&] { batch.block_crcs(0); }), "nor of their blocks");
}

void check_refused() {
    for (const uint64_t block : {uint64_t{0}, uint64_t{3}, uint64_t{8 << 20}}) {
        CHECK(refuses([&] { CopyBatch({{nullptr, nullptr, 0, block}}); }), "blocks of %zu", static_cast<size_t>(block));
    }
    CHECK(refuses([] { CopyBatch({}).block_crcs(0); }), "a copy that there is not");
    CHECK(CopyBatch({}).crcs().empty(), "no copies");
}

}  // namespace

int main() {
    for (const size_t threads : {1, 2, 5}) check_copies(threads);
    check_cancelled();
    check_refused();
    return 0;
}
