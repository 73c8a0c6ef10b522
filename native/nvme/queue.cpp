#include "nvme/queue.hpp"

#include <cstring>

namespace fastio {

NvmeQueue::NvmeQueue(nvme::Command* commands, nvme::Completion* completions, unsigned entries,
                     volatile uint32_t* tail_doorbell, volatile uint32_t* head_doorbell)
    : commands_(commands),
      completions_(completions),
      entries_(entries),
      tail_doorbell_(tail_doorbell),
      head_doorbell_(head_doorbell) {
    clear();
}

void NvmeQueue::clear() {
    std::memset(static_cast<void*>(completions_), 0,
                entries_ * sizeof(nvme::Completion));  // phase 0: not new
    tail_ = written_tail_ = head_ = written_head_ = 0;
    phase_ = 1;
}

void NvmeQueue::push(const nvme::Command& command) {
    commands_[tail_] = command;
    tail_ = tail_ + 1 == entries_ ? 0 : tail_ + 1;
}

void NvmeQueue::ring() {
    if (tail_ == written_tail_) return;
    if (head_ != written_head_) {
        *head_doorbell_ = written_head_ = head_;
        ++doorbells_;
    }
    device_write_fence();
    *tail_doorbell_ = written_tail_ = tail_;
    ++doorbells_;
}

bool NvmeQueue::ready() const { return (__atomic_load_n(&completions_[head_].status, __ATOMIC_ACQUIRE) & 1) == phase_; }

bool NvmeQueue::pop(nvme::Completion& completion) {
    if (!ready()) return false;
    device_read_fence();
    completion = completions_[head_];
    head_ = head_ + 1 == entries_ ? 0 : head_ + 1;
    if (head_ == 0) phase_ ^= 1;
    return true;
}

}  // namespace fastio
