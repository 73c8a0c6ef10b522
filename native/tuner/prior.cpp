#include "tuner/prior.hpp"

#include <algorithm>
#include <iterator>

namespace fastio {

namespace {

constexpr Belief kUnlisted{0.2, 0.6 * 0.6};  // of a tool of which nothing is said

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
    auto between = [share](double one, double other) { return one + share * (other - one); };
    double doubt = between(below->second.doubt, above->second.doubt);
    return {between(below->second.mean, above->second.mean), doubt * doubt};
}

}  // namespace fastio
