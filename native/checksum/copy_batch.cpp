#include "checksum/copy_batch.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "checksum/block_crcs.hpp"
#include "checksum/crc32.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

uint64_t blocks_of(const CopyBatch::Copy& copy) { return copy.nbytes / copy.block + (copy.nbytes % copy.block != 0); }

// Copies of less are read soon by the processor, and begin and end within lines.
constexpr uint64_t kSmall = 64 << 10;

}  // namespace

CopyBatch::CopyBatch(std::vector<Copy> copies) : copies_(std::move(copies)), left_(copies_.size()) {
    crcs_.resize(copies_.size());
    size_t blocks = 0;
    for (size_t number = 0; number < copies_.size(); ++number) {
        const Copy& copy = copies_[number];
        if (copy.block == 0 || kPiece % copy.block != 0) {
            throw Refused("expected blocks that divide " + std::to_string(kPiece) + " bytes, got " +
                          std::to_string(copy.block));
        }
        first_block_.push_back(blocks);
        blocks += blocks_of(copy);
        nbytes_ += copy.nbytes;
        for (uint64_t offset = 0; offset < copy.nbytes; offset += kPiece) {
            pieces_.push_back({number, offset, std::min(kPiece, copy.nbytes - offset)});
        }
    }
    blocks_.resize(blocks);
    begin();
}

void CopyBatch::begin() noexcept {
    for (auto& left : left_) left.store(0, std::memory_order_relaxed);
    for (const Piece& piece : pieces_) left_[piece.copy].fetch_add(1, std::memory_order_relaxed);
    made_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_release);
}

bool CopyBatch::run(const Control& control, uint64_t most) noexcept {
    for (uint64_t nbytes = 0; nbytes < most;) {
        if (control.cancelled.load(std::memory_order_relaxed)) return false;
        const size_t number = next_.fetch_add(1, std::memory_order_acq_rel);
        if (number >= pieces_.size()) return false;
        make(pieces_[number]);
        nbytes += pieces_[number].nbytes;
        made_.fetch_add(1, std::memory_order_acq_rel);
    }
    return true;
}

void CopyBatch::make(const Piece& piece) noexcept {
    const Copy& copy = copies_[piece.copy];
    uint32_t* crcs = blocks_.data() + first_block_[piece.copy];
    for (uint64_t at = piece.offset, end = at + piece.nbytes; at < end; at += copy.block) {
        const uint64_t nbytes = std::min(copy.block, end - at);
        const auto crc_of_copy = nbytes < kSmall ? crc32_copy : crc32_streaming_copy;
        crcs[at / copy.block] = crc_of_copy(0, copy.target + at, copy.source + at, nbytes);
    }
    if (left_[piece.copy].fetch_sub(1, std::memory_order_acq_rel) == 1) {
        crcs_[piece.copy] = crc32_of_blocks(crcs, blocks_of(copy), copy.nbytes, copy.block);
    }
}

const std::vector<uint32_t>& CopyBatch::crcs() const {
    require_all();
    return crcs_;
}

std::vector<uint32_t> CopyBatch::block_crcs(size_t copy) const {
    require_all();
    if (copy >= copies_.size()) throw Refused("there is no copy of number " + std::to_string(copy));
    const auto first = blocks_.begin() + static_cast<std::ptrdiff_t>(first_block_[copy]);
    return {first, first + static_cast<std::ptrdiff_t>(blocks_of(copies_[copy]))};
}

void CopyBatch::require_all() const {
    if (made_.load(std::memory_order_acquire) != pieces_.size()) throw Refused("not all copies were made");
}

}  // namespace fastio
