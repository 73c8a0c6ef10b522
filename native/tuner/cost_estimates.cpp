#include "tuner/cost_estimates.hpp"

#include <algorithm>
#include <cmath>

namespace fastio {

namespace {

// On another machine most tools take what they took elsewhere, relative to each other, but for the prior's doubt. Now
// and then one is altogether different there: between recorded days and versions a tenth of all ratios were off by over
// 0.3.
constexpr double kUnlike = 0.2, kUnlikeVariance = 0.6 * 0.6;
constexpr double kFirstUnlike = 0.2;  // deviation of what a first call takes beyond others, from tool to tool

// One measured tool: which of all it is, and its belief at distance zero.
struct Here {
    size_t tool;
    Belief belief;
};

// The one known best by itself, the others beside it.
std::vector<Here> here(const std::vector<size_t>& tools, const std::vector<std::vector<Point>>& points) {
    double slope = common_slope(points), most = -1;
    size_t leader = 0;
    for (size_t index = 0; index < points.size(); ++index) {
        double weight = 0;
        for (const Point& point : points[index]) weight += 1 / point.variance;
        if (weight > most) {
            most = weight;
            leader = index;
        }
    }
    Belief first = at_zero(points[leader], slope, kWalkVariance);
    std::vector<Level> curve;
    if (points.size() > 1) curve = smooth(points[leader], slope);
    std::vector<Here> found;
    for (size_t index = 0; index < points.size(); ++index) {
        Belief belief = first;
        if (index != leader) belief = at_zero(beside(points[index], curve, first.mean), 0, kBesideVariance);
        found.push_back({tools[index], belief});
    }
    return found;
}

// Level of the prior, the level's variance, and how much wider the prior must be to agree with measurement.
struct Fit {
    Belief level{0, 0};
    double scale = 1;
};

Fit fit(const std::vector<Here>& measured, const std::vector<Known>& tools) {
    Fit found;
    if (measured.empty()) return found;
    auto weight = [&](const Here& one) { return 1 / (one.belief.variance + tools[one.tool].prior.variance); };
    auto off = [&](const Here& one) { return one.belief.mean - tools[one.tool].prior.mean; };
    double total = 0, sum = 0, misfit = 0;
    for (const Here& one : measured) {
        total += weight(one);
        sum += weight(one) * off(one);
    }
    found.level = {sum / total, 1 / total};
    for (const Here& one : measured) {
        double away = off(one) - found.level.mean;
        misfit += weight(one) * away * away;
    }
    if (measured.size() > 1) found.scale = std::max(1.0, misfit / static_cast<double>(measured.size() - 1));
    return found;
}

// What the prior says of a tool that was never measured.
Belief unheard(const Belief& prior) { return {prior.mean, prior.variance + kUnlike * kUnlikeVariance}; }

// What the prior and the measurements of a tool say together: as far as they contradict each other it is one of those
// that are different on this machine (a mixture, as in random_walk.hpp), so that a wrong prior is soon left.
Belief together(const Belief& prior, const Belief& own) {
    double off = own.mean - prior.mean, alike = prior.variance + own.variance, unlike = alike + kUnlikeVariance;
    double odds =
        (1 - kUnlike) / kUnlike * std::exp(off * off * (1 / unlike - 1 / alike) / 2) * std::sqrt(unlike / alike);
    double wide = prior.variance + kUnlikeVariance;
    return explained(prior.mean, off, {{odds, prior.variance / alike, prior.variance}, {1, wide / unlike, wide}});
}

// Whether more is known than first calls.
bool any_measured(const std::vector<Known>& tools) {
    return std::any_of(tools.begin(), tools.end(),
                       [](const Known& tool) { return tool.curve && tool.curve->measured(); });
}

std::vector<Estimate> estimates(const std::vector<Known>& tools, int bucket, Firsts firsts) {
    std::vector<size_t> heard;
    std::vector<std::vector<Point>> points;
    for (size_t tool = 0; tool < tools.size(); ++tool) {
        if (!tools[tool].curve) continue;
        std::vector<Point> found = tools[tool].curve->points(bucket, firsts);
        if (found.empty()) continue;
        heard.push_back(tool);
        points.push_back(std::move(found));
    }
    std::vector<Here> measured;
    if (!points.empty()) measured = here(heard, points);
    Fit fitted = fit(measured, tools);
    auto here_by_prior = [&](size_t tool) {
        const Belief& prior = tools[tool].prior;
        return Belief{prior.mean + fitted.level.mean, (prior.variance + fitted.level.variance) * fitted.scale};
    };
    std::vector<Estimate> result;
    for (size_t tool = 0; tool < tools.size(); ++tool) {
        result.push_back({unheard(here_by_prior(tool)), false, 0, 0});
    }
    for (const auto& [tool, own] : measured) {
        result[tool].belief = together(here_by_prior(tool), own);
        const Samples* cell = tools[tool].curve->find(bucket);
        result[tool].heard = true;
        result[tool].samples = cell ? cell->values.size() : 0;
        result[tool].nearby = tools[tool].curve->nearby(bucket);
    }
    return result;
}

}  // namespace

std::vector<Estimate> estimates(const std::vector<Known>& tools, int bucket) {
    return estimates(tools, bucket, any_measured(tools) ? Firsts::kDoubted : Firsts::kCount);
}

std::vector<Estimate> first_estimates(std::vector<Known> tools, int bucket) {
    const std::vector<Estimate> later = estimates(tools, bucket);
    if (!any_measured(tools)) return later;
    for (size_t tool = 0; tool < tools.size(); ++tool) {
        const Belief& belief = later[tool].belief;
        tools[tool].prior = {belief.mean, belief.variance + kFirstUnlike * kFirstUnlike};
    }
    std::vector<Estimate> found = estimates(tools, bucket, Firsts::kAlone);
    for (size_t tool = 0; tool < tools.size(); ++tool) found[tool].heard |= later[tool].heard;
    return found;
}

}  // namespace fastio
