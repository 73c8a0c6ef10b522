// What is believed of tools: what samples say wins, what is further away says less, and no input gives nonsense.
#include <cmath>
#include <random>
#include <vector>

#include "tests/support/check.hpp"
#include "tuner/buckets.hpp"
#include "tuner/cost_estimates.hpp"

namespace {

using fastio::Belief;
using fastio::Curve;
using fastio::Estimate;
using fastio::estimates;
using fastio::Samples;

constexpr Belief kNoPrior{0, 0.36};

double at(int bucket, double seconds) { return std::log(seconds * fastio::bucket_nbytes(bucket)); }

double error(const Estimate& estimate, int bucket, double seconds) {
    double shape = fastio::shape(static_cast<double>(fastio::bucket_nbytes(bucket)));
    return std::fabs(estimate.belief.mean + shape - at(bucket, seconds));
}

void check_samples() {
    Samples samples({3, 1, 2, 9}, {});
    CHECK(samples.median() == 2, "the lower of the middle two, not %g", samples.median());
    double before = samples.variance(0.1);
    samples.shift(1, 0.5);
    CHECK(samples.median() == 3 && samples.variance(0.1) == before + 0.25, "moved, and doubted");
    samples.add(7);
    CHECK(samples.values.size() == 1 && samples.median() == 7, "a sample replaces those in doubt");
    for (int index = 0; index < 40; ++index) samples.add(index);
    CHECK(samples.values.size() == 15 && samples.values.front() == 25 && samples.fresh == 15, "the last are kept");
    samples.keep_last(2);
    CHECK(samples.values.size() == 2 && samples.rewritten, "of now");
    samples.drop_last();
    samples.drop_last();
    CHECK(samples.values.size() == 1, "the only one stays");
}

void check_neighbours() {
    Curve curve;
    for (int sample = 0; sample < 8; ++sample) curve.add(60, at(60, 1e-9));
    double last = 0;
    for (int away = 0; away <= 16; ++away) {
        Estimate found = estimates({{&curve, kNoPrior}}, 60 + away).front();
        CHECK(found.heard && found.nearby == 8 && found.samples == (away ? 0 : 8), "%d buckets away", away);
        CHECK(found.belief.variance > last, "less is known %d buckets away", away);
        last = found.belief.variance;
    }
    CHECK(!estimates({{&curve, kNoPrior}}, 77).front().heard, "out of reach");
    CHECK(error(estimates({{&curve, kNoPrior}}, 60).front(), 60, 1e-9) < 1e-9, "its own samples");
}

// A bucket's own samples against those around: one may be an outlier, several are not.
void check_contradiction() {
    Curve curve;
    for (int bucket = 50; bucket <= 70; ++bucket) {
        for (int sample = 0; bucket != 60 && sample < 8; ++sample) curve.add(bucket, at(bucket, 1e-9));
    }
    curve.add(60, at(60, 4e-9));
    Estimate one = estimates({{&curve, kNoPrior}}, 60).front();
    for (int sample = 0; sample < 7; ++sample) curve.add(60, at(60, 4e-9));
    Estimate several = estimates({{&curve, kNoPrior}}, 60).front();
    CHECK(error(one, 60, 1e-9) < 0.2, "one outlier is off by %g", error(one, 60, 1e-9));
    CHECK(error(several, 60, 4e-9) < 0.1, "several are believed, off by %g", error(several, 60, 4e-9));
}

void check_prior() {
    Curve curve;
    for (int sample = 0; sample < 8; ++sample) curve.add(60, at(60, 1e-9));
    auto found = estimates({{&curve, {0, 0.09}}, {nullptr, {0.5, 0.09}}}, 60);
    CHECK(!found[1].heard && found[1].samples == 0, "never measured");
    CHECK(std::fabs(found[1].belief.mean - found[0].belief.mean - 0.5) < 1e-9,
          "the prior's ratio, by what is measured");
    CHECK(found[1].belief.variance > found[0].belief.variance, "and in more doubt");
    double surely = estimates({{&curve, {0, 1e-4}}, {nullptr, {0.5, 1e-4}}}, 60)[1].belief.variance;
    CHECK(surely > 0.05, "however sure the prior, the tool may be different on this machine: %g", surely);
}

void check_anything() {
    std::mt19937 random(1);
    std::uniform_real_distribution<double> value(-40, 100);
    for (int turn = 0; turn < 20000; ++turn) {
        std::vector<Curve> curves(random() % 5);
        std::vector<fastio::Known> tools{{nullptr, kNoPrior}};
        for (Curve& curve : curves) {
            for (unsigned count = random() % 30; count > 0; --count) {
                int bucket = static_cast<int>(random() % fastio::kBuckets);
                if (random() % 4) {
                    curve.add(bucket, value(random));
                } else {
                    curve.cell(bucket).add_first(value(random));
                }
                curve.hear(value(random));
            }
            tools.push_back({&curve, {value(random) / 50, 0.01 + (random() % 100) / 100.0}});
        }
        for (const Estimate& found : estimates(tools, static_cast<int>(random() % fastio::kBuckets))) {
            CHECK(std::isfinite(found.belief.mean), "mean %g", found.belief.mean);
            CHECK(std::isfinite(found.belief.variance) && found.belief.variance > 0, "variance %g",
                  found.belief.variance);
        }
    }
}

}  // namespace

int main() {
    check_samples();
    check_neighbours();
    check_contradiction();
    check_prior();
    check_anything();
}
