#include "tuner/samples.hpp"

#include <algorithm>
#include <cmath>

namespace fastio {

namespace {

constexpr size_t kKept = 15, kKeptFirsts = 5;
constexpr double kOneSample = 0.2, kTwoSamples = 0.1;  // deviations that so few samples may be off by besides
constexpr size_t kPooledWeight = 4;

void keep(std::vector<double>& values, size_t count) {
    if (values.size() > count) values.erase(values.begin(), values.end() - static_cast<ptrdiff_t>(count));
}

}  // namespace

double lower_median(std::vector<double> values) {
    if (values.empty()) return 0;
    auto middle = values.begin() + static_cast<ptrdiff_t>((values.size() - 1) / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

void Samples::add(double value) {
    if (doubt != 0) {
        values.clear();
        doubt = 0;
        fresh = 0;
    }
    values.push_back(value);
    keep(values, kKept);
    fresh = std::min(fresh + 1, kKept);
    summarise();
}

void Samples::add_first(double value) {
    firsts.push_back(value);
    keep(firsts, kKeptFirsts);
    fresh_firsts = std::min(fresh_firsts + 1, kKeptFirsts);
}

void Samples::extend(const std::vector<double>& more, const std::vector<double>& more_firsts) {
    values.insert(values.end(), more.begin(), more.end());
    keep(values, kKept);
    firsts.insert(firsts.end(), more_firsts.begin(), more_firsts.end());
    keep(firsts, kKeptFirsts);
    summarise();
}

void Samples::clear() {
    values.clear();
    summarise();
}

void Samples::drop_last() {
    if (values.size() < 2) return;
    values.pop_back();
    if (fresh > 0) --fresh;
    summarise();
}

void Samples::keep_last(size_t count) {
    keep(values, count);
    doubt = 0;
    fresh = values.size();
    rewritten = true;
    summarise();
}

void Samples::shift(double by, double new_doubt) {
    for (double& value : values) value += by;
    doubt = new_doubt;
    rewritten = rewritten || by != 0;
    summarise();
}

void Samples::written() {
    fresh = fresh_firsts = 0;
    rewritten = false;
}

double Samples::variance(double noise) const {
    double count = static_cast<double>(values.size());
    double few = values.size() == 1 ? kOneSample : values.size() == 2 ? kTwoSamples : 0;
    double own = noise * noise;
    if (values.size() >= kPooledWeight) {
        own = (count * spread_ * spread_ + kPooledWeight * own) / (count + kPooledWeight);
    }
    return kMedianVariance * own / count + few * few + doubt * doubt;
}

void Samples::summarise() {
    median_ = lower_median(values);
    spread_ = 0;
    if (values.size() < kPooledWeight) return;
    std::vector<double> off;
    off.reserve(values.size());
    for (double value : values) off.push_back(std::fabs(value - median_));
    spread_ = kNormalMad * lower_median(std::move(off));
}

}  // namespace fastio
