// Tests the choice between reading in place and staging on a simulated clock: it finds the faster way, trials are
// short, and changes are noticed.
#include <cmath>

#include "tests/support/check.hpp"
#include "transfer/staging_choice.hpp"

namespace {

using fastio::StagingChoice;

constexpr uint64_t kBlock = 512 << 10, kGiB = 1 << 30;

// A simulated device with a speed for each way, in bytes per second.
struct Device {
    double in_place, staged;
    StagingChoice choice{false};
    double now = 100;
    uint64_t was_staged = 0;

    // Reads `nbytes` and returns the seconds it took.
    double read(uint64_t nbytes) {
        const double began = now;
        was_staged = 0;
        choice.begin();
        for (uint64_t at = 0; at < nbytes; at += kBlock) {
            bool way = choice.staged();
            now += static_cast<double>(kBlock) / (way ? staged : in_place);
            was_staged += way ? kBlock : 0;
            choice.record(way, kBlock, now);
        }
        return now - began;
    }
};

void check_finds_the_faster() {
    for (double gain : {0.25, 0.5, 0.8, 1.0, 1.05, 1.3, 2.0, 3.0, 4.0}) {
        Device device{2e9, gain * 2e9, StagingChoice(gain == 0.25 || gain == 3.0)};
        device.read(2 * kGiB);  // enough to measure both
        const double took = device.read(64 * kGiB);
        const double share = static_cast<double>(device.was_staged) / (64 * kGiB);
        const double best = 64 * kGiB / std::fmax(device.in_place, device.staged);
        CHECK(gain > 1.2 ? share > 0.9 : share < 0.15,
              "with staging at %.2f times the speed of reading in place, %.3f were staged", gain, share);
        CHECK(took < 1.06 * best, "trials must cost less than 0.06 of the time; they cost %.3f (%.2f)", took / best - 1,
              gain);
    }
}

void check_first_choice() {
    Device device{1e9, 9e9};
    device.read(30 << 20);
    CHECK(device.was_staged == 0, "the first reads are in place");
    Device likely{1e9, 9e9, StagingChoice(true)};
    likely.read(kGiB);
    CHECK(likely.was_staged == kGiB, "the first reads are staged where that is likely faster");
}

void check_notices_changes() {
    Device device{2e9, 5e9};
    device.read(4 * kGiB);
    CHECK(device.choice.staged(), "staging is faster");
    device.staged = 1e9;  // the way in use is always measured
    device.read(kGiB / 4);
    CHECK(!device.choice.staged(), "staging has become slower");
    device.staged = 9e9;  // the other way is tried again
    device.read(20 * kGiB);
    CHECK(device.choice.staged(), "staging is faster again");
}

void check_gives_a_trial_up() {
    Device device{2e9, 1e9, StagingChoice(true)};
    device.read(kGiB);
    CHECK(!device.choice.staged(), "reading in place is being tried");
    uint64_t staged = 0;
    for (int read = 0; read < 8; ++read) {
        device.read(24 << 20);  // too little to measure by
        staged += device.was_staged;
    }
    CHECK(device.choice.staged() && staged > 0, "the trial is given up when no read is large enough to measure");
}

void check_adopts_from_another_process() {
    Device device{1e9, 3e9};
    CHECK(!device.choice.learned(), "nothing is known before the first read");
    device.read(2 * kGiB);
    const StagingChoice::Learned learned = *device.choice.learned();
    CHECK(learned.staged && learned.in_place > 2 * learned.staging && learned.interval > kGiB,
          "staging was learned to be faster: %g, %g", learned.in_place, learned.staging);
    Device next{1e9, 3e9};
    next.choice.adopt(learned);
    next.read(kGiB);
    CHECK(next.was_staged == kGiB, "the next process stages at once, without a trial");
    next.choice.adopt({false, 1e-9, 9e-9, 0, 0});
    CHECK(next.choice.staged(), "own measurements are not overwritten");
    Device trying{2e9, 1e9, StagingChoice(true)};
    trying.read(kGiB);
    const auto before = trying.choice.learned();
    CHECK(!trying.choice.staged() && before && before->staged && before->staging > 0,
          "during a trial, learned() returns the previous choice");
    Device absurd{3e9, 1e9};
    absurd.choice.adopt({true, 0, 1e-12, UINT64_MAX / 2, UINT64_MAX});
    absurd.read(2 * kGiB);
    CHECK(!absurd.choice.staged(), "the next trial corrects wrong data");
}

void check_ignores_blocks_sent_before_a_decision() {
    StagingChoice choice(false);
    double now = 0;
    while (!choice.staged()) choice.record(false, kBlock, now += 1e-3);
    for (int block = 0; block < 1000; ++block) choice.record(false, kBlock, now += 1e-3);
    CHECK(choice.staged(), "blocks read in place do not end a trial of staging");
}

}  // namespace

int main() {
    check_finds_the_faster();
    check_first_choice();
    check_notices_changes();
    check_ignores_blocks_sent_before_a_decision();
    check_gives_a_trial_up();
    check_adopts_from_another_process();
}
