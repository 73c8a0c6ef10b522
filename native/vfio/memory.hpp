// Memory that devices may use, and at which addresses they see it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fastio {

// The intervals that a store adopted. Pure: who maps and unmaps them is the container. None overlaps another.
class AdoptedMemory {
  public:
    struct Piece {
        uint8_t* memory;  // as adopted
        uint64_t nbytes;
        uint64_t address;  // what a device calls `memory`
    };

    // Whether any byte of this is in a piece already.
    bool overlaps(const uint8_t* memory, uint64_t nbytes) const;
    void add(const Piece& piece) { pieces_.emplace(reinterpret_cast<uintptr_t>(piece.memory), piece); }
    // The piece that begins here, which is none from now on; nothing where none does.
    std::optional<Piece> remove(const uint8_t* memory);
    // The device's address of memory that lies in one piece; nothing for other memory.
    std::optional<uint64_t> address_of(const uint8_t* memory, uint64_t nbytes) const;

    const std::map<uintptr_t, Piece>& pieces() const { return pieces_; }

  private:
    std::map<uintptr_t, Piece> pieces_;
};

}  // namespace fastio
