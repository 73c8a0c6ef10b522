// Which tool to use, learned while it is used: the tuner of one context. Pure: no clock, no file, no chance.
//
// After the Fastensor paper, section 4 (algorithms 1 and 2, figure 4), with the bests found by samples instead of one
// cold time per tool, and every size answered from the sizes around it. Native, since at mixed sizes nearly every call
// plans anew, among caches that the transfers have emptied. Sizes are bytes, times seconds. Not thread-safe.
#pragma once

#include "tuner/machine_drift.hpp"
#include "tuner/prior.hpp"

namespace fastio {

constexpr size_t kSettledSamples = 4;  // in a bucket: what they say is enough

class Tuner {
  public:
    explicit Tuner(std::shared_ptr<const Prior> given) : prior(std::move(given)) {}
    Tuner(const Tuner&) = delete;

    // The tool to use for a transfer of that size, out of at least one candidate. The candidates are in the order in
    // which they work the processor, least first: of tools that are equal in time, by all that is known, the first of
    // them moves what is large (from 16 MiB). `first`: it is the process's first transfer, by whichever tool.
    Choice choose(double nbytes, const Tools& candidates, bool first = false);
    // Learns that a transfer took so long. `first` marks the tool's first call in its process: warm-up.
    void observe(double nbytes, const std::string& tool, double seconds, bool first);
    // Avoids a tool that refused or failed; it is tried again much later.
    void fail(const std::string& tool, const std::string& reason);
    // Doubts everything measured so far, so that it is measured again.
    void renew();
    // Seconds expected of each candidate that was measured at or near the size and does not fail, the fastest first.
    std::vector<std::pair<std::string, double>> times(double nbytes, const Tools& candidates);
    // What is known of a tool, made empty where nothing is.
    std::shared_ptr<Record> record(const std::string& tool);
    // What is to be done at a bucket: the beliefs, the choice they lead to, what is to be looked at again.
    Plan make_plan(int bucket, const Tools& candidates, bool first = false);

    long calls() const noexcept { return calls_; }
    const Records& records() const noexcept { return records_; }

    std::shared_ptr<const Prior> prior;

  private:
    Plan& plan(int bucket, const Tools& candidates);
    Opinions opinions(int bucket, const Tools& candidates, bool first) const;
    std::optional<Belief> expected(int bucket, const std::string& tool) const;
    void outdate(int bucket, const std::string& tool);
    bool affords(const Look& look) const;
    bool pays(const Plan& plan, const Look& look) const;
    bool may_have_recovered(const Look& look, const Record& record) const;
    void hand_out(const Plan& plan, const std::string& tool, bool recovering = false);
    bool may_be_tried(const Record& record) const;

    Records records_;
    Moods moods_{records_};
    std::map<int, std::vector<std::pair<Tools, Plan>>> plans_;
    std::map<int, long> band_calls_;
    long calls_ = 0;
    double usual_ = 0;  // seconds of the usual call
    long observed_ = 0;
    double spent_ = 0, paid_ = 0;  // seconds: by all calls; by tries, beyond what the best tool would have taken
};

}  // namespace fastio
