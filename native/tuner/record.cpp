#include "tuner/record.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fastio {

namespace {

constexpr long kRetryCalls = 256, kRetryGrowth = 4;
constexpr int kMostGrowths = 4;
constexpr double kDriftCalls = 3;         // this many surprises in a row are a change of speed,
constexpr double kStallCalls = 5;         // or this many, if it were as much as a stall,
constexpr double kDriftLogChance = -9.2;  // or as many as would come about by chance once in 10,000 times
constexpr double kRateStep = 0.02;
constexpr size_t kSuspiciousCalls = 2;    // after so many surprises in a row it is asked whether it is the tool
constexpr double kDriftSpread = 0.4;      // further apart than this they are hardly a new speed: twice as many then
constexpr double kDriftLeast = 0.3;       // a surprise is further than this from what was expected, as a logarithm,
constexpr double kDriftDeviations = 3.5;  // and further than this many deviations
constexpr double kDriftDoubt = 0.25, kDriftDoubtNear = 0.4, kDriftDoubtFar = 0.8;
constexpr size_t kCreepCalls = 16;      // so many deviations whose median is off are one too, if none is a surprise:
constexpr double kCreepLeast = 0.3;     // off by this much as a logarithm,
constexpr double kCreepDeviations = 6;  // and by so many deviations of the median,
constexpr double kCreepAgreed = 0.1;  // and three quarters of them by this much: else the machine was busy for a while
constexpr double kMostSuspicion = 2;
constexpr int kMostBackoff = 16;
constexpr double kSlowed = 0.2;  // logarithm: a tool that is slower by less is as fast as before

std::vector<double> amounts(const std::vector<Deviation>& signs) {
    std::vector<double> found;
    found.reserve(signs.size());
    for (const auto& [_, deviation] : signs) found.push_back(deviation);
    return found;
}

}  // namespace

void Record::fail(long call, const std::string& reason) {
    int count = failure ? failure->count + 1 : 1;
    long wait = kRetryCalls;
    for (int growth = std::min(count - 1, kMostGrowths); growth > 0; --growth) wait *= kRetryGrowth;
    failure = Failure{reason, count, call + wait};
}

bool Record::hear(int bucket, double value, double expected, double variance) {
    double deviation = value - expected, noise = curve.noise(), creep = 0;
    bool crept = creeps(bucket, deviation, creep);
    if (crept && (creep < 0 || trial.proved() || trial.unanswered())) {
        drift(recent_);
        return true;
    }
    if (crept) trial.suspect(creep);
    double limit = std::max(kDriftLeast, kDriftDeviations * std::sqrt(noise * noise + variance));
    bool surprise = std::fabs(deviation) > limit;
    rate_ += kRateStep * ((surprise ? 1 : 0) - rate_);
    if (!surprise) {
        bool changed = suspicion > 0;
        suspicion = 0;
        backoff = 1;
        surprises_.clear();
        if (!crept) {
            trial.end();
            excused = 0;
        }
        return changed;
    }
    if (!surprises_.empty() && (surprises_.back().second > 0) != (deviation > 0)) surprises_.clear();
    surprises_.emplace_back(bucket, deviation);
    if (deviation > 0 && surprises_.size() >= kSuspiciousCalls) trial.suspect(lower_median(amounts(surprises_)));
    if (static_cast<double>(surprises_.size()) >= needed()) {
        drift(surprises_);
        return true;
    }
    if (deviation > 0) {
        backoff = std::min(backoff * 4, kMostBackoff);
        return false;
    }
    looks = 0;
    suspicion = std::min(suspicion - deviation / 2, kMostSuspicion);
    return true;
}

// Whether the last calls are off the same way; `creep` is by how much. The usual noise is learned on the way.
bool Record::creeps(int bucket, double deviation, double& creep) {
    if (recent_.size() >= kCreepCalls) recent_.erase(recent_.begin());
    recent_.emplace_back(bucket, deviation);
    if (recent_.size() < kCreepCalls) {
        curve.hear(deviation);
        return false;
    }
    double noise = curve.noise();
    std::vector<double> off = amounts(recent_);
    creep = lower_median(off);
    curve.hear(deviation - creep);  // a change of speed is not noise
    double least = kCreepDeviations * noise * std::sqrt(kMedianVariance / static_cast<double>(kCreepCalls));
    if (std::fabs(creep) <= std::max(kCreepLeast, least)) return false;
    if (creep < 0) {
        for (double& each : off) each = -each;
    }
    std::sort(off.begin(), off.end());
    return off[kCreepCalls / 4] > kCreepAgreed;
}

void Record::excuse() {
    for (const auto& [bucket, _] : surprises_) curve.cell(bucket).drop_last();
    surprises_.clear();
    recent_.clear();
    trial.end();
    ++excused;
}

void Record::move(double by, int but) {
    for (auto& [bucket, cell] : curve.cells()) {
        if (!cell.values.empty() && bucket != but) cell.shift(by, std::max(kDriftDoubt, cell.doubt));
    }
    shift += by;
    excused = 0;
}

// How many surprises in a row are a change of speed.
double Record::needed() const {
    if (trial.undecided()) return std::numeric_limits<double>::infinity();
    std::vector<double> off = amounts(surprises_);
    double middle = lower_median(off);
    for (double& each : off) each = std::fabs(each - middle);
    double least = middle > std::log(kStall) ? kStallCalls : kDriftCalls;
    return std::max(least, kDriftLogChance / std::log(rate_)) * (lower_median(off) > kDriftSpread ? 2 : 1);
}

// The tool's speed changed: keep the samples that show it, move the others by as much and doubt them.
void Record::drift(std::vector<Deviation> signs) {
    double by = lower_median(amounts(signs));
    shift += by;
    slowed = slowed + by > kSlowed ? slowed + by : 0;
    std::map<int, size_t> heard;
    for (const auto& [bucket, _] : signs) ++heard[bucket];
    int lowest = heard.begin()->first - kBand, highest = heard.rbegin()->first + kBand;
    for (auto& [bucket, cell] : curve.cells()) {
        auto own = heard.find(bucket);
        if (own != heard.end()) {
            cell.keep_last(own->second);
        } else if (!cell.values.empty()) {
            double share = lowest <= bucket && bucket <= highest ? kDriftDoubtNear : kDriftDoubtFar;
            cell.shift(by, std::max(kDriftDoubt, std::fabs(by) * share));
        }
    }
    surprises_.clear();
    recent_.clear();
    suspicion = 0;
    backoff = 1;
    trial.end();
}

}  // namespace fastio
