#include "tuner/machine_drift.hpp"

#include <algorithm>
#include <limits>

namespace fastio {

namespace {

constexpr int kMostExcuses = 4;  // in a row: then the machine is slower for good, as far as one can tell
constexpr double kFaster = 0.7;  // a tool was faster than expected by so much, as a logarithm: the machine may be
constexpr double kAlike = 0.5;   // a tool that changed by this share of what another one did changed with it

}  // namespace

std::shared_ptr<Record> find(const Records& records, const std::string& tool) {
    for (const auto& [name, record] : records) {
        if (name == tool) return record;
    }
    return nullptr;
}

std::optional<std::pair<std::string, std::string>> Moods::ask(
    const Plan& plan, const std::function<bool(const std::string&)>& may_be_tried) {
    const std::string& choice = plan.choice.tool;
    if (faster_ && faster_->place != choice) {
        const std::string& place = faster_->place;
        bool known = std::any_of(plan.ranked.begin(), plan.ranked.end(),
                                 [&](const Opinion& each) { return each.tool == place && each.known(); });
        if (known && may_be_tried(place)) {
            return {{place, faster_->tool + " was faster: with " + place + " it shows whether the machine is"}};
        }
        faster_.reset();
    }
    std::shared_ptr<Record> record = find(records_, choice);
    if (!record || !record->trial.wanted || plan.choice.exploring) return {};
    record->trial.wanted = false;
    double most = -std::numeric_limits<double>::infinity();
    for (const Opinion& each : plan.ranked) {
        if (each.known() && each.tool == choice) most = each.mean + record->trial.by;
    }
    for (const Opinion& each : plan.ranked) {
        if (each.known() && each.tool != choice && each.mean < most && may_be_tried(each.tool)) {
            return {{each.tool, choice + " was slow: with " + each.tool + " it shows whether the machine is"}};
        }
    }
    return {};
}

void Moods::tried(const std::string& tool, const std::string& place) {
    if (tool != place) places_[tool] = place;
}

void Moods::forget(const std::string& tool) {
    places_.erase(tool);
    if (faster_ && tool == faster_->place) faster_.reset();
}

bool Moods::hear(int bucket, const std::string& tool, double deviation, double variance) {
    std::string place;
    auto at = places_.find(tool);
    if (at != places_.end()) {
        place = at->second;
        places_.erase(at);
    }
    if (faster_) {
        if (tool == faster_->place) answer(*faster_, deviation);
    } else if (!place.empty() && deviation < -kFaster) {
        faster_ = Faster{tool, bucket, deviation, place};
    }
    std::shared_ptr<Record> suspect = find(records_, place);
    if (!suspect || suspect->trial.by == 0) return false;
    double by = suspect->trial.by;
    if (!suspect->trial.compare(deviation, variance)) return false;
    suspect->excuse();
    if (suspect->excused >= kMostExcuses) move(by, "");
    return true;
}

void Moods::changed(const std::string& tool, double by) {
    if (slower_ > 0 && by < -kAlike * slower_) move(-slower_, tool);
}

// Hears how far off the tool was in whose place another one seemed faster.
void Moods::answer(const Faster& heard, double deviation) {
    Faster faster = heard;
    faster_.reset();
    if (deviation >= kAlike * faster.by) return;
    double by = (deviation + faster.by) / 2;
    move(by, faster.tool);
    if (std::shared_ptr<Record> record = find(records_, faster.tool)) record->move(by, faster.bucket);
}

// All tools changed by so much, `but` one.
void Moods::move(double by, const std::string& but) {
    slower_ = std::max(0.0, slower_ + by);
    for (const auto& [tool, record] : records_) {
        if (tool != but) record->move(by);
    }
}

}  // namespace fastio
