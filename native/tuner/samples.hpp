// Robust statistics of one tool in one bucket. Values are natural logarithms of seconds, at the bucket's own size.
#pragma once

#include <cstddef>
#include <vector>

namespace fastio {

constexpr double kMedianVariance = 1.57;  // of a median over that of a mean, for normal noise: pi / 2
constexpr double kNormalMad = 1.48;       // the standard deviation over the median absolute deviation

// The median, the lower of the middle two: an outlier among times is nearly always one that is too long. Of nothing: 0.
double lower_median(std::vector<double> values);

// The last few times of one tool in one bucket.
class Samples {
  public:
    Samples() = default;
    Samples(const std::vector<double>& values, const std::vector<double>& firsts) { extend(values, firsts); }

    // Takes a sample; it replaces samples that are in doubt.
    void add(double value);
    // Takes the time of a tool's first call in a process.
    void add_first(double value);
    // Takes the samples of another process.
    void extend(const std::vector<double>& values, const std::vector<double>& firsts);
    void clear();
    // Forgets the last sample, unless it is the only one.
    void drop_last();
    // Forgets all but the last `count` samples: those before are of another time.
    void keep_last(size_t count);
    // Moves the samples, which were taken before the tool's speed changed, and doubts them.
    void shift(double by, double doubt);
    // All is on disk.
    void written();

    // The variance of the median. `noise` is the tool's usual deviation, the guess while samples are few.
    double variance(double noise) const;
    double median() const noexcept { return median_; }

    std::vector<double> values;  // recent, the oldest first
    // Those that were the tool's first call in its process: warm-up, which says something only while nothing better
    // is known.
    std::vector<double> firsts;
    double doubt = 0;  // a deviation that is added while the samples may be out of date; the next one replaces them
    size_t fresh = 0, fresh_firsts = 0;  // how many are not on disk yet
    bool rewritten = false;              // what is on disk is out of date

  private:
    void summarise();

    double median_ = 0, spread_ = 0;
};

}  // namespace fastio
