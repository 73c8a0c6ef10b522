#include "allocator.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>

#include "streams.hpp"

namespace simulated {

namespace {

constexpr size_t kRounding = 512;
constexpr size_t kSmall = size_t{1} << 20;  // up to this size, from shared segments of Arena::kGranule
constexpr unsigned char kAllocated = 0xFF;  // NaN in every floating-point type
constexpr unsigned char kFreed = 0xFB;

struct Order {
    using Key = std::tuple<int, bool, size_t, uintptr_t>;
    static Key key(const Block* block) { return {block->stream->number, block->is_small, block->nbytes, block->begin}; }
    bool operator()(const Block* one, const Block* other) const { return key(one) < key(other); }
};

struct PendingFree {
    Block* block;
    std::vector<std::tuple<Stream*, uint64_t, Clock>> uses;
};

struct Cache {
    std::map<uintptr_t, std::unique_ptr<Block>> blocks;
    std::set<Block*, Order> free;
    std::vector<PendingFree> pending;
    MemoryCounters counters;
};

Cache& cache(int device) {
    static auto& caches = *new std::array<Cache, kDevices>;
    return caches.at(device);
}

size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

Work poison(const Block& block, unsigned char pattern) {
    Work work;
    work.name = pattern == kAllocated ? "allocation" : "free";
    auto* memory = reinterpret_cast<void*>(machine().devices[block.stream->device].arena.on_device(block.begin));
    work.run = [memory, nbytes = block.nbytes, pattern] { std::memset(memory, pattern, nbytes); };
    return work;
}

void absorb_next(Cache& pool, Block* block) {
    Block* next = block->next;
    block->nbytes += next->nbytes;
    block->history.append(next->history);
    block->next = next->next;
    if (block->next) block->next->previous = block;
    pool.blocks.erase(next->begin);
}

bool is_reusable(Cache& pool, const Block* block) { return block && pool.free.count(const_cast<Block*>(block)); }

void give_back(Cache& pool, Block* block) {
    // Memory that another stream may still use is not poisoned before it is handed out again: that would be the error.
    Clock ordered = block->stream->clock;
    ordered.join(machine().host);
    const uintptr_t end = block->begin + block->nbytes;
    if (machine().settings.poison && !block->history.conflict(block->begin, end, true, ordered)) {
        const uint64_t sequence = issue_unchecked(*block->stream, poison(*block, kFreed));
        block->history.add({block->begin, end, block->stream->number, sequence, true, "free"}, machine().host);
    }
    block->recorded.clear();
    if (is_reusable(pool, block->next)) {
        pool.free.erase(block->next);
        absorb_next(pool, block);
    }
    if (is_reusable(pool, block->previous)) {
        block = block->previous;
        pool.free.erase(block);
        absorb_next(pool, block);
    }
    pool.free.insert(block);
}

/// Gives back the blocks whose recorded uses have ended; with `waits`, waits for them.
void settle_pending(Lock& lock, Cache& pool, bool waits) {
    for (size_t number = 0; waits && number < pool.pending.size(); ++number)
        for (const auto& use : std::vector(pool.pending[number].uses))
            wait(lock, *std::get<0>(use), std::get<1>(use), std::get<2>(use));
    auto ended = [&](PendingFree& pending) {
        for (const auto& [stream, sequence, clock] : pending.uses)
            if (stream->completed < sequence) return false;
        for (const auto& use : pending.uses) machine().host.join(std::get<2>(use));
        give_back(pool, pending.block);
        return true;
    };
    pool.pending.erase(std::remove_if(pool.pending.begin(), pool.pending.end(), ended), pool.pending.end());
}

void release_segments(Lock& lock, int device) {
    Cache& pool = cache(device);
    for (int number = 0; number < kDevices; ++number) wait_for_device(lock, number, "empty_cache");
    for (auto each = pool.free.begin(); each != pool.free.end();) {
        Block* block = *each;
        const bool is_busy = block->stream->completed < block->stream->issued;  // another thread freed it meanwhile
        if (block->previous || block->next || is_busy) {
            ++each;
            continue;
        }
        each = pool.free.erase(each);
        machine().devices[device].arena.release(block->begin, block->nbytes);
        pool.counters.reserved -= block->nbytes;
        pool.blocks.erase(block->begin);
    }
}

Block* find_free(Cache& pool, Stream& stream, size_t nbytes, bool is_small) {
    Block wanted(0, nbytes, &stream, is_small);
    const auto found = pool.free.lower_bound(&wanted);
    if (found == pool.free.end() || (*found)->stream != &stream || (*found)->is_small != is_small) return nullptr;
    Block* block = *found;
    pool.free.erase(found);
    return block;
}

Block* new_segment(int device, Stream& stream, size_t nbytes, bool is_small) {
    Cache& pool = cache(device);
    const size_t size = round_up(nbytes, Arena::kGranule);
    if (pool.counters.reserved + size > machine().settings.devices[device].memory_limit) return nullptr;
    const uintptr_t begin = machine().devices[device].arena.reserve(size);
    if (begin == 0) return nullptr;
    auto block = std::make_unique<Block>(begin, size, &stream, is_small);
    pool.counters.reserved += size;
    pool.counters.peak_reserved = std::max(pool.counters.peak_reserved, pool.counters.reserved);
    return (pool.blocks[begin] = std::move(block)).get();
}

void split(Cache& pool, Block* block, size_t nbytes) {
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
    pool.free.insert(rest.get());
    pool.blocks[rest->begin] = std::move(rest);
}

Block* find_or_reserve(Lock& lock, int device, Stream& stream, size_t nbytes) {
    Cache& pool = cache(device);
    const bool is_small = nbytes <= kSmall;
    settle_pending(lock, pool, false);
    if (Block* block = find_free(pool, stream, nbytes, is_small)) return block;
    if (Block* block = new_segment(device, stream, nbytes, is_small)) return block;
    settle_pending(lock, pool, true);
    if (Block* block = find_free(pool, stream, nbytes, is_small)) return block;
    release_segments(lock, device);
    return new_segment(device, stream, nbytes, is_small);
}

}  // namespace

uintptr_t allocate(int device, size_t nbytes) {
    if (nbytes == 0) return 0;
    Stream& stream = current_stream(device);
    Lock lock(machine().mutex);
    check("allocation");
    Cache& pool = cache(device);
    const size_t rounded = round_up(nbytes, kRounding);
    Block* block = find_or_reserve(lock, device, stream, rounded);
    TORCH_CHECK_WITH(OutOfMemoryError, block, "simulated:", device, " is out of memory: ", nbytes,
                     " bytes were asked for; ", pool.counters.allocated, " of ",
                     machine().settings.devices[device].memory_limit, " bytes are allocated, ", pool.counters.reserved,
                     " reserved");
    split(pool, block, rounded);
    block->allocated = true;
    pool.counters.allocated += block->nbytes;
    pool.counters.peak = std::max(pool.counters.peak, pool.counters.allocated);
    try {
        Work work = poison(*block, kAllocated);
        if (!machine().settings.poison) work.run = nullptr;
        work.hint = ": the memory was freed before that work ended, without record_stream";
        issue(lock, stream, std::move(work), {{block->begin, block->nbytes, true}});
    } catch (...) {
        block->allocated = false;
        pool.counters.allocated -= block->nbytes;
        pool.free.insert(block);
        throw;
    }
    return block->begin;
}

void free_memory(uintptr_t address) {
    if (address == 0 || machine().forked) return;
    Lock lock(machine().mutex);
    Block* block = find_block(address);
    Cache& pool = cache(block->stream->device);
    block->allocated = false;
    pool.counters.allocated -= block->nbytes;
    if (block->recorded.empty()) return give_back(pool, block);
    PendingFree pending{block, {}};
    for (Stream* stream : block->recorded) pending.uses.emplace_back(stream, stream->issued, stream->clock);
    pool.pending.push_back(std::move(pending));
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
    auto& blocks = cache(device).blocks;
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
    settle_pending(lock, cache(device), true);
    release_segments(lock, device);
}

MemoryCounters& memory_counters(int device) { return cache(device).counters; }

}  // namespace simulated
