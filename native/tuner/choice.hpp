// What is believed of the tools at one size, and what follows from it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tuner/cost_estimates.hpp"

namespace fastio {

using Tools = std::vector<std::string>;

// What a belief rests on.
enum class Source { kMeasured, kNearby, kFirstCall, kPrior, kUnknown };

const char* name_of(Source source);

// What a tool is believed to take at one bucket: mean and deviation of the logarithm of seconds, less the shape.
struct Opinion {
    std::string tool;
    double mean = 0, deviation = 0;
    Source source = Source::kUnknown;
    size_t samples = 0, nearby = 0;  // taken in the bucket itself; within reach of it
    bool listed = false;             // the prior says something of the tool,
    double prior = 0;                // namely this: the logarithm of its time relative to others
    int looks = 0;                   // how often it was looked at again in vain

    // Whether the tool was measured at this size or near it.
    bool known() const { return source == Source::kMeasured || source == Source::kNearby; }
    // Whether the prior says something of the tool, and measurement no more than a first call.
    bool only_listed() const { return listed && !known(); }
    // The time expected at the bucket's own size.
    double seconds(int bucket) const;
};

using Opinions = std::vector<Opinion>;

// Which tool to use now. `order` has every candidate, `tool` first and the others best first: what to try when a tool
// refuses. `exploring`: it is tried to learn its time, not because it is believed to be the fastest.
struct Choice {
    std::string tool, reason;
    bool exploring = false;
    Tools order;
};

// A tool that is not the best: after how many calls it is due to be looked at again, and what that should cost beyond
// what the best takes, seconds. `listed`: that is what the prior says, and nothing else is known. `gap`: the logarithm
// of its time over that of the best.
struct Look {
    std::string tool;
    double calls, cost;
    bool listed;
    double gap = 0;
};

// What to do at one bucket, until something is learned.
struct Plan {
    Opinions ranked;  // the best first
    Choice choice;
    std::vector<Look> looks;
    double seconds = 0;  // what the best tool should take
    int uses = 1;        // how often it may be used still,
    long until = 0;      // and up to which call

    // What a try of the tool should cost: nothing where it is the best, or unknown.
    double cost(const std::string& tool) const;
};

}  // namespace fastio
