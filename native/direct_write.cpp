#include <algorithm>

#include "crc32.hpp"
#include "direct.hpp"
#include "memory.hpp"
#include "queue.hpp"

namespace fastio {

DirectResult direct_write(int fd, uint64_t size, const Extents& extents, const std::vector<Patch>& patches,
                          const DirectOptions& options, Control& control) {
    DirectResult result;
    Checksums checksums(extents.all().size());
    Queue queue(true, fd, options.depth, options.alignment);
    Staging staging(options.block * options.depth);
    std::vector<Part> parts;
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
                    result.zero_copy += end - next;
                } else {
                    block.memory = staging.data() + queue.next_slot() * options.block;
                    extents.gather(next, next + rounded, block.memory, parts);
                    checksums.add(parts);
                    checksums.apply(patches, next, end, block.memory);
                    result.staged += end - next;
                }
                queue.send(block);
                queue.flush();
                next = end;
            } else {
                unsigned slot;
                Block block = queue.receive(slot);
                control.advance(std::min(block.needed, size - block.offset));
            }
        }
    } catch (...) {
        queue.drain();  // the staging memory must outlive what is in flight
        throw;
    }
    result.checksums = checksums.values();
    return result;
}

}  // namespace fastio
