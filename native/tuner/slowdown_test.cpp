#include "tuner/slowdown_test.hpp"

#include <algorithm>

namespace fastio {

namespace {

constexpr double kMachine = 2, kTool = -3;  // logarithm of the odds at which it was the machine, or the tool
constexpr double kMostWeight = 2;           // of one comparison: it may be an outlier
constexpr double kUnlike = 0.5;  // what a busy machine does to one tool and to another differs by this share of it
constexpr int kPatience = 4;     // suspicions that nothing could be compared with, until it is the tool all the same

}  // namespace

bool Trial::proved() const { return odds <= kTool; }

bool Trial::unanswered() const { return compared == 0 && asked >= kPatience; }

void Trial::suspect(double longer) {
    by = longer;
    wanted = true;
    ++asked;
}

bool Trial::compare(double deviation, double variance) {
    if (by == 0) return false;
    double wide = variance + (kUnlike * by) * (kUnlike * by);
    double weight = (deviation * deviation - (deviation - by) * (deviation - by)) / (2 * wide);
    odds += std::min(std::max(weight, -kMostWeight), kMostWeight);
    ++compared;
    return odds >= kMachine;
}

}  // namespace fastio
