// Tests which blocks of a file a direct read without a span asks for.
#include <vector>

#include "tests/support/check.hpp"
#include "transfer/blocks.hpp"

namespace {

using fastio::Block;
using fastio::Blocks;
using fastio::Extent;
using fastio::Extents;

constexpr uint64_t kKiB = 1 << 10, kSize = 8192 * kKiB;
uint8_t memory[64];

std::vector<Block> blocks_of(const std::vector<Extent>& wanted) {
    const Extents extents(wanted, kSize);
    const fastio::Span span;
    const fastio::DirectOptions options{1024 * kKiB, 16, 4096, 0};
    Blocks blocks(extents, span, options, kSize);
    std::vector<Block> all;
    for (std::vector<Block> taken = blocks.take(); !taken.empty(); taken = blocks.take()) {
        all.insert(all.end(), taken.begin(), taken.end());
    }
    return all;
}

// `count` parts of rows, `part` bytes every `row` bytes.
std::vector<Block> blocks_of_rows(uint64_t part, uint64_t row, uint64_t count) {
    std::vector<Extent> rows;
    for (uint64_t number = 0; number < count; ++number) rows.push_back({100 + number * row, part, memory, false});
    return blocks_of(rows);
}

void test_long_gaps_are_not_read() {
    const std::vector<Block> blocks = blocks_of_rows(6 * kKiB, 64 * kKiB, 40);
    CHECK(blocks.size() == 40, "a block for each row");
    for (const Block& block : blocks) CHECK(block.nbytes == 8 * kKiB, "the pages of its part");
}

void test_short_gaps_are_read() {
    const std::vector<Block> blocks = blocks_of_rows(6 * kKiB, 16 * kKiB, 128);
    CHECK(blocks.size() == 2 && blocks[0].nbytes == 1016 * kKiB, "one to each end of a block");
    CHECK(blocks[1].offset + blocks[1].nbytes == 127 * 16 * kKiB + 8 * kKiB, "the last one ends with its extent");
}

void test_empty_extents_are_nothing() {
    const std::vector<Block> blocks = blocks_of(
        {{0, 0, memory, false}, {5000, 10, memory, false}, {6000, 0, memory, false}, {kSize, 0, memory, false}});
    CHECK(blocks.size() == 1 && blocks[0].offset == 4096 && blocks[0].nbytes == 4096, "one page");
}

}  // namespace

int main() {
    test_long_gaps_are_not_read();
    test_short_gaps_are_read();
    test_empty_extents_are_nothing();
    return 0;
}
