// What is known of one tool in one context, and the drift of its speed. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tuner/curve.hpp"
#include "tuner/slowdown_test.hpp"

namespace fastio {

constexpr int kBand = 8;  // buckets: two octaves, in which refreshing is counted
constexpr long kNever = -(1L << 30);
// So many times what was expected is hardly a tool's new speed: the machine stood still for a moment (for memory, a
// disk).
constexpr double kStall = 5;

// Why a tool refused, how often in a row, and the call of its context before which it is not tried again.
struct Failure {
    std::string reason;
    int count;
    long until;
};

// Where, and how far off the expected time, as a logarithm.
using Deviation = std::pair<int, double>;

// What a try of a tool was thought to cost, and the best tool to take, seconds. `recovering`: it was tried because it
// is slower than it was before, and may be as fast again.
struct Stake {
    double cost, best;
    bool recovering = false;
};

class Record {
  public:
    // Whether the tool failed and is not to be tried again yet.
    bool failing(long call) const { return failure && failure->until >= call; }
    // Avoid the tool for a while, longer each time.
    void fail(long call, const std::string& reason);

    // Compares a sample with what was expected of it, a mean and a variance; true when the beliefs about other sizes
    // changed too. One surprise may be an outlier. A tool that seems faster is suspected, so that it is tried again
    // soon; several surprises of one sign in a row are a drift, and so are many calls most of which are a little off
    // the same way.
    bool hear(int bucket, double value, double expected, double variance);
    // It was the machine: what the tool took meanwhile says nothing of it.
    void excuse();
    // The whole machine changed its speed, and the tool with it; what is known at bucket `but` is of now.
    void move(double by, int but = -1);

    Curve curve;
    std::optional<Failure> failure;
    double suspicion = 0;        // a deviation added to its estimates while it seems to have become faster
    double shift = 0;            // the logarithm of what its changes of speed come to
    std::optional<Stake> stake;  // of the try that is under way
    int backoff = 1;             // stretches its refreshing while it disappoints
    long pending = kNever;       // the call of the context at which it was last handed out to be tried
    std::map<int, long> last;    // the call of each band at which it was last used
    int looks = 0;               // how often it was looked at again in vain
    int excused = 0;             // how often in a row the machine was to blame
    double slowed = 0;           // the logarithm by which it is slower than before its changes of speed,
    double slowed_since = 0;     // since so many seconds of the context,
    double slowed_paid = 0;      // and what looking at it again took since, beyond the best tool
    Trial trial;

  private:
    bool creeps(int bucket, double deviation, double& creep);
    double needed() const;
    void drift(std::vector<Deviation> signs);

    double rate_ = 0.02;  // the usual share of surprises
    std::vector<Deviation> surprises_, recent_;
};

}  // namespace fastio
