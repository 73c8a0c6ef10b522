#include "tuner/exploration.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace fastio {

namespace {

constexpr double kConfidence = 2;          // deviations
constexpr double kListedConfidence = 0.7;  // in a tool that only the prior knows, at large sizes: calls are too few
constexpr double kTie = 0.03;              // logarithm: less than this is not worth a try
constexpr double kEqual = 0.08;            // logarithm: so much may be given away for less work of the processor,
constexpr double kGivenAway = 0.12;        // and so much for that of a huge call, whatever is known
constexpr double kCaution = 0.7;           // how quickly the confidence shrinks at calls dearer than the usual one
constexpr double kUnknownCalls =
    5;  // a tool not measured near here is looked at after so many calls, whatever the prior
constexpr double kListedShare = 0.01;  // says; at large sizes as seldom as takes this share of the time, if it is right
constexpr double kLeastCalls = 8;
constexpr double kFirstRefresh = 64, kLastRefresh = 1024;        // calls
constexpr double kRunnerUpShare = 0.006, kOthersShare = 0.0025;  // of the time, for looking again at slower tools
constexpr double kPatience = 3;                                  // a look must pay for itself so many times over,
constexpr double kAgreed = 3;                                    // and that often more where the prior says so too
constexpr double kLuck[] = {0.03, 0.03, 0.01, 0.0005};  // gain of a look at so few samples: they may be outliers
constexpr double kSpell = 0.8;       // chance that one more sample was taken in the same busy spell of the machine, so
constexpr double kLaterSpell = 0.3;  // that it says nothing, and that one later look was taken in another
constexpr double kLeastExcess = 0.02;

// What the other takes beyond the best, as a share of that, at least a little.
double excess(const Opinion& best, const Opinion& other) {
    return std::max(std::expm1(std::min(other.mean - best.mean, 10.0)), kLeastExcess);
}

// What knowing the other exactly is expected to save, as a share of a call (expected improvement: Mockus, 1975). Where
// measurement contradicts the prior, which puts the other first, there may have been a busy spell.
double expected_gain(const Opinion& best, const Opinion& other) {
    double deviation = std::hypot(best.deviation, other.deviation);
    double gap = (other.mean - best.mean) / deviation;
    double density = std::exp(-gap * gap / 2) / std::sqrt(2 * M_PI);
    double gain = deviation * (density - gap * 0.5 * std::erfc(gap / std::sqrt(2.0)));
    if (best.listed && other.listed && other.prior < best.prior) {
        double same = std::pow(kSpell, static_cast<double>(other.nearby)) * std::pow(kLaterSpell, other.looks);
        gain -= same * std::expm1(other.prior - best.prior);
    }
    return gain + kLuck[std::min(other.nearby, std::size(kLuck) - 1)];
}

}  // namespace

const Opinion& pick(const Opinion& best, const std::vector<const Opinion*>& others, double dearness, bool large,
                    bool huge) {
    double confidence = kConfidence;
    if (dearness > 1 && best.known()) confidence /= 1 + kCaution * std::log2(dearness);
    const Opinion* chosen = &best;
    double lowest = best.mean - confidence * best.deviation - kTie;
    for (const Opinion* each : others) {
        double trust = large && each->only_listed() ? std::min(confidence, kListedConfidence) : confidence;
        double bound = each->mean - trust * each->deviation + (huge && each->known() ? kGivenAway : 0);
        if (bound < lowest) {
            lowest = bound;
            chosen = each;
        }
    }
    return *chosen;
}

const Opinion& preferred(const std::vector<const Opinion*>& ranked, const Tools& tools, bool huge) {
    const Opinion& best = *ranked.front();
    if (!best.known()) return best;
    const Opinion* first = &best;
    auto place = [&tools](const Opinion& one) { return std::find(tools.begin(), tools.end(), one.tool); };
    for (const Opinion* each : ranked) {
        double error = std::hypot(best.deviation, each->deviation);
        bool equal = each->mean - best.mean <= (huge ? kGivenAway : std::min(kEqual, error));
        if (equal && each->known() && place(*each) < place(*first)) first = each;
    }
    return *first;
}

std::vector<Look> looks_at(const std::vector<const Opinion*>& ranked, double seconds, bool large) {
    const Opinion& best = *ranked.front();
    std::vector<Look> found;
    for (size_t place = 1; place < ranked.size(); ++place) {
        const Opinion& other = *ranked[place];
        double beyond = excess(best, other), calls = kUnknownCalls;
        if (other.known()) {
            double share = place == 1 ? kRunnerUpShare : kOthersShare;
            double patience = best.listed && other.listed && other.prior > best.prior ? kAgreed * kPatience : kPatience;
            double drift = std::min(std::max(beyond / share, kFirstRefresh), kLastRefresh);
            calls = std::max(kLeastCalls, std::min(drift, patience * beyond / expected_gain(best, other)));
        } else if (large && other.only_listed()) {
            calls = std::max(calls, std::min(beyond / kListedShare, kLastRefresh));
        }
        found.push_back({other.tool, calls, beyond * seconds, other.only_listed(), other.mean - best.mean});
    }
    return found;
}

}  // namespace fastio
