#include <algorithm>

#include "crc32.hpp"
#include "direct.hpp"
#include "memory.hpp"
#include "queue.hpp"

namespace fastio {

namespace {

bool same(const std::vector<Part>& one, const std::vector<Part>& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                      [](const Part& a, const Part& b) { return a.index == b.index && a.crc == b.crc; });
}

}  // namespace

std::vector<uint32_t> direct_write(int fd, uint64_t size, const Extents& extents, const std::vector<Patch>& patches,
                                   const DirectOptions& options, Control& control) {
    Checksums checksums(extents.all().size());
    Queue queue(true, fd, options.depth, options.alignment);
    Staging staging(options.block * options.depth);
    std::vector<Part> parts;
    // Memory that is written from where it lies is read twice, by us and by the device. What we read before is
    // compared with what lies there afterwards, or a tensor that changes meanwhile would leave a file with wrong CRCs.
    std::vector<std::vector<Part>> lent(options.depth);
    try {
        uint64_t next = 0;
        while (next < size || !queue.is_empty()) {
            if (next < size && queue.has_room()) {
                control.check();
                uint64_t end = std::min(next + options.block, size);
                if (extents.is_gap(next, end)) {  // a new file is zeros already
                    control.advance(end - next);
                    next = end;
                    continue;
                }
                uint64_t rounded = (end - next + options.alignment - 1) / options.alignment * options.alignment;
                Block block{next, rounded, rounded, nullptr, 0, false};
                parts.clear();
                // A full block of one extent goes from where it is, if the device can reach it there.
                block.memory = rounded == end - next ? extents.lend(next, end, options.alignment) : nullptr;
                if (block.memory != nullptr && !any_patch(patches, next, end)) {
                    extents.measure(next, end, block.memory, parts);
                    checksums.add(parts);
                    lent[queue.next_slot()] = parts;
                } else {
                    block.memory = staging.data() + queue.next_slot() * options.block;
                    extents.gather(next, next + rounded, block.memory, parts);
                    checksums.add(parts);
                    checksums.apply(patches, next, end, block.memory);
                    block.staged = true;
                }
                queue.send(block);
                queue.flush();
                next = end;
            } else {
                unsigned slot;
                Block block = queue.receive(slot);
                if (!block.staged) {
                    parts.clear();
                    extents.measure(block.offset, block.offset + block.needed, block.memory, parts);
                    if (!same(parts, lent[slot])) throw Refused("a tensor changed while it was being saved");
                }
                control.advance(std::min(block.needed, size - block.offset));
            }
        }
    } catch (...) {
        queue.drain();  // the staging memory must outlive what is in flight
        throw;
    }
    return checksums.values();
}

}  // namespace fastio
