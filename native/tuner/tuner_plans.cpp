// What the tuner is to do at one size: what it believes of the tools, and what follows from it.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tuner/buckets.hpp"
#include "tuner/exploration.hpp"
#include "tuner/reasons.hpp"
#include "tuner/tuner.hpp"

namespace fastio {

namespace {

constexpr int kSettledUses = 16;     // calls of a settled bucket between two looks at the evidence
constexpr long kPlanCalls = 512;     // the life of a plan
constexpr size_t kMostPlans = 16;    // of one bucket: one for each set of candidates
constexpr double kShiftDoubt = 0.3;  // of a change of speed, at sizes where it was not measured
// From here on the bytes are the work, not the call: what it takes of the processor counts.
constexpr uint64_t kLargeNbytes = 16 << 20;
// And from here on for long: half a second for a durable save of 1.3 GB, which through the page cache takes the same
// time and twice the processor's.
constexpr uint64_t kHugeNbytes = 256 << 20;

void to_front(std::vector<const Opinion*>& opinions, const Opinion* best) {
    auto at = std::find(opinions.begin(), opinions.end(), best);
    std::rotate(opinions.begin(), at, at + 1);
}

}  // namespace

Plan Tuner::make_plan(int bucket, const Tools& candidates, bool first) {
    if (candidates.empty()) throw std::invalid_argument("there is no tool to choose from");
    Opinions all = opinions(bucket, candidates, first);
    std::vector<const Opinion*> usable, failing, ranked;
    for (const Opinion& each : all) (record(each.tool)->failing(calls_) ? failing : usable).push_back(&each);
    if (usable.empty()) usable.swap(failing);
    ranked = usable;
    ranked.insert(ranked.end(), failing.begin(), failing.end());
    const Opinion& fastest = *usable.front();
    uint64_t nbytes = bucket_nbytes(bucket);
    bool large = nbytes >= kLargeNbytes, huge = nbytes >= kHugeNbytes;
    const Opinion& best = large ? preferred(usable, candidates, huge) : fastest;
    to_front(usable, &best);
    to_front(ranked, &best);
    Plan made;
    made.seconds = observed_ ? best.seconds(bucket) : 0;
    double dearness = usual_ > 0 ? made.seconds / usual_ : 1;
    made.looks = looks_at(usable, made.seconds, large);
    std::vector<const Opinion*> idle;
    for (size_t place = 1; place < usable.size(); ++place) {
        const std::string& tool = usable[place]->tool;
        if (may_be_tried(*record(tool)) && affords(made.looks[place - 1])) idle.push_back(usable[place]);
    }
    const Opinion& chosen = pick(best, idle, dearness, large, huge);
    made.choice = {chosen.tool, why(bucket, chosen, usable, fastest, first), &chosen != &best, {chosen.tool}};
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
Opinions Tuner::opinions(int bucket, const Tools& candidates, bool first) const {
    std::vector<Known> known;
    std::vector<std::shared_ptr<const Record>> own;
    for (const std::string& tool : candidates) {
        std::shared_ptr<const Record> record = find(records_, tool);
        Belief at = prior->at(bucket, tool);
        double shift = record ? record->shift : 0;  // the prior moves by as much as the tool's speed changed since
        own.push_back(record);
        known.push_back({record ? &record->curve : nullptr,
                         {at.mean + shift, at.variance + (kShiftDoubt * shift) * (kShiftDoubt * shift)}});
    }
    const std::vector<Estimate> believed = first ? first_estimates(known, bucket) : estimates(known, bucket);
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

}  // namespace fastio
