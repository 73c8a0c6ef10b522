// Registers memory with a ring: the kernel pins and maps it once.
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io_engine/io_uring.hpp"

namespace fastio {

namespace {

constexpr unsigned kPieces = 64;
constexpr size_t kLargestPiece = size_t{1} << 30;  // the kernel's own limit

// Constants and types that older headers lack.
constexpr unsigned kUpdateBuffers = 16;  // IORING_REGISTER_BUFFERS_UPDATE

struct Update {  // io_uring_rsrc_update2
    uint32_t offset, reserved;
    uint64_t data, tags;
    uint32_t count, reserved2;
};

}  // namespace

std::string Ring::register_memory(uint8_t* memory, size_t nbytes) {
    const auto owner = reinterpret_cast<uintptr_t>(memory);
    for (size_t done = 0; done < nbytes; done += std::min(nbytes - done, kLargestPiece)) {
        std::string refusal = register_piece(memory + done, std::min(nbytes - done, kLargestPiece), owner);
        if (refusal.empty()) continue;
        unregister_memory(memory);
        return refusal;
    }
    return {};
}

std::string Ring::register_piece(uint8_t* memory, size_t nbytes, uintptr_t owner) {
    if (pieces_.empty() && !make_table()) {
        const iovec piece{memory, nbytes};
        if (syscall(SYS_io_uring_register, fd_, IORING_REGISTER_BUFFERS, &piece, 1) < 0) return std::strerror(errno);
        pieces_.push_back({reinterpret_cast<uintptr_t>(memory), nbytes, owner});
        return {};
    }
    auto room = std::find_if(pieces_.begin(), pieces_.end(), [](const Piece& piece) { return piece.nbytes == 0; });
    if (room == pieces_.end() && pieces_.size() == kPieces)
        return "all " + std::to_string(kPieces) + " of its registered buffers are in use";
    const auto number = static_cast<unsigned>(room - pieces_.begin());
    if (!update_piece(number, memory, nbytes)) return std::strerror(errno);
    if (room == pieces_.end()) room = pieces_.insert(room, Piece{});
    *room = {reinterpret_cast<uintptr_t>(memory), nbytes, owner};
    return {};
}

// Registers a table of empty buffers, which can be updated one by one. Returns false on kernels before 5.13, which lack
// such tables.
bool Ring::make_table() {
    const std::vector<iovec> none(kPieces, iovec{nullptr, 0});
    return syscall(SYS_io_uring_register, fd_, IORING_REGISTER_BUFFERS, none.data(), kPieces) == 0 || errno == EBUSY;
}

bool Ring::update_piece(unsigned number, uint8_t* memory, size_t nbytes) {
    const iovec piece{memory, nbytes};
    const Update update{number, 0, reinterpret_cast<uintptr_t>(&piece), 0, 1, 0};
    return syscall(SYS_io_uring_register, fd_, kUpdateBuffers, &update, sizeof update) == 1;
}

void Ring::unregister_memory(uint8_t* memory) {
    for (size_t number = 0; number < pieces_.size(); ++number) {
        Piece& piece = pieces_[number];
        if (piece.nbytes == 0 || piece.owner != reinterpret_cast<uintptr_t>(memory)) continue;
        // If this fails, the pages stay pinned until the ring is destroyed, but no request uses them any more.
        update_piece(static_cast<unsigned>(number), nullptr, 0);
        piece = {};
    }
}

int Ring::registered(const void* memory, uint32_t nbytes) const {
    for (size_t number = 0; number < pieces_.size(); ++number) {
        const Piece& piece = pieces_[number];
        const uintptr_t within = reinterpret_cast<uintptr_t>(memory) - piece.memory;  // wraps around if below
        if (within < piece.nbytes && nbytes <= piece.nbytes - within) return static_cast<int>(number);
    }
    return -1;
}

}  // namespace fastio
