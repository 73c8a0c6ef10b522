#include "memory/allocator.hpp"

#include <c10/util/Exception.h>

#include <algorithm>

#include "execution/streams.hpp"
#include "memory/block_cache.hpp"

namespace simulated {

namespace {

/// Gives back the blocks whose recorded uses have ended; with `waits`, waits for them.
void settle_pending(Lock& lock, BlockCache& cache, bool waits) {
    const bool modelled = machine().settings.modelled;
    for (size_t number = 0; (waits || modelled) && number < cache.pending.size(); ++number)
        for (const auto& use : std::vector(cache.pending[number].uses)) waits ? await(lock, *use) : perform(lock, *use);
    auto ended = [&](PendingFree& pending) {
        for (const auto& use : pending.uses)
            if (!use->done || (modelled && use->time > machine().host_time)) return false;
        for (const auto& use : pending.uses) machine().host.join(use->clock);
        give_back(cache, pending.block);
        return true;
    };
    cache.pending.erase(std::remove_if(cache.pending.begin(), cache.pending.end(), ended), cache.pending.end());
}

void release_segments(Lock& lock, int device) {
    BlockCache& cache = block_cache(device);
    for (int number = 0; number < kDevices; ++number) wait_for_device(lock, number, "empty_cache");
    for (auto each = cache.free.begin(); each != cache.free.end();) {
        Block* block = *each;
        const bool is_busy = block->stream->completed < block->stream->issued;  // another thread freed it meanwhile
        if (block->previous || block->next || is_busy) {
            ++each;
            continue;
        }
        each = cache.free.erase(each);
        machine().devices[device].arena.release(block->begin, block->nbytes);
        cache.counters.reserved -= block->nbytes;
        cache.blocks.erase(block->begin);
    }
}

Block* new_segment(int device, Stream& stream, size_t nbytes, bool is_small) {
    BlockCache& cache = block_cache(device);
    const size_t size = (nbytes + Arena::kGranule - 1) / Arena::kGranule * Arena::kGranule;
    if (cache.counters.reserved + size > machine().settings.devices[device].memory_limit) return nullptr;
    const uintptr_t begin = machine().devices[device].arena.reserve(size);
    if (begin == 0) return nullptr;
    auto block = std::make_unique<Block>(begin, size, &stream, is_small);
    cache.counters.reserved += size;
    cache.counters.peak_reserved = std::max(cache.counters.peak_reserved, cache.counters.reserved);
    return (cache.blocks[begin] = std::move(block)).get();
}

Block* find_or_reserve(Lock& lock, int device, Stream& stream, size_t nbytes) {
    BlockCache& cache = block_cache(device);
    const bool is_small = nbytes <= kSmall;
    settle_pending(lock, cache, false);
    if (Block* block = take_free(cache, stream, nbytes, is_small)) return block;
    if (Block* block = new_segment(device, stream, nbytes, is_small)) return block;
    settle_pending(lock, cache, true);
    if (Block* block = take_free(cache, stream, nbytes, is_small)) return block;
    release_segments(lock, device);
    return new_segment(device, stream, nbytes, is_small);
}

}  // namespace

uintptr_t allocate(int device, size_t nbytes) {
    if (nbytes == 0) return 0;
    Stream& stream = current_stream(device);
    Lock lock(machine().mutex);
    check("allocation");
    BlockCache& cache = block_cache(device);
    const size_t rounded = (nbytes + kRounding - 1) / kRounding * kRounding;
    Block* block = find_or_reserve(lock, device, stream, rounded);
    TORCH_CHECK_WITH(OutOfMemoryError, block, "simulated:", device, " is out of memory: ", nbytes,
                     " bytes were asked for; ", cache.counters.allocated, " of ",
                     machine().settings.devices[device].memory_limit, " bytes are allocated, ", cache.counters.reserved,
                     " reserved");
    split(cache, block, rounded);
    block->allocated = true;
    cache.counters.allocated += block->nbytes;
    cache.counters.peak = std::max(cache.counters.peak, cache.counters.allocated);
    try {
        Work work = poison(*block, Pattern::allocated);
        if (!machine().settings.poison) work.run = nullptr;
        work.hint = ": the memory was freed before that work ended, without record_stream";
        issue(lock, stream, std::move(work), {{block->begin, block->nbytes, true}});
    } catch (...) {
        block->allocated = false;
        cache.counters.allocated -= block->nbytes;
        cache.free.insert(block);
        throw;
    }
    return block->begin;
}

void free_memory(uintptr_t address) {
    if (address == 0 || machine().forked) return;
    Lock lock(machine().mutex);
    Block* block = find_block(address);
    BlockCache& cache = block_cache(block->stream->device);
    block->allocated = false;
    cache.counters.allocated -= block->nbytes;
    if (block->recorded.empty()) return give_back(cache, block);
    PendingFree pending{block, {}};
    for (Stream* stream : block->recorded) pending.uses.push_back(record_unchecked(*stream));
    cache.pending.push_back(std::move(pending));
}

void record_stream(uintptr_t address, Stream& stream) {
    Lock lock(machine().mutex);
    check("record_stream");
    Block* block = find_block(address);
    if (!block || block->stream == &stream) return;
    auto& recorded = block->recorded;
    if (std::find(recorded.begin(), recorded.end(), &stream) == recorded.end()) recorded.push_back(&stream);
}

Block* find_block(uintptr_t address) {
    const int device = device_of(address);
    if (device < 0) return nullptr;
    auto& blocks = block_cache(device).blocks;
    auto after = blocks.upper_bound(address);
    if (after == blocks.begin()) return nullptr;
    Block* block = std::prev(after)->second.get();
    return address < block->begin + block->nbytes ? block : nullptr;
}

int device_of(uintptr_t address) {
    for (int device = 0; device < kDevices; ++device)
        if (machine().devices[device].arena.contains(address)) return device;
    return -1;
}

void empty_cache(int device) {
    Lock lock(machine().mutex);
    check("empty_cache");
    settle_pending(lock, block_cache(device), true);
    release_segments(lock, device);
}

MemoryCounters& memory_counters(int device) { return block_cache(device).counters; }

}  // namespace simulated
