#pragma once

#include <set>
#include <tuple>

#include "memory/allocator.hpp"

namespace simulated {

constexpr size_t kRounding = 512;
constexpr size_t kSmall = size_t{1} << 20;  // up to this size, from shared segments of Arena::kGranule

/// What device memory is overwritten with.
enum class Pattern : unsigned char { allocated = 0xFF /* NaN in every floating-point type */, freed = 0xFB };

/// Free blocks by stream, pool, size and address.
struct Order {
    using Key = std::tuple<int, bool, size_t, uintptr_t>;
    static Key key(const Block* block) { return {block->stream->number, block->is_small, block->nbytes, block->begin}; }
    bool operator()(const Block* one, const Block* other) const { return key(one) < key(other); }
};

/// A freed block that other streams may still use: events behind their works.
struct PendingFree {
    Block* block;
    std::vector<std::shared_ptr<Recording>> uses;
};

/// The blocks of one device. Guarded by the machine's mutex.
struct BlockCache {
    std::map<uintptr_t, std::unique_ptr<Block>> blocks;
    std::set<Block*, Order> free;
    std::vector<PendingFree> pending;
    MemoryCounters counters;
};

BlockCache& block_cache(int device);

/// The smallest free block of the stream with at least `nbytes`, no longer free; nullptr if there is none.
Block* take_free(BlockCache& cache, Stream& stream, size_t nbytes, bool is_small);

/// Makes a block free, poisons it, and joins it with free neighbours.
void give_back(BlockCache& cache, Block* block);

/// Makes what a block has beyond `nbytes` a free block, if it is large enough to be of use.
void split(BlockCache& cache, Block* block, size_t nbytes);

/// The work that overwrites a block.
Work poison(const Block& block, Pattern pattern);

}  // namespace simulated
