#include "memory/block_cache.hpp"

#include <cstring>

#include "execution/streams.hpp"

namespace simulated {

namespace {

void absorb_next(BlockCache& cache, Block* block) {
    Block* next = block->next;
    block->nbytes += next->nbytes;
    block->history.append(next->history);
    block->next = next->next;
    if (block->next) block->next->previous = block;
    cache.blocks.erase(next->begin);
}

bool is_reusable(BlockCache& cache, const Block* block) { return block && cache.free.count(const_cast<Block*>(block)); }

}  // namespace

BlockCache& block_cache(int device) {
    static auto& caches = *new std::array<BlockCache, kDevices>;
    return caches.at(device);
}

Block* take_free(BlockCache& cache, Stream& stream, size_t nbytes, bool is_small) {
    Block wanted(0, nbytes, &stream, is_small);
    const auto found = cache.free.lower_bound(&wanted);
    if (found == cache.free.end() || (*found)->stream != &stream || (*found)->is_small != is_small) return nullptr;
    Block* block = *found;
    cache.free.erase(found);
    return block;
}

void give_back(BlockCache& cache, Block* block) {
    // Memory that another stream may still use is not poisoned before it is handed out again: that would be the error.
    Clock ordered = block->stream->clock;
    ordered.join(machine().host);
    const uintptr_t end = block->begin + block->nbytes;
    if (machine().settings.poison && !block->history.conflict(block->begin, end, true, ordered)) {
        const uint64_t sequence = issue_unchecked(*block->stream, poison(*block, Pattern::freed));
        block->history.add({block->begin, end, block->stream->number, sequence, true, "free"}, machine().host);
    }
    block->recorded.clear();
    if (is_reusable(cache, block->next)) {
        cache.free.erase(block->next);
        absorb_next(cache, block);
    }
    if (is_reusable(cache, block->previous)) {
        block = block->previous;
        cache.free.erase(block);
        absorb_next(cache, block);
    }
    cache.free.insert(block);
}

void split(BlockCache& cache, Block* block, size_t nbytes) {
    const size_t left = block->nbytes - nbytes;
    if (left < (block->is_small ? kRounding : kSmall + 1)) return;
    auto rest = std::make_unique<Block>(block->begin + nbytes, left, block->stream, block->is_small);
    rest->previous = block;
    rest->next = block->next;
    if (rest->next) rest->next->previous = rest.get();
    rest->history = block->history.part(rest->begin, rest->begin + left);
    block->history = block->history.part(block->begin, rest->begin);
    block->nbytes = nbytes;
    block->next = rest.get();
    cache.free.insert(rest.get());
    cache.blocks[rest->begin] = std::move(rest);
}

Work poison(const Block& block, Pattern pattern) {
    Work work;
    work.name = pattern == Pattern::allocated ? "allocation" : "free";
    auto* memory = reinterpret_cast<void*>(machine().devices[block.stream->device].arena.on_device(block.begin));
    work.run = [memory, nbytes = block.nbytes, pattern] {
        std::memset(memory, static_cast<unsigned char>(pattern), nbytes);
    };
    return work;
}

}  // namespace simulated
