// Memory that the devices access: the caller's mapped memory, and the store's bounce buffers.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "block_store/store.hpp"
#include "support/errors.hpp"

namespace fastio {

void BlockStore::map(uint8_t* memory, uint64_t nbytes) {
    std::unique_lock<std::mutex> lock = enter();
    if (nbytes == 0) throw std::invalid_argument("cannot map 0 bytes");
    if (mapped_.count(memory) != 0) throw std::invalid_argument("this memory is mapped already");
    std::string refusal = driver_->map_memory(memory, nbytes);
    if (!refusal.empty()) throw Refused(refusal);
    mapped_.emplace(memory, nbytes);
}

void BlockStore::unmap(uint8_t* memory) {
    std::unique_lock<std::mutex> lock = enter();
    auto found = mapped_.find(memory);
    if (found == mapped_.end()) throw std::invalid_argument("this memory is not mapped");
    const uint64_t nbytes = found->second;
    while (is_in_use(memory, nbytes)) wait_for_progress(lock);
    if (mapped_.erase(memory) == 1) driver_->unmap_memory(memory);  // else another thread did it
}

bool BlockStore::is_in_use(const uint8_t* memory, uint64_t nbytes) const {
    auto overlaps = [=](const uint8_t* other, uint64_t others) {
        return other < memory + nbytes && other + others > memory;
    };
    auto uses = [=](const Command& command) { return command.entry && overlaps(command.memory, command.payload); };
    auto awaits = [=](const WaitingRead& read) { return overlaps(read.memory, read.nbytes); };
    auto has_reads = [=](const auto& row) {
        return std::any_of(row.second->reads.begin(), row.second->reads.end(), awaits);
    };
    return std::any_of(slots_.begin(), slots_.end(), uses) || std::any_of(reads_.begin(), reads_.end(), uses) ||
           std::any_of(writes_.begin(), writes_.end(), uses) || std::any_of(table_.begin(), table_.end(), has_reads);
}

bool BlockStore::is_reachable(const uint8_t* memory, uint64_t nbytes) const {
    return reinterpret_cast<uintptr_t>(memory) % memory_alignment_ == 0 && driver_->reaches(memory, nbytes);
}

// Returns a slice of the bounce buffer, or null while all are in use.
uint8_t* BlockStore::take_bounce() {
    if (!bounce_) {
        auto made = std::make_unique<Bounce>();
        std::string refusal = driver_->map_memory(made->data(), made->nbytes());
        if (!refusal.empty()) {
            if (!is_reachable(made->data(), made->nbytes())) throw Refused("no bounce buffer: " + refusal);
            notes_.push_back("bounced bytes by plain commands: " + refusal);
        }
        bounce_ = std::move(made);
    }
    return bounce_->take();
}

}  // namespace fastio
