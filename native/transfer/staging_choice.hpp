// Whether what is read from a device lands in its place, or goes through a few staging blocks first.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <optional>

namespace fastio {

// Landing spares a copy, and on a device that reaches memory by itself it is at least as fast. A virtual disk's host
// copies the bytes, and memory that it has not written to before can cost it more than copying them costs us: 2.1 GB/s
// against 4.5 on one machine. So both are tried, and the faster is taken; the other is tried again from time to time,
// the more seldom the slower it was.
class StagingChoice {
  public:
    // What another process may go on from.
    struct Learned {
        bool staged;              // the faster, as far as is known
        double landing, staging;  // seconds a byte; 0: not known yet
        uint64_t since, spell;    // bytes since the other was tried; bytes from one trial to the next
    };

    // Staging is `likely` to win where a host copies: then it is first, and landing is not tried at once.
    explicit StagingChoice(bool likely) : staged_(likely), spell_(likely ? kFirstSpell : 0) {}

    bool staged() const { return staged_; }
    // A block arrived and is where it belongs, at that time in seconds. Any clock that does not go back.
    void hear(bool staged, uint64_t nbytes, double now);
    // What follows has nothing to do with the time before: another read begins.
    void begin() { skipped_ = nbytes_ = 0; }
    // Nothing, where nothing was read yet.
    std::optional<Learned> learned() const;
    // Goes on from what another process learned, unless something is known already.
    void adopt(const Learned& learned);

  private:
    static constexpr uint64_t kInFlight = 16 << 20;  // at first what arrives was delayed by what was sent before it
    static constexpr uint64_t kTrial = 16 << 20;
    static constexpr uint64_t kGivenUp = 128 << 20;  // a trial's bytes: no read is large enough to measure by
    static constexpr uint64_t kFirstSpell = 1 << 30, kLeastSpell = 256 << 20, kMostSpell = 16ULL << 30;
    static constexpr double kGain = 0.9;  // staging costs the processor a copy: it must take less than this share
    static constexpr double kTrialsCost = 0.02;  // of the time at most

    bool staged_;
    bool is_trial_ = false;  // of what was not chosen
    uint64_t skipped_ = 0;   // bytes of this kind that were not measured
    uint64_t nbytes_ = 0;    // that were, since `began_`
    double began_ = 0;
    double seconds_[2] = {0, 0};  // a byte, landing and staged; 0: not known yet
    uint64_t since_ = 0;          // bytes since the last trial began
    uint64_t spell_;              // until the next one

    void decide();
    void take(bool staged);
};

// The choice for one device, shared by all reads from it; one lock for those of all devices.
class SharedStagingChoice {
  public:
    static SharedStagingChoice& of(dev_t device);
    explicit SharedStagingChoice(bool likely) : choice_(likely) {}

    void begin();
    bool staged();
    void hear(bool staged, uint64_t nbytes);
    std::optional<StagingChoice::Learned> learned();
    void adopt(const StagingChoice::Learned& learned);

  private:
    StagingChoice choice_;
};

}  // namespace fastio
