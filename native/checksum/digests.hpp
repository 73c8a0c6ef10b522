// Digests of memory that was copied, block by block: so what changed since is found by reading its source alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "checksum/nh_hash.hpp"

namespace fastio {

// By NH under a key that is drawn when this is made and that nobody is told: no data can be unlucky on purpose.
class Digests {
  public:
    static constexpr uint64_t kBlock = 16 << 10;  // with the key, which is as long, it stays in the first-level cache

    // Room for so many blocks. Throws SystemError if the system gives no random bytes.
    explicit Digests(size_t blocks);

    // Copy `nbytes` from `source` to `target`, whose blocks are numbered from `first` on; with `compare`, only blocks
    // whose digest is not that of the last copy, which must have been to the same memory, cut in the same way. Gives
    // whether any was copied. Several threads may, of different blocks. Throws Refused for blocks that are not there.
    bool copy(size_t first, uint8_t* target, const uint8_t* source, uint64_t nbytes, bool compare);

    // Whether the first block of `nbytes` at `source` is other than when it was copied. Most that changed differ there.
    bool differs(size_t first, const uint8_t* source, uint64_t nbytes) const;

  private:
    std::array<uint32_t, kBlock / sizeof(uint32_t) + kNhExtraKeyWords> key_;
    std::vector<NhDigest> digests_;

    void require(size_t first, uint64_t nbytes) const;
    NhDigest digest(const uint8_t* data, uint64_t nbytes) const noexcept;
};

}  // namespace fastio
