#include "transfer/extents.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "checksum/crc32.hpp"
#include "memory/memory.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

constexpr uint64_t kPatchBytes = 4;

}  // namespace

Extents::Extents(std::vector<Extent> extents, uint64_t size) : extents_(std::move(extents)) {
    uint64_t end = 0;
    for (const Extent& extent : extents_) {
        if (extent.offset < end || extent.nbytes > size || extent.offset > size - extent.nbytes) {
            throw Refused("extents must be sorted, without overlap and inside the file; the one at offset " +
                          std::to_string(extent.offset) + " of " + std::to_string(extent.nbytes) + " bytes is not");
        }
        end = extent.end();
    }
}

size_t Extents::first_after(uint64_t offset) const {
    auto found = std::partition_point(extents_.begin(), extents_.end(),
                                      [offset](const Extent& extent) { return extent.end() <= offset; });
    return static_cast<size_t>(found - extents_.begin());
}

bool Extents::is_gap(uint64_t begin, uint64_t end) const {
    size_t index = first_after(begin);
    return index == extents_.size() || extents_[index].offset >= end;
}

uint8_t* Extents::aligned_memory(uint64_t begin, uint64_t end, uint64_t alignment) const {
    size_t index = first_after(begin);
    if (index == extents_.size()) return nullptr;
    const Extent& extent = extents_[index];
    if (extent.address == nullptr || extent.offset > begin || extent.end() < end) return nullptr;
    uint8_t* memory = extent.address + (begin - extent.offset);
    return reinterpret_cast<uintptr_t>(memory) % alignment == 0 ? memory : nullptr;
}

uint64_t Extents::aligned_until(uint64_t begin, uint64_t alignment) const {
    size_t index = first_after(begin);
    if (index == extents_.size() || aligned_memory(begin, begin, alignment) == nullptr) return begin;
    return begin + (extents_[index].end() - begin) / alignment * alignment;
}

uint64_t Extents::next_aligned(uint64_t begin, uint64_t end, uint64_t alignment, uint64_t min_nbytes) const {
    for (size_t index = first_after(begin); index < extents_.size(); ++index) {
        uint64_t from = round_up(std::max(extents_[index].offset, begin + 1), alignment);
        if (from >= end) break;
        if (from < extents_[index].end() && aligned_until(from, alignment) >= from + min_nbytes) return from;
    }
    return end;
}

void Extents::gather(uint64_t begin, uint64_t end, uint8_t* staging, std::vector<Part>& parts) const {
    uint64_t at = begin;
    for (size_t index = first_after(begin); index < extents_.size() && at < end; ++index) {
        const Extent& extent = extents_[index];
        uint64_t from = std::max(extent.offset, begin);
        uint64_t to = std::min(extent.end(), end);
        if (from >= end) break;
        if (from > at) std::memset(staging + (at - begin), 0, from - at);
        uint8_t* target = staging + (from - begin);
        const uint8_t* source = extent.address + (from - extent.offset);
        if (extent.checksum) {
            parts.push_back({index, to - from, crc32_copy(0, target, source, to - from)});
        } else {
            std::memcpy(target, source, to - from);
        }
        at = to;
    }
    if (at < end) std::memset(staging + (at - begin), 0, end - at);
}

void Extents::scatter(uint64_t begin, uint64_t end, const uint8_t* staging, uint8_t* mirror,
                      std::vector<Part>& parts) const {
    uint64_t at = begin;
    auto copy_gap = [&](uint64_t until) {
        if (mirror != nullptr && until > at) std::memcpy(mirror + (at - begin), staging + (at - begin), until - at);
    };
    for (size_t index = first_after(begin); index < extents_.size(); ++index) {
        const Extent& extent = extents_[index];
        uint64_t from = std::max(extent.offset, begin);
        uint64_t to = std::min(extent.end(), end);
        if (from >= end) break;
        copy_gap(from);
        const uint8_t* source = staging + (from - begin);
        uint8_t* target = extent.address == nullptr ? nullptr : extent.address + (from - extent.offset);
        if (extent.checksum) {
            const uint32_t crc =
                target == nullptr ? crc32(0, source, to - from) : crc32_copy(0, target, source, to - from);
            parts.push_back({index, to - from, crc});
        } else if (target != nullptr) {
            std::memcpy(target, source, to - from);
        }
        at = to;
    }
    copy_gap(end);
}

void Extents::measure(uint64_t begin, uint64_t end, const uint8_t* memory, std::vector<Part>& parts) const {
    for (size_t index = first_after(begin); index < extents_.size(); ++index) {
        const Extent& extent = extents_[index];
        uint64_t from = std::max(extent.offset, begin);
        uint64_t to = std::min(extent.end(), end);
        if (from >= end) break;
        if (!extent.checksum) continue;
        if (parts.empty() || parts.back().index != index) parts.push_back({index, 0, 0});
        Part& part = parts.back();
        part.crc = crc32(part.crc, memory + (from - begin), to - from);
        part.nbytes += to - from;
    }
}

void Checksums::add(const std::vector<Part>& parts) {
    for (const Part& part : parts) {
        uint32_t& crc = crcs_[part.index];
        crc = nbytes_[part.index] == 0 ? part.crc : crc32_combine(crc, part.crc, part.nbytes);
        nbytes_[part.index] += part.nbytes;
    }
}

void Checksums::apply(const std::vector<Patch>& patches, uint64_t begin, uint64_t end, uint8_t* staging) const {
    auto patch = std::partition_point(patches.begin(), patches.end(),
                                      [begin](const Patch& p) { return p.offset + kPatchBytes <= begin; });
    for (; patch != patches.end() && patch->offset < end; ++patch) {
        for (uint64_t byte = 0; byte < kPatchBytes; ++byte) {
            uint64_t at = patch->offset + byte;
            if (at >= begin && at < end) staging[at - begin] = static_cast<uint8_t>(crcs_[patch->index] >> (8 * byte));
        }
    }
}

bool any_patch(const std::vector<Patch>& patches, uint64_t begin, uint64_t end) {
    auto patch = std::partition_point(patches.begin(), patches.end(),
                                      [begin](const Patch& p) { return p.offset + kPatchBytes <= begin; });
    return patch != patches.end() && patch->offset < end;
}

}  // namespace fastio
