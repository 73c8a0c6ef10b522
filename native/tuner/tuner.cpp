#include "tuner/tuner.hpp"

#include <algorithm>
#include <cmath>

#include "tuner/buckets.hpp"
#include "tuner/exploration.hpp"
#include "tuner/reasons.hpp"

namespace fastio {

namespace {

constexpr long kPendingCalls = 16;  // a try that nobody reported on is given up after so many calls
constexpr long kUsualCalls = 200;   // window of the usual call's time
constexpr size_t kMostTools = 64;
constexpr double kRenewalDoubt = 0.5;
constexpr double kLeastSeconds = 1e-9;
constexpr double kRecoveryShare = 0.01;  // of the time, for looking again at a tool that became slower

}  // namespace

Choice Tuner::choose(double nbytes, const Tools& candidates, bool first) {
    int bucket = bucket_of(nbytes), band = bucket / kBand;
    ++calls_;
    long call = ++band_calls_[band];
    if (first) {
        Plan once = make_plan(bucket, candidates, true);
        if (once.choice.exploring) hand_out(once, once.choice.tool);
        return once.choice;
    }
    Plan& now = plan(bucket, candidates);
    --now.uses;
    auto asked = moods_.ask(now, [this](const std::string& tool) { return may_be_tried(*record(tool)); });
    if (asked) {
        hand_out(now, asked->first);
        return instead(now.choice, asked->first, asked->second);
    }
    if (now.choice.exploring) {
        hand_out(now, now.choice.tool);
        return now.choice;
    }
    for (const Look& look : now.looks) {
        std::shared_ptr<Record> known = record(look.tool);
        auto last = known->last.find(band);
        long since = call - (last == known->last.end() ? 0 : last->second);
        bool due = static_cast<double>(since) >= look.calls * known->backoff && pays(now, look);
        bool recovering = !due && may_have_recovered(look, *known);
        if (!(due || recovering) || !may_be_tried(*known)) continue;
        known->last[band] = call;
        ++known->looks;
        hand_out(now, look.tool, recovering);
        return instead(now.choice, look.tool, again(bucket, look.tool, now.choice.tool));
    }
    return now.choice;
}

void Tuner::observe(double nbytes, const std::string& tool, double seconds, bool first) {
    if (!std::isfinite(seconds)) return;
    seconds = std::max(seconds, kLeastSeconds);
    int bucket = bucket_of(nbytes), band = bucket / kBand;
    std::shared_ptr<Record> known = record(tool);
    double value = std::log(seconds) - shape(nbytes) + shape_at(bucket);
    spent_ += seconds;
    observed_ = std::min(observed_ + 1, kUsualCalls);
    usual_ += (seconds - usual_) / static_cast<double>(observed_);
    known->pending = -kPendingCalls;
    if (known->stake) {
        auto [thought, best, recovering] = *known->stake;
        double surplus = std::min(std::max(seconds - best, 0.0) - thought, kMostStake * usual_);
        double& paid = recovering ? known->slowed_paid : paid_;
        paid += seconds > kStall * (best + thought) ? kStallStake * best : surplus;
        known->stake.reset();
    }
    known->failure.reset();
    auto call = band_calls_.find(band);
    known->last[band] = call == band_calls_.end() ? 0 : call->second;
    if (first) {
        known->curve.cell(bucket).add_first(value);
        outdate(bucket, tool);
        return;
    }
    std::optional<Belief> thought = expected(bucket, tool);
    if (thought) {
        double noise = known->curve.noise();
        if (moods_.hear(bucket, tool, value - thought->mean, thought->variance + noise * noise)) {
            plans_.clear();
            return;
        }
    }
    known->curve.add(bucket, value);
    outdate(bucket, tool);
    double before = known->shift;
    if (thought && known->hear(bucket, value, thought->mean, thought->variance)) {
        if (known->shift > before) {
            known->slowed_since = spent_;
            known->slowed_paid = 0;
        }
        moods_.changed(tool, known->shift - before);
        plans_.clear();
    }
}

void Tuner::fail(const std::string& tool, const std::string& reason) {
    std::shared_ptr<Record> known = record(tool);
    known->pending = -kPendingCalls;
    moods_.forget(tool);
    known->fail(calls_, reason);
    plans_.clear();
}

void Tuner::renew() {
    for (const auto& [_, known] : records_) {
        for (auto& [bucket, cell] : known->curve.cells()) {
            if (!cell.values.empty()) cell.shift(0, kRenewalDoubt);
        }
    }
    plans_.clear();
}

std::vector<std::pair<std::string, double>> Tuner::times(double nbytes, const Tools& candidates) {
    Opinions ranked = plan(bucket_of(nbytes), candidates).ranked;
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& one, const auto& other) { return one.mean < other.mean; });
    std::vector<std::pair<std::string, double>> found;
    for (const Opinion& each : ranked) {
        if (!each.known() || record(each.tool)->failing(calls_)) continue;
        found.emplace_back(each.tool, std::exp(each.mean + shape(nbytes)));
    }
    return found;
}

