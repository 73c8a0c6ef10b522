// Digests of copied memory, block by block. They find what changed since the copy by reading only the source.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "checksum/nh_hash.hpp"

namespace fastio {

// Uses NH under a random key that is never revealed, so data cannot be crafted to collide.
class Digests {
  public:
    static constexpr uint64_t kBlock = 16 << 10;  // with the key, which is as long, fits in the first-level cache

    // Makes room for `blocks` digests. Throws SystemError if the system gives no random bytes.
    explicit Digests(size_t blocks);

    // Copies `nbytes` from `source` to `target`, whose blocks are numbered from `first` on; returns the CRC-32 of the
    // copy. Threads may copy different blocks at once. Throws Refused for blocks out of range.
    uint32_t copy(size_t first, uint8_t* target, const uint8_t* source, uint64_t nbytes);

    // As copy(), but copies only blocks whose digest differs from that of the last copy, which must have had the same
    // target and blocks. Returns whether any block was copied.
    bool update(size_t first, uint8_t* target, const uint8_t* source, uint64_t nbytes);

    // Whether the first block of `nbytes` at `source` changed since it was copied: a quick test, since most changed
    // tensors differ there.
    bool differs(size_t first, const uint8_t* source, uint64_t nbytes) const;

  private:
    std::array<uint32_t, kBlock / sizeof(uint32_t) + kNhExtraKeyWords> key_;
    std::vector<NhDigest> digests_;

    void require(size_t first, uint64_t nbytes) const;
    NhDigest digest(const uint8_t* data, uint64_t nbytes) const noexcept;
};

}  // namespace fastio
