#include "transfer/staged_checksums.hpp"

#include <utility>

namespace fastio {

void WindowChecksums::put(size_t window, std::vector<Part> parts) {
    std::lock_guard<std::mutex> lock(mutex_);
    parts_[window] = std::move(parts);
    for (; added_ < parts_.size() && parts_[added_]; ++added_) {
        checksums_.add(*parts_[added_]);
        parts_[added_].reset();
    }
    changed_.notify_all();
}

bool WindowChecksums::patch(const std::vector<Patch>& patches, size_t window, uint64_t begin, uint64_t end,
                            uint8_t* memory) {
    if (!any_patch(patches, begin, end)) return true;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return added_ > window || stopped_; });
    if (added_ <= window) return false;
    checksums_.apply(patches, begin, end, memory);
    return true;
}

void WindowChecksums::stop() {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
}

}  // namespace fastio
