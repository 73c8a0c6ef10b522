#include "prior.hpp"

#include <algorithm>
#include <iterator>

#include "buckets.hpp"

namespace fastio {

namespace {

constexpr Belief kUnlisted{0.2, 0.6 * 0.6};  // of a tool of which nothing is said
// The share of the doubt where the bytes are few: what a call takes there is the work of code that is the same
// everywhere, and beyond that of a machine's disk and memory.
constexpr double kSmallDoubt = 0.5;

}  // namespace

Belief Prior::at(int bucket, const std::string& tool) const {
    auto after = std::find_if(costs_.begin(), costs_.end(), [bucket](const auto& at) { return at.first >= bucket; });
    const auto& low = after == costs_.begin() ? *after : *std::prev(after);
    const auto& high = after == costs_.end() ? costs_.back() : *after;
    auto below = low.second.find(tool), above = high.second.find(tool);
    if (below == low.second.end() || above == high.second.end()) return kUnlisted;
    double share = bucket >= high.first ? 1 : 0;
    if (low.first < bucket && bucket < high.first) {
        share = static_cast<double>(bucket - low.first) / (high.first - low.first);
    }
    double nbytes = static_cast<double>(bucket_nbytes(bucket)), bytes = nbytes / (nbytes + kLatencyNbytes);
    double doubt = doubt_ * (kSmallDoubt + (1 - kSmallDoubt) * bytes);
    return {below->second + share * (above->second - below->second), doubt * doubt};
}

}  // namespace fastio
