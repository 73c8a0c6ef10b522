// Learns for each device whether direct reads are faster in place or through staging blocks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <optional>

namespace fastio {

// Reading in place saves a copy, and is at least as fast on a device that accesses memory itself. The host of a virtual
// disk copies the bytes, and memory that it has not written before can cost it more than a second copy costs here: 2.1
// GB/s against 4.5 on one machine. So both ways are measured and the faster is used. The other is tried again from time
// to time, the more rarely the slower it was.
class StagingChoice {
  public:
    // What another process may continue from.
    struct Learned {
        bool staged;                     // staging is the faster way, as far as is known
        double in_place, staging;        // seconds per byte; 0: not known yet
        uint64_t since_trial, interval;  // bytes since the last trial; bytes from one trial to the next
    };

    // `likely`: staging is expected to be faster, as on a virtual disk. It is then used first, and reading in place is
    // not tried at once.
    explicit StagingChoice(bool likely) : staged_(likely), interval_(likely ? kFirstInterval : 0) {}

    bool staged() const { return staged_; }
    // Records that a block is in its final memory at time `now`, in seconds of a monotonic clock.
    void record(bool staged, uint64_t nbytes, double now);
    // Starts a new read: the time since the last block is not counted.
    void begin() { skipped_ = nbytes_ = 0; }
    // Returns nullopt if nothing was read yet.
    std::optional<Learned> learned() const;
    // Continues from what another process learned, unless this one knows something already.
    void adopt(const Learned& learned);

  private:
    static constexpr uint64_t kInFlight = 16 << 20;  // not measured at first: earlier requests delay these blocks
    static constexpr uint64_t kTrial = 16 << 20;
    static constexpr uint64_t kTrialLimit = 128 << 20;  // gives a trial up after so many bytes: no read is long enough
    static constexpr uint64_t kFirstInterval = 1 << 30, kMinInterval = 256 << 20, kMaxInterval = 16ULL << 30;
    static constexpr double kMinGain =
        0.9;  // staging must take less than this share of the time, because it costs a copy
    static constexpr double kMaxTrialCost = 0.02;  // the largest share of the time that trials may cost

    bool staged_;
    bool is_trial_ = false;  // `staged_` is being tried, not chosen
    uint64_t skipped_ = 0;   // bytes of this way that were not measured
    uint64_t nbytes_ = 0;    // bytes measured since `began_`
    double began_ = 0;
    double seconds_[2] = {0, 0};  // per byte, in place and staged; 0: not known yet
    uint64_t since_trial_ = 0;    // bytes since the last trial
    uint64_t interval_;           // bytes from one trial to the next

    void decide();
    void switch_to(bool staged);
};

// The choice for one device, shared by all reads from it. One lock guards those of all devices.
class SharedStagingChoice {
  public:
    static SharedStagingChoice& of(dev_t device);
    explicit SharedStagingChoice(bool likely) : choice_(likely) {}

    void begin();
    bool staged();
    void record(bool staged, uint64_t nbytes);
    std::optional<StagingChoice::Learned> learned();
    void adopt(const StagingChoice::Learned& learned);

  private:
    StagingChoice choice_;
};

}  // namespace fastio
