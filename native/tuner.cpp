#include "tuner.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "buckets.hpp"
#include "exploration.hpp"
#include "reasons.hpp"

namespace fastio {

namespace {

constexpr size_t kSettledSamples = 4;
constexpr int kSettledUses = 16;    // calls of a settled bucket between two looks at the evidence
constexpr long kPlanCalls = 512;    // the life of a plan
constexpr long kPendingCalls = 16;  // a try that nobody reported on is given up after so many calls
constexpr long kUsualCalls = 200;   // window of the usual call's time
constexpr size_t kMostTools = 64;
constexpr size_t kMostPlans = 16;  // of one bucket: one for each set of candidates
constexpr double kRenewalDoubt = 0.5;
constexpr double kLeastSeconds = 1e-9;
constexpr double kShiftDoubt = 0.3;  // of a change of speed, at sizes where it was not measured
// From here on the bytes are the work, not the call: what it takes of the processor counts.
constexpr uint64_t kLargeNbytes = 16 << 20;

void to_front(std::vector<const Opinion*>& opinions, const Opinion* best) {
    auto at = std::find(opinions.begin(), opinions.end(), best);
    std::rotate(opinions.begin(), at, at + 1);
}

}  // namespace

Choice Tuner::choose(double nbytes, const Tools& candidates) {
    int bucket = bucket_of(nbytes), band = bucket / kBand;
    ++calls_;
    long call = ++band_calls_[band];
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
        bool due = static_cast<double>(since) >= look.calls * known->backoff;
        if (!due || !may_be_tried(*known) || !pays(now, look)) continue;
        known->last[band] = call;
        ++known->looks;
        hand_out(now, look.tool);
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
        auto [thought, best] = *known->stake;
        paid_ += std::min(std::max(seconds - best, 0.0) - thought, kMostStake * usual_);
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
    for (const auto& [name, known] : records_) {
        if (name == tool) return known;
    }
    if (records_.size() >= kMostTools) records_.erase(records_.begin());
    return records_.emplace_back(tool, std::make_shared<Record>()).second;
}

Plan Tuner::make_plan(int bucket, const Tools& candidates) {
    if (candidates.empty()) throw std::invalid_argument("there is no tool to choose from");
    Opinions all = opinions(bucket, candidates);
    std::vector<const Opinion*> usable, failing, ranked;
    for (const Opinion& each : all) (record(each.tool)->failing(calls_) ? failing : usable).push_back(&each);
    if (usable.empty()) usable.swap(failing);
    ranked = usable;
    ranked.insert(ranked.end(), failing.begin(), failing.end());
    const Opinion& fastest = *usable.front();
    bool large = bucket_nbytes(bucket) >= kLargeNbytes;
    const Opinion& best = large ? preferred(usable, candidates) : fastest;
    to_front(usable, &best);
    to_front(ranked, &best);
    Plan made;
    made.seconds = observed_ ? best.seconds(bucket) : 0;
    double dearness = usual_ > 0 ? made.seconds / usual_ : 1;
    made.looks = looks_at(usable, made.seconds, large);
    std::vector<const Opinion*> idle;
    for (size_t place = 1; place < usable.size(); ++place) {
        const std::string& tool = usable[place]->tool;
        if (may_be_tried(*record(tool)) && affords(made.looks[place - 1].cost)) idle.push_back(usable[place]);
    }
    const Opinion& chosen = pick(best, idle, dearness, large);
    made.choice = {chosen.tool, why(bucket, chosen, usable, fastest), &chosen != &best, {chosen.tool}};
    for (const Opinion* each : ranked) {
        made.ranked.push_back(*each);
        if (each != &chosen) made.choice.order.push_back(each->tool);
    }
    if (&chosen == &best) {
        int far = static_cast<int>(std::min<size_t>(1 + best.nearby / 64, kSettledUses));
        made.uses = best.samples >= kSettledSamples ? kSettledUses : far;
    }
    made.until = calls_ + kPlanCalls;
    return made;
}

// What is to be done at a bucket, as worked out lately.
Plan& Tuner::plan(int bucket, const Tools& candidates) {
    auto& plans = plans_[bucket];
    auto at = std::find_if(plans.begin(), plans.end(), [&](const auto& each) { return each.first == candidates; });
    if (at != plans.end() && at->second.uses > 0 && at->second.until >= calls_) return at->second;
    Plan made = make_plan(bucket, candidates);
    if (plans.size() >= kMostPlans) {
        plans.clear();
        at = plans.end();
    }
    if (at != plans.end()) return at->second = std::move(made);
    return plans.emplace_back(candidates, std::move(made)).second;
}

// The opinions of all tools, the fastest first; equal ones stay in the order given.
Opinions Tuner::opinions(int bucket, const Tools& candidates) const {
    std::vector<Known> known;
    std::vector<const Record*> own;
    for (const std::string& tool : candidates) {
        const Record* record = find(records_, tool);
        Belief at = prior->at(bucket, tool);
        double shift = record ? record->shift : 0;  // the prior moves by as much as the tool's speed changed since
        own.push_back(record);
        known.push_back({record ? &record->curve : nullptr,
                         {at.mean + shift, at.variance + (kShiftDoubt * shift) * (kShiftDoubt * shift)}});
    }
    std::vector<Estimate> believed = estimates(known, bucket);
    Opinions found;
    for (size_t place = 0; place < candidates.size(); ++place) {
        const auto& [belief, heard, samples, nearby] = believed[place];
        Opinion one{candidates[place], belief.mean, std::sqrt(belief.variance)};
        one.listed = prior->lists(one.tool);
        one.prior = known[place].prior.mean;
        one.source = one.listed ? Source::kPrior : Source::kUnknown;
        if (heard) {
            one.source = samples ? Source::kMeasured : nearby ? Source::kNearby : Source::kFirstCall;
            one.deviation += own[place]->suspicion;
            one.samples = samples;
            one.nearby = nearby;
            one.looks = own[place]->looks;
        }
        found.push_back(std::move(one));
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& one, const auto& other) { return one.mean < other.mean; });
    return found;
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

// Whether the budget for trying tools has so many seconds left.
bool Tuner::affords(double cost) const { return cost <= kBudgetCalls * usual_ + kBudgetShare * spent_ - paid_; }

// Whether a tool may be looked at now: out of the budget, or unmeasured and at a call no dearer than usual.
bool Tuner::pays(const Plan& plan, const Look& look) const {
    return affords(look.cost) || (!find(records_, look.tool)->curve.measured() && plan.seconds <= usual_);
}

// A tool is handed out to be tried: charge what that should cost, until it is known what it did.
void Tuner::hand_out(const Plan& plan, const std::string& tool) {
    std::shared_ptr<Record> known = record(tool);
    known->pending = calls_;
    known->stake = Stake{plan.cost(tool), plan.seconds};
    paid_ += known->stake->cost;
    moods_.tried(tool, plan.ranked.front().tool);
}

bool Tuner::may_be_tried(const Record& record) const {
    return calls_ - record.pending >= kPendingCalls && !record.failing(calls_);
}

}  // namespace fastio
