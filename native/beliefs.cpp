#include "beliefs.hpp"

#include <algorithm>

namespace fastio {

namespace {

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

}  // namespace

std::vector<Estimate> estimates(const std::vector<Known>& tools, int bucket) {
    bool firsts_count = std::none_of(tools.begin(), tools.end(),
                                     [](const Known& tool) { return tool.curve && tool.curve->measured(); });
    std::vector<size_t> heard;
    std::vector<std::vector<Point>> points;
    for (size_t tool = 0; tool < tools.size(); ++tool) {
        if (!tools[tool].curve) continue;
        std::vector<Point> found = tools[tool].curve->points(bucket, firsts_count);
        if (found.empty()) continue;
        heard.push_back(tool);
        points.push_back(std::move(found));
    }
    std::vector<Here> measured;
    if (!points.empty()) measured = here(heard, points);
    auto [level, scale] = fit(measured, tools);
    std::vector<Estimate> result;
    for (const auto& [_, prior] : tools) {
        result.push_back({{prior.mean + level.mean, (prior.variance + level.variance) * scale}, false, 0, 0});
    }
    for (const auto& [tool, own] : measured) {
        Belief& belief = result[tool].belief;
        double weight = 1 / own.variance, prior_weight = 1 / belief.variance;
        belief.mean = (own.mean * weight + belief.mean * prior_weight) / (weight + prior_weight);
        belief.variance = 1 / (weight + prior_weight);
        const Samples* cell = tools[tool].curve->find(bucket);
        result[tool].heard = true;
        result[tool].samples = cell ? cell->values.size() : 0;
        result[tool].nearby = tools[tool].curve->nearby(bucket);
    }
    return result;
}

}  // namespace fastio
