#include "transfer/staged_windows.hpp"

#include <algorithm>

namespace fastio {

std::vector<Window> windows_of(const Extents& extents, uint64_t nbytes, uint64_t longest_gap) {
    std::vector<Window> windows;
    for (const Extent& extent : extents.all()) {
        for (uint64_t at = extent.offset; at < extent.end();) {
            const uint64_t stop = std::min(extent.end(), (at / nbytes + 1) * nbytes);
            const bool follows = !windows.empty() && windows.back().begin / nbytes == at / nbytes &&
                                 at - windows.back().end <= longest_gap;
            if (!follows) windows.push_back({at, at, 0});
            windows.back().end = stop;
            windows.back().nbytes += stop - at;
            at = stop;
        }
    }
    return windows;
}

std::vector<MemoryRun> runs_of(const Extents& extents, const std::vector<int>& devices, const Span& span,
                               const Window& window) {
    std::vector<MemoryRun> runs;
    const auto& all = extents.all();
    for (size_t index = extents.first_after(window.begin); index < all.size(); ++index) {
        const Extent& extent = all[index];
        if (extent.offset >= window.end) break;
        const uint64_t from = std::max(extent.offset, window.begin);
        const uint64_t to = std::min(extent.end(), window.end);
        if (from >= to) continue;
        uint8_t* address = extent.address + (from - extent.offset);
        if (!runs.empty()) {
            MemoryRun& last = runs.back();
            const bool is_mirrored = last.device == devices[index] && last.address + (from - last.begin) == address;
            if (is_mirrored && (last.end == from || span.address != nullptr)) {
                last.end = to;
                continue;
            }
        }
        runs.push_back({from, to, address, devices[index]});
    }
    return runs;
}

}  // namespace fastio
