#include "transfer/direct_reader.hpp"

#include <algorithm>

#include "memory/populate.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

constexpr size_t kStagingBlocks = 8;

}  // namespace

Reading::Reading(int file, uint64_t size, Extents all, const Span& region, const DirectOptions& wanted, Control& shared)
    : fd(file),
      extents(std::move(all)),
      span(region),
      options(wanted),
      control(shared),
      blocks(extents, span, options, size) {}

void Reading::stop(uint64_t offset) {
    uint64_t before = limit;
    while (offset < before && !limit.compare_exchange_weak(before, offset)) {
    }
}

DirectReader::DirectReader(Reading& reading, unsigned depth)
    : reading_(reading), queue_(false, reading.fd, depth, reading.options.alignment, reading.options.threads) {}

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
        reading_.stop(place_of(std::current_exception()));
        throw;
    }
}

// False where there is none to send, or it has to wait for a staging block.
bool DirectReader::send() {
    if (at_ == taken_.size()) {
        taken_ = reading_.blocks.take();
        at_ = 0;
        if (taken_.empty()) {
            reading_.is_ending = true;
            return false;
        }
    }
    Block block = taken_[at_];
    if (block.offset >= reading_.limit) return false;
    block.can_land = block.memory != nullptr;
    block.staged = !block.can_land || (reading_.choice != nullptr && reading_.choice->staged());
    if (block.staged) {
        if (staging_ == nullptr) {
            const uint64_t nbytes = reading_.options.block;
            staging_ = std::make_unique<Staging>(kStagingBlocks * nbytes, reading_.options.alignment);
            for (size_t each = 0; each < kStagingBlocks; ++each) free_.push_back(staging_->data() + each * nbytes);
        }
        if (free_.empty()) return false;
        block.memory = free_.back();
        free_.pop_back();
    } else if (reading_.span.address != nullptr) {
        populate(block.memory, block.nbytes);
    }
    reading_.control.check();
    ++at_;
    queue_.send(block);
    queue_.flush();
    return true;
}

void DirectReader::receive() {
    unsigned slot;
    Block done = queue_.receive(slot);
    const uint64_t end = done.offset + done.needed;
    const Span& span = reading_.span;
    parts_.emplace_back(done.offset, std::vector<Part>());
    std::vector<Part>& measured = parts_.back().second;
    if (done.staged) {
        uint8_t* mirror = span.address != nullptr ? span.address + (done.offset - span.offset) : nullptr;
        if (mirror != nullptr) populate(mirror, done.needed);
        reading_.extents.scatter(done.offset, end, done.memory, mirror, measured);
        free_.push_back(done.memory);
    } else {
        reading_.extents.measure(done.offset, end, done.memory, measured);
    }
    if (reading_.choice != nullptr && done.can_land && !reading_.is_ending)
        reading_.choice->hear(done.staged, done.needed);
    reading_.control.advance(done.needed);
}

}  // namespace fastio
