// What is known of a tool at one size from what it took at the sizes around it. Pure arithmetic on logarithms.
//
// The time of a tool over the size is a smooth curve, so its samples in one bucket say something about the next: less,
// the further away. The model is a random walk over the buckets, solved from either side (Kalman, 1960) after the
// common trend is taken off: the shape latency + size / bandwidth, and the local slope that is left. What one tool
// takes over another walks more slowly (in two recorded traces 0.04 and 0.07 a bucket where a tool alone walks 0.08),
// so all but the tool that is known best are compared with that one's curve. What that cannot explain is an outlier, or
// the curve has a step or a bump there. The belief is the mixture of them all (Harrison and Stevens, 1976): so a
// bucket's own samples win once several agree, and where one alone speaks against the sizes around, doubt is left.
#pragma once

#include <initializer_list>
#include <vector>

#include "tuner/curve.hpp"

namespace fastio {

// Of the logarithm of a tool's time less the shape, from one bucket to the next; and of its time over that of the tool
// known best.
constexpr double kWalkVariance = 0.075 * 0.075, kBesideVariance = 0.04 * 0.04;

struct Belief {
    double mean, variance;
};

// A curve's belief some buckets away.
struct Level {
    int distance;
    Belief belief;
};

// One explanation of what was heard: its odds, the variance of the belief if it holds, and the share of the way from
// there to what was heard that the belief then goes.
struct Explanation {
    double odds, gain, variance;
};

// The belief after something was heard `off` from the mean `before`: the moments of the mixture of all explanations.
Belief explained(double before, double off, std::initializer_list<Explanation> explanations);

// The slope per bucket that all tools have in common once the shape is taken off: analysis of covariance.
double common_slope(const std::vector<std::vector<Point>>& tools);

// The curve at distance zero, of at least one point: the walks from the left and the right, then its own point.
// `per_bucket` is the walk's variance from one bucket to the next.
Belief at_zero(const std::vector<Point>& points, double slope, double per_bucket);

// The curve at each of its points, by the point and all on either side of it.
std::vector<Level> smooth(const std::vector<Point>& points, double slope);

// The points less what the leader's curve (of `smooth`) has there, plus what it has at zero: `here`.
std::vector<Point> beside(std::vector<Point> points, const std::vector<Level>& leader, double here);

}  // namespace fastio
