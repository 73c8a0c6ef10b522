// Everything measured of one tool in one context, by bucket.
#pragma once

#include <map>
#include <vector>

#include "tuner/samples.hpp"

namespace fastio {

// What is known of a tool some buckets away.
struct Point {
    int distance;     // in buckets
    double value;     // logarithm of seconds less the shape
    double variance;  // of that
    size_t samples;
};

// What first calls say: little of later calls; of each other, where no tool has others; or they alone are asked about.
enum class Firsts { kDoubted, kCount, kAlone };

class Curve {
  public:
    Curve();

    // The samples of a bucket, made empty where there are none. They stay where they are as long as the curve.
    Samples& cell(int bucket) { return cells_[bucket]; }
    Samples* find(int bucket);
    const Samples* find(int bucket) const;
    const std::map<int, Samples>& cells() const noexcept { return cells_; }
    std::map<int, Samples>& cells() noexcept { return cells_; }

    void add(int bucket, double value);
    void put(int bucket, const Samples& samples);
    // Learns the usual noise: a running median of absolute deviations, which outliers move no more than others.
    void hear(double deviation);

    // The usual deviation of a sample from what was expected, as a standard deviation.
    double noise() const noexcept { return kNormalMad * mad_; }
    // Whether any cell has samples that are not of first calls.
    bool measured() const noexcept { return measured_; }
    // The number of samples within reach of a bucket.
    size_t nearby(int bucket) const;
    // The samples near a bucket, by distance. Those of first calls only where there are no others, or they alone.
    std::vector<Point> points(int bucket, Firsts firsts) const;

  private:
    std::map<int, Samples> cells_;
    double mad_;
    bool measured_ = false;
};

}  // namespace fastio
