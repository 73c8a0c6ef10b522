// A starting dictionary: what tools took relative to each other elsewhere. Measurement overrides it.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tuner/random_walk.hpp"

namespace fastio {

class Prior {
  public:
    // What a tool is said to take: the logarithm of its time over that of the best one, and how far that may be off on
    // another machine, as a standard deviation.
    struct Cost {
        double mean, doubt;
    };
    using Costs = std::map<std::string, Cost>;

    // The costs by bucket, ascending, at least one.
    explicit Prior(std::vector<std::pair<int, Costs>> costs) : costs_(std::move(costs)) {}

    // Whether it says anything of the tool.
    bool lists(const std::string& tool) const { return costs_.front().second.count(tool) > 0; }
    // The logarithm of the tool's relative time at a bucket, between two by interpolation.
    Belief at(int bucket, const std::string& tool) const;

  private:
    std::vector<std::pair<int, Costs>> costs_;
};

}  // namespace fastio
