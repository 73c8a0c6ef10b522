// Extents: runs of bytes in a file and in memory. Copies them from and to file blocks, and computes the CRC-32 of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastio {

// A run of bytes at `offset` of the file and at `address` in memory. A write only reads the memory. A read of a null
// address computes the checksum and keeps no byte.
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

// Extents sorted by offset, without overlap. The constructor throws Refused if they are not, or lie outside the file.
class Extents {
  public:
    Extents(std::vector<Extent> extents, uint64_t size);

    const std::vector<Extent>& all() const { return extents_; }
    // Where the first extent begins and the last one ends; 0 if there are none.
    uint64_t begin() const { return extents_.empty() ? 0 : extents_.front().offset; }
    uint64_t end() const { return extents_.empty() ? 0 : extents_.back().end(); }
    // The index of the first extent that ends after `offset` (all().size() if none).
    size_t first_after(uint64_t offset) const;
    // Whether [begin, end) holds no byte of any extent.
    bool is_gap(uint64_t begin, uint64_t end) const;
    // The memory of [begin, end) if it lies in one extent at an address aligned to `alignment`, else null.
    uint8_t* aligned_memory(uint64_t begin, uint64_t end, uint64_t alignment) const;
    // The largest end, in whole alignments from `begin`, for which aligned_memory() is not null; `begin` if there is
    // none.
    uint64_t aligned_until(uint64_t begin, uint64_t alignment) const;
    // The first aligned offset in (begin, end) from which aligned_memory() covers at least `min_nbytes` bytes; `end` if
    // there is none.
    uint64_t next_aligned(uint64_t begin, uint64_t end, uint64_t alignment, uint64_t min_nbytes) const;

    // Write path: builds the file image of [begin, end) in `staging`, gaps as zeros. Reads each source byte once.
    // Appends the checksums to `parts`, as do the next two.
    void gather(uint64_t begin, uint64_t end, uint8_t* staging, std::vector<Part>& parts) const;
    // Read path: copies [begin, end) of the file from `staging` to the extents' memory. Where `mirror`, the address
    // that mirrors `begin`, is not null, copies the gaps there.
    void scatter(uint64_t begin, uint64_t end, const uint8_t* staging, uint8_t* mirror, std::vector<Part>& parts) const;
    // Computes the checksums of [begin, end) where the bytes are at `memory` already. The last of `parts` is continued
    // if it is of the same extent: it must end at `begin`.
    void measure(uint64_t begin, uint64_t end, const uint8_t* memory, std::vector<Part>& parts) const;

  private:
    std::vector<Extent> extents_;
};

// The CRC-32 of each extent, combined from parts that are added in file order.
class Checksums {
  public:
    explicit Checksums(size_t count) : crcs_(count, 0), nbytes_(count, 0) {}

    void add(const std::vector<Part>& parts);
    const std::vector<uint32_t>& values() const { return crcs_; }
    // Writes the patches in [begin, end) into the block at `staging`. Their extents must be complete.
    void apply(const std::vector<Patch>& patches, uint64_t begin, uint64_t end, uint8_t* staging) const;

  private:
    std::vector<uint32_t> crcs_;
    std::vector<uint64_t> nbytes_;
};

// Whether a patch lies, even in part, in [begin, end). Patches are sorted by offset.
bool any_patch(const std::vector<Patch>& patches, uint64_t begin, uint64_t end);

}  // namespace fastio
