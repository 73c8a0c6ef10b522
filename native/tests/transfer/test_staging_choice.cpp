// Landing or staging, on a clock of our own: the faster is found, trials are short, and what changes is noticed.
#include <cmath>

#include "tests/support/check.hpp"
#include "transfer/staging_choice.hpp"

namespace {

using fastio::StagingChoice;

constexpr uint64_t kBlock = 512 << 10, kGiB = 1 << 30;

// A device with a speed of its own for each way, in bytes a second.
struct Device {
    double in_place, staged;
    StagingChoice choice{false};
    double now = 100;
    uint64_t was_staged = 0;

    // Read so much, and tell how long it took.
    double read(uint64_t nbytes) {
        const double began = now;
        was_staged = 0;
        choice.begin();
        for (uint64_t at = 0; at < nbytes; at += kBlock) {
            bool way = choice.staged();
            now += static_cast<double>(kBlock) / (way ? staged : landing);
            was_staged += way ? kBlock : 0;
            choice.record(way, kBlock, now);
        }
        return now - began;
    }
};

void check_the_faster_is_found() {
    for (double gain : {0.25, 0.5, 0.8, 1.0, 1.05, 1.3, 2.0, 3.0, 4.0}) {
        Device device{2e9, gain * 2e9, StagingChoice(gain == 0.25 || gain == 3.0)};
        device.read(2 * kGiB);  // both are known by then
        const double took = device.read(64 * kGiB);
        const double share = static_cast<double>(device.was_staged) / (64 * kGiB);
        const double best = 64 * kGiB / std::fmax(device.landing, device.staged);
        CHECK(gain > 1.2 ? share > 0.9 : share < 0.15, "staged at %.2f of landing's speed: %.3f", gain, share);
        CHECK(took < 1.06 * best, "trials cost %.3f of the time (%.2f)", took / best - 1, gain);
    }
}

void check_what_is_first() {
    Device device{1e9, 9e9};
    device.read(30 << 20);
    CHECK(device.was_staged == 0, "what is read at first lands");
    Device likely{1e9, 9e9, StagingChoice(true)};
    likely.read(kGiB);
    CHECK(likely.was_staged == kGiB, "unless a host is likely to copy");
}

void check_a_change_is_noticed() {
    Device device{2e9, 5e9};
    device.read(4 * kGiB);
    CHECK(device.choice.staged(), "staged");
    device.staged = 1e9;  // what is in use is always measured
    device.read(kGiB / 4);
    CHECK(!device.choice.staged(), "landing");
    device.staged = 9e9;  // what is not is tried again
    device.read(20 * kGiB);
    CHECK(device.choice.staged(), "staged again");
}

void check_a_trial_is_given_up() {
    Device device{2e9, 1e9, StagingChoice(true)};
    device.read(kGiB);
    CHECK(!device.choice.staged(), "landing is tried");
    uint64_t staged = 0;
    for (int read = 0; read < 8; ++read) {
        device.read(24 << 20);  // too little to measure by
        staged += device.was_staged;
    }
    CHECK(device.choice.staged() && staged > 0, "and given up where no read is large enough to measure it by");
}

void check_another_process_goes_on() {
    Device device{1e9, 3e9};
    CHECK(!device.choice.learned(), "nothing is known before anything is read");
    device.read(2 * kGiB);
    const StagingChoice::Learned learned = *device.choice.learned();
    CHECK(learned.staged && learned.in_place > 2 * learned.staging && learned.interval > kGiB, "what is known: %g, %g",
          learned.in_place, learned.staging);
    Device next{1e9, 3e9};
    next.choice.adopt(learned);
    next.read(kGiB);
    CHECK(next.was_staged == kGiB, "the next process stages at once, and tries nothing");
    next.choice.adopt({false, 1e-9, 9e-9, 0, 0});
    CHECK(next.choice.staged(), "what a process found out itself counts for more");
    Device trying{2e9, 1e9, StagingChoice(true)};
    trying.read(kGiB);
    const auto before = trying.choice.learned();
    CHECK(!trying.choice.staged() && before && before->staged && before->staging > 0,
          "a trial has just begun: what came before stands");
    Device absurd{3e9, 1e9};
    absurd.choice.adopt({true, 0, 1e-12, UINT64_MAX / 2, UINT64_MAX});
    absurd.read(2 * kGiB);
    CHECK(!absurd.choice.staged(), "what was wrong is found out by the next trial");
}

void check_what_was_sent_before_does_not_count() {
    StagingChoice choice(false);
    double now = 0;
    while (!choice.staged()) choice.record(false, kBlock, now += 1e-3);
    for (int block = 0; block < 1000; ++block) choice.record(false, kBlock, now += 1e-3);
    CHECK(choice.staged(), "a trial of staging is of what was staged");
}

}  // namespace

int main() {
    check_the_faster_is_found();
    check_what_is_first();
    check_a_change_is_noticed();
    check_what_was_sent_before_does_not_count();
    check_a_trial_is_given_up();
    check_another_process_goes_on();
}
