#include "tuner/random_walk.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

namespace fastio {

namespace {

constexpr double kSlopeRidge = 400;  // holds the slope at nought until samples spread over sizes say otherwise
constexpr double kSurprised = 2;     // deviations: further off than this it may be something else than noise
// Chance that a sample is an outlier; of a median, that half of its samples are.
constexpr double kSlowOutlier = 0.05, kFastOutlier = 0.002;
// Chance that the curve is at another level from a bucket on, or in that bucket alone.
constexpr double kStep = 0.002, kBump = 0.005;
constexpr double kUnusualVariance = 1;  // of an outlier, a step or a bump

// What two walks say together. Where they contradict each other there is a step, on which side is not known.
Belief between(const Belief& left, const Belief& right) {
    double total = left.variance + right.variance;
    double share = right.variance / total, gap = left.mean - right.mean;
    double step = std::max(0.0, gap * gap - kSurprised * kSurprised * total);
    return {right.mean + share * gap, left.variance * right.variance / total + share * (1 - share) * step};
}

// The belief after a point: the moments of its explanations, which are noise, an outlier (or a bump) and a step.
Belief heard(const Belief& before, double value, const Point& point, double bump, double step) {
    double off = value - before.mean, total = before.variance + point.variance;
    double gain = before.variance / total;
    if (off * off <= kSurprised * kSurprised * total) return {before.mean + gain * off, before.variance * (1 - gain)};
    double wide = total + kUnusualVariance;
    double noisy = std::exp(off * off * (1 / wide - 1 / total) / 2) * std::sqrt(wide / total);  // over the unusual's
    double outlier = std::pow(off > 0 ? kSlowOutlier : kFastOutlier, static_cast<double>((point.samples + 1) / 2));
    double stepped = before.variance + kUnusualVariance;
    return explained(before.mean, off,
                     {{noisy, gain, before.variance},
                      {outlier + bump, before.variance / wide, before.variance},
                      {step, stepped / wide, stepped}});
}

// The belief after each point of a walk that began at the first of them. `Iterator` goes over points either way.
template <typename Iterator, typename Tell>
void walk(Iterator first, Iterator last, double slope, double per_bucket, Tell tell) {
    Belief belief{};
    for (Iterator at = first; at != last; ++at) {
        double value = at->value - slope * at->distance;
        if (at == first) {
            belief = {value, at->variance};
        } else {
            belief.variance += per_bucket * std::abs(at->distance - std::prev(at)->distance);
            // Of a bump further on nothing follows for what comes after it, as of an outlier.
            belief = heard(belief, value, *at, kBump, kStep);
        }
        tell(*at, belief);
    }
}

// A smoothed curve at a distance, between its points by interpolation.
Belief level(const std::vector<Level>& curve, int at) {
    auto after = std::lower_bound(curve.begin(), curve.end(), at,
                                  [](const Level& point, int distance) { return point.distance < distance; });
    const Level& low = after == curve.begin() ? *after : *std::prev(after);
    const Level& high = after == curve.end() ? low : *after;
    const auto& [low_mean, low_variance] = low.belief;
    const auto& [high_mean, high_variance] = high.belief;
    if (low.distance < at && at < high.distance) {
        double share = static_cast<double>(at - low.distance) / (high.distance - low.distance);
        int gap = std::min(at - low.distance, high.distance - at);
        return {low_mean + share * (high_mean - low_mean), std::max(low_variance, high_variance) + kWalkVariance * gap};
    }
    const Level& nearest = std::abs(high.distance - at) < std::abs(low.distance - at) ? high : low;
    return {nearest.belief.mean, nearest.belief.variance + kWalkVariance * std::abs(nearest.distance - at)};
}

}  // namespace

Belief explained(double before, double off, std::initializer_list<Explanation> explanations) {
    double every = 0, moved = 0, spread = 0;
    for (const Explanation& each : explanations) {
        every += each.odds;
        moved += each.odds * each.gain;
    }
    double mean = before + off * moved / every;
    for (const Explanation& each : explanations) {
        double away = before + each.gain * off - mean;
        spread += each.odds * (each.variance * (1 - each.gain) + away * away);
    }
    return {mean, spread / every};
}

double common_slope(const std::vector<std::vector<Point>>& tools) {
    double above = 0, below = kSlopeRidge;
    for (const auto& points : tools) {
        if (points.size() < 2) continue;
        double weight = 0, middle = 0, level = 0;
        for (const Point& point : points) {
            weight += 1 / point.variance;
            middle += point.distance / point.variance;
            level += point.value / point.variance;
        }
        middle /= weight;
        level /= weight;
        for (const Point& point : points) {
            double away = point.distance - middle;
            above += away * (point.value - level) / point.variance;
            below += away * away / point.variance;
        }
    }
    return above / below;
}

Belief at_zero(const std::vector<Point>& points, double slope, double per_bucket) {
    auto right = std::find_if(points.begin(), points.end(), [](const Point& point) { return point.distance >= 0; });
    const Point* own = right != points.end() && right->distance == 0 ? &*right : nullptr;
    Belief around{};
    int known = 0;
    auto arrive = [&](auto first, auto last) {
        if (first == last) return;
        Belief there{};
        walk(first, last, slope, per_bucket, [&](const Point&, const Belief& belief) { there = belief; });
        there.variance += per_bucket * std::abs(std::prev(last)->distance);
        around = known++ ? between(around, there) : there;
    };
    arrive(points.begin(), right);
    arrive(points.rbegin(), std::make_reverse_iterator(own ? std::next(right) : right));
    if (!own) return around;
    return known ? heard(around, own->value, *own, 0, kStep + kBump) : Belief{own->value, own->variance};
}

std::vector<Level> smooth(const std::vector<Point>& points, double slope) {
    std::vector<Level> after, before;
    auto into = [](std::vector<Level>& levels) {
        return [&levels](const Point& point, const Belief& belief) { levels.push_back({point.distance, belief}); };
    };
    walk(points.begin(), points.end(), slope, kWalkVariance, into(after));
    walk(points.rbegin(), points.rend(), slope, kWalkVariance, into(before));
    for (size_t index = 0; index < after.size(); ++index) {
        if (index + 1 < after.size()) {
            Belief following = before[after.size() - 2 - index].belief;
            following.variance += kWalkVariance * (after[index + 1].distance - after[index].distance);
            after[index].belief = between(after[index].belief, following);
        }
        after[index].belief.mean += slope * after[index].distance;
    }
    return after;
}

std::vector<Point> beside(std::vector<Point> points, const std::vector<Level>& leader, double here) {
    for (Point& point : points) {
        if (point.distance == 0) continue;
        Belief there = level(leader, point.distance);
        point.value = point.value - there.mean + here;
        point.variance += there.variance;
    }
    return points;
}

}  // namespace fastio
