// The table of memory that devices may access, with its device addresses.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace fastio {

// The memory that a store mapped, as disjoint pieces. It is only a table: the container maps and unmaps them.
class MappedMemory {
  public:
    struct Piece {
        uint8_t* memory;  // as passed to map_memory()
        uint64_t nbytes;
        uint64_t address;  // the device address of `memory`
    };

    // Whether any byte of this memory is in a piece.
    bool overlaps(const uint8_t* memory, uint64_t nbytes) const;
    void add(const Piece& piece) { pieces_.emplace(reinterpret_cast<uintptr_t>(piece.memory), piece); }
    // Removes and returns the piece that begins here; nullopt if there is none.
    std::optional<Piece> remove(const uint8_t* memory);
    // Returns the device address of memory that lies in one piece; nullopt for other memory.
    std::optional<uint64_t> address_of(const uint8_t* memory, uint64_t nbytes) const;

    const std::map<uintptr_t, Piece>& pieces() const { return pieces_; }

  private:
    std::map<uintptr_t, Piece> pieces_;
};

}  // namespace fastio
