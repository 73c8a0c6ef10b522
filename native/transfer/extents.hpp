// Extents: runs of bytes in a file and in memory, and the CRC-32 of each, put together from parts in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

// A run of bytes. For a write, memory is only read.
struct Extent {
    uint64_t offset;
    uint64_t nbytes;
    uint8_t* address;
    bool checksum;

    uint64_t end() const { return offset + nbytes; }
};

// Four bytes of the file, at `offset`, that hold the CRC-32 of extent `index`.
struct Patch {
    uint64_t offset;
    size_t index;
};

// The CRC-32 of the part of an extent that lies in one block.
struct Part {
    size_t index;
    uint64_t nbytes;
    uint32_t crc;
};

// Extents sorted by offset, without overlap. Throws Refused if they are not.
class Extents {
  public:
    Extents(std::vector<Extent> extents, uint64_t size);

    const std::vector<Extent>& all() const { return extents_; }
    // The first extent that ends after `offset` (extents_.size() if none).
    size_t first_after(uint64_t offset) const;
    // Whether [begin, end) holds no byte of any extent.
    bool is_gap(uint64_t begin, uint64_t end) const;
    // The memory of [begin, end) if it lies in one extent at an address aligned to `alignment`, else null.
    uint8_t* lend(uint64_t begin, uint64_t end, uint64_t alignment) const;
    // Where that ends, in whole alignments, for as much as can be lent from `begin` on; `begin` if nothing can.
    uint64_t lent_until(uint64_t begin, uint64_t alignment) const;
    // The first aligned place behind `begin`, but before `end`, from which on at least `least` bytes can be lent;
    // `end` if there is none.
    uint64_t next_lent(uint64_t begin, uint64_t end, uint64_t alignment, uint64_t least) const;

    // Write path: put the image of [begin, end) into `staging`, gaps as zeros, each source byte read once.
    void gather(uint64_t begin, uint64_t end, uint8_t* staging, std::vector<Part>& parts) const;
    // Read path: hand out [begin, end) of the file, which is in `staging`, to the extents' memory; what lies between
    // them to a mirror of the file, where there is one: `mirror` is the memory of `begin`.
    void scatter(uint64_t begin, uint64_t end, const uint8_t* staging, uint8_t* mirror, std::vector<Part>& parts) const;
    // Checksums of what lies in [begin, end) when the bytes are at `memory` already.
    void measure(uint64_t begin, uint64_t end, const uint8_t* memory, std::vector<Part>& parts) const;

  private:
    std::vector<Extent> extents_;
};

// Checksums of extents, grown by parts that arrive in file order.
class Checksums {
  public:
    explicit Checksums(size_t count) : crcs_(count, 0), nbytes_(count, 0) {}

    void add(const std::vector<Part>& parts);
    const std::vector<uint32_t>& values() const { return crcs_; }
    // Write the patches that fall into [begin, end) into the block at `staging`; their extents must be complete.
    void apply(const std::vector<Patch>& patches, uint64_t begin, uint64_t end, uint8_t* staging) const;

  private:
    std::vector<uint32_t> crcs_;
    std::vector<uint64_t> nbytes_;
};

// Whether a patch falls into [begin, end). Patches are sorted by offset.
bool any_patch(const std::vector<Patch>& patches, uint64_t begin, uint64_t end);

}  // namespace fastio
