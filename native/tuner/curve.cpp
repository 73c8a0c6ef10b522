#include "tuner/curve.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "tuner/buckets.hpp"

namespace fastio {

namespace {

constexpr int kReach = 16;      // buckets: four octaves either way
constexpr int kNeighbours = 8;  // cells either way
constexpr double kUsualNoise = 0.12;
constexpr double kLeastNoise = 0.02, kMostNoise = 0.6;
constexpr double kNoiseStep = 0.06;
constexpr double kFirstNoise = 0.35;  // deviation of a first call's time from that of other first calls
constexpr double kFirstDoubt = 1.0;   // and from that of later calls

}  // namespace

Curve::Curve() : mad_(kUsualNoise / kNormalMad) {}

const Samples* Curve::find(int bucket) const {
    auto found = cells_.find(bucket);
    return found == cells_.end() ? nullptr : &found->second;
}

Samples* Curve::find(int bucket) { return const_cast<Samples*>(std::as_const(*this).find(bucket)); }

void Curve::add(int bucket, double value) {
    cell(bucket).add(value);
    measured_ = true;
}

void Curve::put(int bucket, const Samples& samples) {
    cell(bucket) = samples;
    measured_ = measured_ || !samples.values.empty();
}

void Curve::hear(double deviation) {
    double step = std::fabs(deviation) > mad_ ? 1 + kNoiseStep : 1 / (1 + kNoiseStep);
    mad_ = std::min(std::max(mad_ * step, kLeastNoise), kMostNoise);
}

size_t Curve::nearby(int bucket) const {
    size_t count = 0;
    auto end = cells_.upper_bound(bucket + kReach);
    for (auto at = cells_.lower_bound(bucket - kReach); at != end; ++at) count += at->second.values.size();
    return count;
}

std::vector<Point> Curve::points(int bucket, Firsts how) const {
    auto first = cells_.lower_bound(bucket), last = first;
    for (int step = 0; step < kNeighbours && first != cells_.begin(); ++step) --first;
    for (int step = 0; step <= kNeighbours && last != cells_.end(); ++step) ++last;
    std::vector<Point> found, firsts;
    for (auto at = first; at != last; ++at) {
        const auto& [key, cell] = *at;
        int distance = key - bucket;
        if (std::abs(distance) > kReach) continue;
        if (!cell.values.empty() && how != Firsts::kAlone) {
            found.push_back({distance, cell.median() - shape_at(key), cell.variance(noise()), cell.values.size()});
        } else if (!cell.firsts.empty()) {
            double deviation = how == Firsts::kDoubted ? kFirstDoubt : kFirstNoise;
            double value = lower_median(cell.firsts) - shape_at(key);
            firsts.push_back({distance, value, deviation * deviation / static_cast<double>(cell.firsts.size()), 1});
        }
    }
    return found.empty() ? firsts : found;
}

}  // namespace fastio
