#pragma once

#include <map>

#include "execution/machine.hpp"

namespace simulated {

/// A part of a segment: memory of one tensor, or free. Blocks that neighbour each other are never both free.
struct Block {
    Block(uintptr_t begin, size_t nbytes, Stream* stream, bool is_small)
        : begin(begin), nbytes(nbytes), stream(stream), is_small(is_small) {}

    uintptr_t begin;
    size_t nbytes;
    Stream* stream;  // the stream that allocated its segment, and that alone reuses it
    bool is_small;
    bool allocated = false;
    Block* previous = nullptr;
    Block* next = nullptr;
    History history;
    std::vector<Stream*> recorded;  // by record_stream
};

struct MemoryCounters {
    size_t allocated = 0;
    size_t peak = 0;
    size_t reserved = 0;
    size_t peak_reserved = 0;
};

/// Device memory for `nbytes`, reused per stream as CUDA's caching allocator does. Raises torch.OutOfMemoryError.
uintptr_t allocate(int device, size_t nbytes);

/// Returns memory to the cache of the stream that allocated it, at once, or, with record_stream, when the recorded
/// streams have done what they have to do now. Never raises.
void free_memory(uintptr_t address);

/// Keeps a block from reuse until the stream has done what it has to do when the block is freed.
void record_stream(uintptr_t address, Stream& stream);

/// The block that holds an address, or nullptr. Needs the lock.
Block* find_block(uintptr_t address);

/// The device whose memory holds an address, or -1.
int device_of(uintptr_t address);

void empty_cache(int device);
MemoryCounters& memory_counters(int device);  // needs the lock

}  // namespace simulated
