// Cuts a staged transfer into windows, and a window into runs of memory.
#pragma once

#include <cstdint>
#include <vector>

#include "transfer/direct.hpp"
#include "transfer/extents.hpp"

namespace fastio {

// A range of the file that begins and ends with bytes of extents, between two neighbouring multiples of the window's
// size. `nbytes` are those of its extents.
struct Window {
    uint64_t begin;
    uint64_t end;
    uint64_t nbytes;
};

// The windows of at most `nbytes`, whole pages, in file order. A gap between extents that is longer than `longest_gap`
// ends a window.
std::vector<Window> windows_of(const Extents& extents, uint64_t nbytes, uint64_t longest_gap);

// Bytes of the file that lie one behind the other in the memory of one device, or of the host.
struct MemoryRun {
    uint64_t begin;
    uint64_t end;
    uint8_t* address;
    int device;
};

// The runs of a window, in file order: one for neighbours in the file that are neighbours in memory, too. In a span
// gaps between extents are parts of a run.
std::vector<MemoryRun> runs_of(const Extents& extents, const std::vector<int>& devices, const Span& span,
                               const Window& window);

}  // namespace fastio
