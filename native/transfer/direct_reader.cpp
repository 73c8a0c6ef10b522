#include "transfer/direct_reader.hpp"

#include <algorithm>

#include "memory/populate.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

// For all readers of a file together, and for each of them at least.
constexpr size_t kStagingBlocks = 16, kLeastStagingBlocks = 4;

}  // namespace

ReadState::ReadState(int file, uint64_t size, Extents all, const Span& region, const DirectOptions& wanted,
                     Control& shared)
    : fd(file),
      extents(std::move(all)),
      span(region),
      options(wanted),
      control(shared),
      blocks(extents, span, options, size) {}

void ReadState::stop(uint64_t offset) {
    uint64_t before = limit;
    while (offset < before && !limit.compare_exchange_weak(before, offset)) {
    }
}

DirectReader::DirectReader(ReadState& state)
    : state_(state), queue_(false, state.fd, state.options.depth, state.options.alignment, state.options.threads) {}

void DirectReader::fill() {
    while (queue_.has_room() && send()) {
    }
}

void DirectReader::run() {
    try {
        for (;;) {
            fill();
            if (queue_.is_empty()) return;
            receive();
        }
    } catch (...) {
        state_.stop(offset_of(std::current_exception()));
        throw;
    }
}

// Sends the next block. Returns false if there is none, or if it needs a staging block and none is free.
bool DirectReader::send() {
    if (at_ == taken_.size()) {
        taken_ = state_.blocks.take();
        at_ = 0;
        if (taken_.empty()) return false;
    }
    Block block = taken_[at_];
    if (block.offset >= state_.limit) return false;
    block.staged = block.memory == nullptr || state_.options.staged;
    if (block.staged) {
        if (staging_ == nullptr) {
            const uint64_t nbytes = state_.options.block;
            const size_t blocks = std::max(kStagingBlocks / state_.options.readers, kLeastStagingBlocks);
            staging_ = std::make_unique<Staging>(blocks * nbytes, state_.options.alignment);
            for (size_t each = 0; each < blocks; ++each) free_.push_back(staging_->data() + each * nbytes);
        }
        if (free_.empty()) return false;
        block.memory = free_.back();
        free_.pop_back();
    } else if (state_.span.address != nullptr) {
        populate(block.memory, block.nbytes);
    }
    state_.control.check();
    ++at_;
    queue_.send(block);
    queue_.flush();
    return true;
}

void DirectReader::receive() {
    unsigned slot;
    Block done = queue_.receive(slot);
    const uint64_t end = done.offset + done.needed;
    const Span& span = state_.span;
    parts_.emplace_back(done.offset, std::vector<Part>());
    std::vector<Part>& measured = parts_.back().second;
    if (done.staged) {
        uint8_t* mirror = span.address != nullptr ? span.address + (done.offset - span.offset) : nullptr;
        if (mirror != nullptr) populate(mirror, done.needed);
        state_.extents.scatter(done.offset, end, done.memory, mirror, measured);
        free_.push_back(done.memory);
    } else {
        state_.extents.measure(done.offset, end, done.memory, measured);
    }
    state_.control.advance(done.needed);
}

}  // namespace fastio