std::shared_ptr<Record> Tuner::record(const std::string& tool) {
    if (std::shared_ptr<Record> known = find(records_, tool)) return known;
    if (records_.size() >= kMostTools) records_.erase(records_.begin());
    return records_.emplace_back(tool, std::make_shared<Record>()).second;
}

// What the tool takes at a bucket: by its own samples there, else what a plan believed.
std::optional<Belief> Tuner::expected(int bucket, const std::string& tool) const {
    const Curve& curve = find(records_, tool)->curve;
    const Samples* cell = curve.find(bucket);
    if (cell && cell->values.size() + 1 >= kSettledSamples && cell->doubt == 0) {
        return Belief{cell->median(), cell->variance(curve.noise())};
    }
    auto plans = plans_.find(bucket);
    if (plans == plans_.end()) return {};
    for (const auto& [_, each] : plans->second) {
        for (const Opinion& one : each.ranked) {
            if (one.tool == tool && one.known())
                return Belief{one.mean + shape_at(bucket), one.deviation * one.deviation};
        }
    }
    return {};
}

// Has the plans of a bucket made anew that what was learned of the tool bears upon.
void Tuner::outdate(int bucket, const std::string& tool) {
    auto plans = plans_.find(bucket);
    if (plans == plans_.end()) return;
    for (auto& [_, each] : plans->second) {
        if (each.choice.exploring || each.choice.tool != tool) each.uses = 0;
    }
}

// Whether the budget for trying tools has as many seconds left.
bool Tuner::affords(const Look& look) const {
    double calls = look.listed ? kListedCalls : kBudgetCalls;
    return look.cost <= calls * usual_ + kBudgetShare * spent_ - paid_;
}

// Whether a tool may be looked at now: out of the budget, or unmeasured, where that is cheap: at a call no dearer than
// usual; if it is said to be slower, where it should cost no more than that beyond what the best one takes.
bool Tuner::pays(const Plan& plan, const Look& look) const {
    if (affords(look)) return true;
    if (find(records_, look.tool)->curve.measured()) return false;
    return look.listed ? look.cost <= kListedCalls * usual_ : plan.seconds <= usual_;
}

// Whether a tool that became slower is to be looked at: it would be the best if it were as fast as before. That may
// cost a share of the time since, and whatever it takes while it seems to be faster.
bool Tuner::may_have_recovered(const Look& look, const Record& record) const {
    if (record.slowed == 0 || look.gap >= record.slowed) return false;
    return record.suspicion > 0 || look.cost + record.slowed_paid <= kRecoveryShare * (spent_ - record.slowed_since);
}

// A tool is handed out to be tried: charge what that should cost, until it is known what it did.
void Tuner::hand_out(const Plan& plan, const std::string& tool, bool recovering) {
    std::shared_ptr<Record> known = record(tool);
    known->pending = calls_;
    known->stake = Stake{plan.cost(tool), plan.seconds, recovering};
    (recovering ? known->slowed_paid : paid_) += known->stake->cost;
    moods_.tried(tool, plan.ranked.front().tool);
}

bool Tuner::may_be_tried(const Record& record) const {
    return calls_ - record.pending >= kPendingCalls && !record.failing(calls_);
}

}  // namespace fastio
