// A starting dictionary: what tools took relative to each other elsewhere. Measurement overrides it.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "walks.hpp"

namespace fastio {

class Prior {
  public:
    // By tool, the logarithm of its time over that of the best one.
    using Costs = std::map<std::string, double>;

    // The costs by bucket, ascending, at least one; `doubt` is the deviation of a cost from one machine to another, of
    // large transfers; of small ones it is half of that.
    Prior(std::vector<std::pair<int, Costs>> costs, double doubt) : costs_(std::move(costs)), doubt_(doubt) {}

    // Whether it says anything of the tool.
    bool lists(const std::string& tool) const { return costs_.front().second.count(tool) > 0; }
    // The logarithm of the tool's relative time at a bucket, between two by interpolation.
    Belief at(int bucket, const std::string& tool) const;

  private:
    std::vector<std::pair<int, Costs>> costs_;
    double doubt_;
};

}  // namespace fastio
