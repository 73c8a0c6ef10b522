#include "staging_choice.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

namespace fastio {

void StagingChoice::hear(bool staged, uint64_t nbytes, double now) {
    since_ += nbytes;
    if (staged != staged_) return;  // sent before the last decision
    if (skipped_ < kInFlight) {
        skipped_ += nbytes;
        began_ = now;
        return;
    }
    nbytes_ += nbytes;
    if (nbytes_ < kTrial) return;
    double took = (now - began_) / static_cast<double>(nbytes_);
    double& known = seconds_[staged_];
    known = known == 0 ? took : (known + took) / 2;
    nbytes_ = 0;
    began_ = now;
    decide();
}

void StagingChoice::decide() {
    if (seconds_[!staged_] == 0 || (!is_trial_ && since_ >= spell_)) {
        is_trial_ = true;
        since_ = 0;
        take(!staged_);
        return;
    }
    const bool better = seconds_[true] < kGain * seconds_[false];
    if (is_trial_) {
        double slower = seconds_[!better] / seconds_[better] - 1;
        double spell = slower / kTrialsCost * static_cast<double>(kInFlight + kTrial);
        spell_ = std::clamp(static_cast<uint64_t>(std::max(spell, 0.0)), kLeastSpell, kMostSpell);
    }
    is_trial_ = false;
    if (better != staged_) take(better);
}

void StagingChoice::take(bool staged) {
    staged_ = staged;
    begin();
}

SharedStagingChoice& SharedStagingChoice::of(dev_t device) {
    static std::mutex* mutex = new std::mutex;  // never destroyed: a thread may still use them at exit
    static auto* choices = new std::map<dev_t, std::unique_ptr<SharedStagingChoice>>;
    std::lock_guard<std::mutex> lock(*mutex);
    std::unique_ptr<SharedStagingChoice>& choice = (*choices)[device];
    if (choice == nullptr) choice = std::make_unique<SharedStagingChoice>();
    return *choice;
}

void SharedStagingChoice::begin() {
    std::lock_guard<std::mutex> lock(mutex_);
    choice_.begin();
}

bool SharedStagingChoice::staged() {
    std::lock_guard<std::mutex> lock(mutex_);
    return choice_.staged();
}

void SharedStagingChoice::hear(bool staged, uint64_t nbytes) {
    double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    std::lock_guard<std::mutex> lock(mutex_);
    choice_.hear(staged, nbytes, now);
}

}  // namespace fastio
