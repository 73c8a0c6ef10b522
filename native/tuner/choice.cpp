#include "tuner/choice.hpp"

#include <algorithm>
#include <cmath>

#include "tuner/buckets.hpp"

namespace fastio {

const char* name_of(Source source) {
    switch (source) {
        case Source::kMeasured:
            return "measured";
        case Source::kNearby:
            return "nearby sizes";
        case Source::kFirstCall:
            return "first calls";
        case Source::kPrior:
            return "prior";
        default:
            return "unknown";
    }
}

double Opinion::seconds(int bucket) const { return std::exp(std::min(mean + shape_at(bucket), 100.0)); }

double Plan::cost(const std::string& tool) const {
    for (const Look& look : looks) {
        if (look.tool == tool) return look.cost;
    }
    return 0;
}

}  // namespace fastio
