#include "execution/clocks.hpp"

#include <algorithm>

namespace simulated {

void Clock::advance(int stream, uint64_t sequence) {
    if (stream >= static_cast<int>(last_.size())) last_.resize(stream + 1, 0);
    last_[stream] = std::max(last_[stream], sequence);
}

void Clock::join(const Clock& other) {
    if (other.last_.size() > last_.size()) last_.resize(other.last_.size(), 0);
    for (size_t stream = 0; stream < other.last_.size(); ++stream)
        last_[stream] = std::max(last_[stream], other.last_[stream]);
}

std::optional<Access> History::conflict(uintptr_t begin, uintptr_t end, bool write, const Clock& now) const {
    for (auto access = accesses_.rbegin(); access != accesses_.rend(); ++access) {
        const bool overlaps = access->begin < end && begin < access->end;
        if (overlaps && (write || access->write) && now.at(access->stream) < access->sequence) return *access;
    }
    return std::nullopt;
}

void History::add(Access added, const Clock& host) {
    auto superseded = [&](const Access& access) {
        if (host.at(access.stream) >= access.sequence) return true;
        const bool covered = added.begin <= access.begin && access.end <= added.end;
        // A write was ordered after all that it covers, so what is ordered after the write is ordered after those.
        return covered && (added.write || (!access.write && access.stream == added.stream));
    };
    accesses_.erase(std::remove_if(accesses_.begin(), accesses_.end(), superseded), accesses_.end());
    accesses_.push_back(std::move(added));
}

void History::append(const History& other) {
    accesses_.insert(accesses_.end(), other.accesses_.begin(), other.accesses_.end());
}

History History::part(uintptr_t begin, uintptr_t end) const {
    History result;
    for (Access access : accesses_) {
        access.begin = std::max(access.begin, begin);
        access.end = std::min(access.end, end);
        if (access.begin < access.end) result.accesses_.push_back(std::move(access));
    }
    return result;
}

}  // namespace simulated
