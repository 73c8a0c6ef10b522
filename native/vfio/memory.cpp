#include "vfio/memory.hpp"

#include <iterator>

namespace fastio {

bool MappedMemory::overlaps(const uint8_t* memory, uint64_t nbytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    auto after = pieces_.lower_bound(begin + nbytes);
    if (after == pieces_.begin()) return false;
    auto before = std::prev(after);
    return before->first + before->second.nbytes > begin;
}

std::optional<MappedMemory::Piece> MappedMemory::remove(const uint8_t* memory) {
    auto found = pieces_.find(reinterpret_cast<uintptr_t>(memory));
    if (found == pieces_.end()) return std::nullopt;
    const Piece piece = found->second;
    pieces_.erase(found);
    return piece;
}

std::optional<uint64_t> MappedMemory::address_of(const uint8_t* memory, uint64_t nbytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    auto after = pieces_.upper_bound(begin);
    if (after == pieces_.begin()) return std::nullopt;
    const Piece& piece = std::prev(after)->second;
    const uint64_t within = begin - reinterpret_cast<uintptr_t>(piece.memory);
    if (within >= piece.nbytes || nbytes > piece.nbytes - within) return std::nullopt;
    return piece.address + within;
}

}  // namespace fastio
