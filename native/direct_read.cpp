#include <algorithm>
#include <memory>

#include "direct.hpp"
#include "errors.hpp"
#include "memory.hpp"
#include "populate.hpp"
#include "queue.hpp"

namespace fastio {

namespace {

// The blocks of a file that hold extents, in order; with a span, its own pieces.
class Blocks {
  public:
    Blocks(const Extents& extents, const Span& span, const DirectOptions& options, uint64_t size)
        : extents_(extents), span_(span), options_(options), size_(size) {
        at_ = span.address != nullptr ? span.offset : 0;
    }

    bool next(Block& block) {
        uint64_t end = span_.address != nullptr ? span_.offset + span_.nbytes : size_;
        if (span_.address == nullptr) skip_gap(end);
        if (at_ >= end) return false;
        uint64_t stop = std::min((at_ / options_.block + 1) * options_.block, end);
        if (span_.address == nullptr) stop = without_gap(stop);
        uint64_t rounded = (stop - at_ + options_.alignment - 1) / options_.alignment * options_.alignment;
        block = {at_, rounded, std::min(stop, size_) - at_, nullptr, 0, false};
        if (span_.address != nullptr) {
            block.memory = span_.address + (at_ - span_.offset);
        } else if (rounded == stop - at_) {
            block.memory = extents_.lend(at_, stop, options_.alignment);
        }
        at_ = stop;
        return true;
    }

  private:
    const Extents& extents_;
    const Span& span_;
    const DirectOptions& options_;
    uint64_t size_;
    uint64_t at_;

    void skip_gap(uint64_t end) {
        const auto& all = extents_.all();
        size_t index = extents_.first_after(at_);
        while (index < all.size() && all[index].nbytes == 0) ++index;
        if (index == all.size()) {
            at_ = end;
        } else if (all[index].offset > at_) {
            at_ = std::max(at_, all[index].offset / options_.alignment * options_.alignment);
        }
    }

    // Where the last extent in [at_, stop) ends, in whole alignments: behind it may lie what nobody wants.
    uint64_t without_gap(uint64_t stop) const {
        const auto& all = extents_.all();
        const size_t index = extents_.first_after(stop - 1);
        if (index == 0 || (index < all.size() && all[index].offset < stop)) return stop;
        return std::min(stop, round_up(all[index - 1].end(), options_.alignment));
    }
};

}  // namespace

// What the constructor and finish() share. Blocks finish in any order: their checksums are kept apart and joined in
// file order at the end.
struct DirectRead::State {
    Extents extents;
    Span span;
    DirectOptions options;
    Control& control;
    std::unique_ptr<Staging> staging;  // outlives the queue, which waits for what is in flight
    Queue queue;
    Blocks blocks;
    Block next;
    bool more;
    std::vector<std::vector<Part>> parts;
    std::vector<size_t> numbers;

    State(int fd, uint64_t size, Extents&& all, const Span& whole, const DirectOptions& wanted, Control& shared)
        : extents(std::move(all)),
          span(whole),
          options(wanted),
          control(shared),
          staging(span.address == nullptr ? std::make_unique<Staging>(wanted.block * wanted.depth, wanted.alignment)
                                          : nullptr),
          queue(false, fd, wanted.depth, wanted.alignment),
          blocks(extents, span, options, size),
          more(blocks.next(next)),
          numbers(wanted.depth) {}

    void send() {
        control.check();
        unsigned slot = queue.next_slot();
        if (span.address != nullptr) {
            populate(next.memory, next.nbytes);
        } else if (next.memory == nullptr) {
            next.memory = staging->data() + slot * options.block;
            next.staged = true;
        }
        numbers[slot] = parts.size();
        parts.emplace_back();
        queue.send(next);
        queue.flush();
        more = blocks.next(next);
    }

    void receive() {
        unsigned slot;
        Block done = queue.receive(slot);
        uint64_t end = done.offset + done.needed;
        std::vector<Part>& measured = parts[numbers[slot]];
        if (done.staged) {
            extents.scatter(done.offset, end, done.memory, measured);
        } else {
            extents.measure(done.offset, end, done.memory, measured);
        }
        control.advance(done.needed);
    }
};

DirectRead::DirectRead(int fd, uint64_t size, Extents extents, const Span& span, const DirectOptions& options,
                       Control& control)
    : state_(std::make_unique<State>(fd, size, std::move(extents), span, options, control)) {
    while (state_->more && state_->queue.has_room()) state_->send();
}

DirectRead::~DirectRead() = default;

std::vector<uint32_t> DirectRead::finish() {
    std::unique_ptr<State> state = std::move(state_);
    if (state == nullptr) throw Refused("this read is over already");
    while (state->more || !state->queue.is_empty()) {
        if (state->more && state->queue.has_room()) {
            state->send();
        } else {
            state->receive();
        }
    }
    Checksums checksums(state->extents.all().size());
    for (const std::vector<Part>& measured : state->parts) checksums.add(measured);
    return checksums.values();
}

void DirectRead::close() { state_.reset(); }

}  // namespace fastio
