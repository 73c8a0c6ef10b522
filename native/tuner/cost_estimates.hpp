// What each tool is believed to take at one size: its own samples, those at the sizes around, and the prior.
#pragma once

#include <vector>

#include "tuner/random_walk.hpp"

namespace fastio {

// What is known of one tool. No curve: nothing was ever measured of it.
struct Known {
    const Curve* curve;
    Belief prior;  // the logarithm of its time over that of other tools
};

struct Estimate {
    Belief belief;  // of the logarithm of seconds, less the shape
    bool heard;     // it rests on samples, if only on first calls
    size_t samples, nearby;
};

// The estimates of all tools at a bucket, in their order.
//
// The prior knows only ratios, so its level is fitted to the tools that were measured; where it contradicts them, it
// loses weight for all (empirical Bayes).
std::vector<Estimate> estimates(const std::vector<Known>& tools, int bucket);

// The same for a process's first call: what tools took as such, and where little is known of that, what they take
// later. All of them take longer then, by as much as those did that were measured; one more than another, since it
// starts threads, say.
std::vector<Estimate> first_estimates(std::vector<Known> tools, int bucket);

}  // namespace fastio
