#include "transfer/staging_choice.hpp"

#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "support/fork_safe_singleton.hpp"

namespace fastio {

namespace {

// Whether the device, or the disk that it is a partition of, is a virtual disk, by its path in sysfs.
bool is_virtio(dev_t device) {
    const std::string link = "/sys/dev/block/" + std::to_string(major(device)) + ":" + std::to_string(minor(device));
    char target[4096];
    const ssize_t length = readlink(link.c_str(), target, sizeof target);
    return length > 0 &&
           std::string_view(target, static_cast<size_t>(length)).find("/virtio") != std::string_view::npos;
}

}  // namespace

void StagingChoice::record(bool staged, uint64_t nbytes, double now) {
    since_trial_ += nbytes;
    if (is_trial_ && since_trial_ >= kTrialLimit) {
        is_trial_ = false;
        switch_to(!staged_);
        return;
    }
    if (staged != staged_) return;  // the block was sent before the last decision
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
    if (!is_trial_ && since_trial_ >= interval_) {
        is_trial_ = true;
        since_trial_ = 0;
        switch_to(!staged_);
        return;
    }
    if (seconds_[!staged_] == 0) return;  // not tried yet
    const bool better = seconds_[true] < kMinGain * seconds_[false];
    if (is_trial_) {
        double slower = seconds_[!better] / seconds_[better] - 1;
        double interval = slower / kMaxTrialCost * static_cast<double>(kInFlight + kTrial);
        interval_ = std::clamp(static_cast<uint64_t>(std::max(interval, 0.0)), kMinInterval, kMaxInterval);
    }
    is_trial_ = false;
    if (better != staged_) switch_to(better);
}

void StagingChoice::switch_to(bool staged) {
    staged_ = staged;
    begin();
}

std::optional<StagingChoice::Learned> StagingChoice::learned() const {
    if (since_trial_ == 0 && seconds_[false] == 0 && seconds_[true] == 0) return {};
    return Learned{staged_ != is_trial_, seconds_[false], seconds_[true], since_trial_, interval_};
}

void StagingChoice::adopt(const Learned& learned) {
    if (this->learned()) return;
    seconds_[false] = learned.in_place;
    seconds_[true] = learned.staging;
    since_trial_ = learned.since_trial;
    interval_ = std::min(learned.interval, kMaxInterval);
    switch_to(learned.staged);
}

namespace {

struct Choices {
    std::mutex mutex;
    std::map<dev_t, std::unique_ptr<SharedStagingChoice>> by_device;
};

}  // namespace

SharedStagingChoice& SharedStagingChoice::of(dev_t device) {
    auto& all = fork_safe_singleton<Choices>();
    std::lock_guard<std::mutex> lock(all.mutex);
    std::unique_ptr<SharedStagingChoice>& choice = all.by_device[device];
    if (choice == nullptr) choice = std::make_unique<SharedStagingChoice>(is_virtio(device));
    return *choice;
}

void SharedStagingChoice::begin() {
    std::lock_guard<std::mutex> lock(fork_safe_singleton<Choices>().mutex);
    choice_.begin();
}

bool SharedStagingChoice::staged() {
    std::lock_guard<std::mutex> lock(fork_safe_singleton<Choices>().mutex);
    return choice_.staged();
}

void SharedStagingChoice::record(bool staged, uint64_t nbytes) {
    double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    std::lock_guard<std::mutex> lock(fork_safe_singleton<Choices>().mutex);
    choice_.record(staged, nbytes, now);
}

std::optional<StagingChoice::Learned> SharedStagingChoice::learned() {
    std::lock_guard<std::mutex> lock(fork_safe_singleton<Choices>().mutex);
    return choice_.learned();
}

void SharedStagingChoice::adopt(const StagingChoice::Learned& learned) {
    std::lock_guard<std::mutex> lock(fork_safe_singleton<Choices>().mutex);
    choice_.adopt(learned);
}

}  // namespace fastio
