#include "transfer/staged_lane.hpp"

#include <cstring>
#include <string>

#include "support/errors.hpp"

namespace fastio {

namespace {

// A worker fills or writes one while copies use the other.
constexpr size_t kSlots = 2;

void check(const char* failed) {
    if (failed != nullptr) throw Refused(std::string("a copy between a GPU and pinned memory failed: ") + failed);
}

}  // namespace

void FirstFailure::add(size_t window, std::exception_ptr failure) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!is_set_ || window < window_) {
        failure_ = std::move(failure);
        window_ = window;
    }
    is_set_ = true;
}

void FirstFailure::rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
}

Lane::Lane(uint8_t* memory, uint64_t window, const DeviceCopies* copies) : copies_(copies), slots_(kSlots) {
    for (Slot& slot : slots_) {
        slot.memory = memory;
        memory += window;
    }
}

Lane::~Lane() {
    for (Slot& slot : slots_) {
        for (size_t index = 0; index < slot.marks.size(); ++index) {
            void* event = slot.marks[index].event;
            if (event != nullptr) copies_->destroy_event(streams_[index].stream, event);
        }
    }
    for (const Stream& stream : streams_) copies_->destroy_stream(stream.stream);
}

Slot& Lane::oldest() { return slots_[turn_++ % slots_.size()]; }

void Lane::to_memory(Slot& slot, const MemoryRun& run, const uint8_t* staged) {
    if (run.device == kHost) {
        std::memcpy(run.address, staged, run.end - run.begin);
    } else {
        check(copies_->to_device(stream_of(slot, run.device), run.address, staged, run.end - run.begin));
    }
}

void Lane::to_slot(Slot& slot, const MemoryRun& run, uint8_t* staged) {
    if (run.device == kHost) {
        std::memcpy(staged, run.address, run.end - run.begin);
    } else {
        check(copies_->to_host(stream_of(slot, run.device), staged, run.address, run.end - run.begin));
    }
}

void Lane::mark(Slot& slot) {
    for (size_t index = 0; index < slot.marks.size(); ++index) {
        Slot::Mark& mark = slot.marks[index];
        if (mark.copies != Slot::Copies::kStarted) continue;
        check(copies_->record(streams_[index].stream, mark.event));
        mark.copies = Slot::Copies::kMarked;
    }
}

void Lane::wait(Slot& slot) {
    for (size_t index = 0; index < slot.marks.size(); ++index) {
        Slot::Mark& mark = slot.marks[index];
        if (mark.copies != Slot::Copies::kMarked) continue;
        mark.copies = Slot::Copies::kNone;
        check(copies_->wait(streams_[index].stream, mark.event));
    }
}

void Lane::finish(FirstFailure& failure) noexcept {
    for (Slot& slot : slots_) {
        try {
            wait(slot);
        } catch (...) {
            failure.add(slot.window, std::current_exception());
        }
    }
}

// The stream for a device, whose copies the slot will have to wait for.
void* Lane::stream_of(Slot& slot, int device) {
    size_t index = 0;
    while (index < streams_.size() && streams_[index].device != device) ++index;
    if (index == streams_.size()) {
        void* made = nullptr;
        check(copies_->make_stream(device, &made));
        streams_.push_back({device, made});
    }
    if (slot.marks.size() <= index) slot.marks.resize(index + 1);
    Slot::Mark& mark = slot.marks[index];
    if (mark.event == nullptr) check(copies_->make_event(streams_[index].stream, &mark.event));
    mark.copies = Slot::Copies::kStarted;
    return streams_[index].stream;
}

}  // namespace fastio
