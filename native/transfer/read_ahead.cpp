#include "transfer/read_ahead.hpp"

#include <fcntl.h>

#include <algorithm>

namespace fastio {

void ReadAhead::reach(uint64_t offset) {
    uint64_t limit = std::min(offset + kAhead, end_);
    if (whole_) {
        advise(0, limit);  // starts at `begin`: next_ skips the pieces before it
        return;
    }
    for (; index_ < all_.size() && all_[index_].offset < limit; ++index_) {
        advise(all_[index_].offset, std::min(all_[index_].end(), limit));
        if (all_[index_].end() > limit) break;
    }
}

// Advises the pieces of [from, to) that had no advice yet. A kernel that ignores it reads on demand.
void ReadAhead::advise(uint64_t from, uint64_t to) {
    next_ = std::max(next_, from / kPiece);
    for (; next_ * kPiece < to; ++next_) {
        posix_fadvise(fd_, static_cast<off_t>(next_ * kPiece), static_cast<off_t>(kPiece), POSIX_FADV_WILLNEED);
    }
}

}  // namespace fastio
