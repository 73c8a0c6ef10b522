// Copies of memory that are made again and again, with the CRC-32s of the copies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transfer/control.hpp"

namespace fastio {

// Threads share the work: each of them calls run(). A training state has a thousand tensors, so what is done for each
// of them is done here, once, and not in Python at each save.
class CopyBatch {
  public:
    // CRC-32s are computed of blocks of `block` bytes, the last of which may be shorter.
    struct Copy {
        uint8_t* target;
        const uint8_t* source;
        uint64_t nbytes;
        uint64_t block;
    };

    // Throws Refused for a block of no bytes, or of more than a piece has.
    explicit CopyBatch(std::vector<Copy> copies);

    // Begins anew: all copies are to be made. No thread may be in run().
    void begin() noexcept;

    // Makes copies of at least `most` bytes, until none is left that another thread has not begun, or `control` is
    // cancelled. Returns whether some may be left.
    bool run(const Control& control, uint64_t most) noexcept;

    // The CRC-32 of each copy. Throws Refused unless all were made.
    const std::vector<uint32_t>& crcs() const;

    // Those of the blocks of a copy. Throws Refused unless all were made, or for a copy that there is not.
    std::vector<uint32_t> block_crcs(size_t copy) const;

    size_t size() const noexcept { return copies_.size(); }
    uint64_t nbytes() const noexcept { return nbytes_; }

  private:
    // What one thread copies at a time: small enough that all threads end together.
    static constexpr uint64_t kPiece = 4 << 20;

    struct Piece {
        size_t copy;
        uint64_t offset;
        uint64_t nbytes;
    };

    std::vector<Copy> copies_;
    std::vector<Piece> pieces_;
    std::vector<size_t> first_block_;  // of each copy, in blocks_
    std::vector<uint32_t> blocks_;
    std::vector<uint32_t> crcs_;
    std::vector<std::atomic<uint32_t>> left_;  // pieces of each copy
    std::atomic<size_t> next_{0};
    std::atomic<size_t> made_{0};
    uint64_t nbytes_ = 0;

    void make(const Piece& piece) noexcept;
    void require_all() const;
};

}  // namespace fastio
