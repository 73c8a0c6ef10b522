#include "transfer/memory_checksums.hpp"

#include <algorithm>

#include "checksum/crc32.hpp"
#include "transfer/workers.hpp"

namespace fastio {

namespace {

constexpr uint64_t kPiece = 1 << 20;           // a unit of work
constexpr uint64_t kBytesPerThread = 8 << 20;  // from here on another thread pays off

struct Piece {
    size_t index;
    const uint8_t* address;
    uint64_t nbytes;
};

}  // namespace

std::vector<uint32_t> memory_checksums(const std::vector<Extent>& extents, unsigned threads) {
    std::vector<Piece> pieces;
    uint64_t nbytes = 0;
    for (size_t index = 0; index < extents.size(); ++index) {
        for (uint64_t at = 0; at < extents[index].nbytes; at += kPiece) {
            pieces.push_back({index, extents[index].address + at, std::min(kPiece, extents[index].nbytes - at)});
        }
        nbytes += extents[index].nbytes;
    }
    std::vector<Part> parts(pieces.size());
    const uint64_t useful = std::clamp<uint64_t>(nbytes / kBytesPerThread, 1, std::max(threads, 1U));
    run_workers(static_cast<unsigned>(useful), pieces.size(), [&](unsigned, uint64_t number) {
        const Piece& piece = pieces[number];
        parts[number] = {piece.index, piece.nbytes, crc32(0, piece.address, piece.nbytes)};
    });
    Checksums checksums(extents.size());
    checksums.add(parts);
    return checksums.values();
}

}  // namespace fastio
