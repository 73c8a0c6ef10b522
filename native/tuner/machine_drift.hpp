// Whether it was the tool or the machine: another tool, used in the place of one, tells. Pure.
//
// A busy disk slows all tools down for a while, and then they are all faster again. Who blames, or praises, the one
// tool that was used leaves the best for long, since nobody looks at it again soon. So a tool that was slow several
// times is compared with another every other call, and one that seems faster with the one that it would replace.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "tuner/choice.hpp"
#include "tuner/record.hpp"

namespace fastio {

// By tool, in the order in which they were first heard of.
using Records = std::vector<std::pair<std::string, std::shared_ptr<Record>>>;

// The record of a tool; null where nothing is known of it.
std::shared_ptr<Record> find(const Records& records, const std::string& tool);

// Tells changes of the machine from those of single tools, whose records it moves, all together.
class Moods {
  public:
    explicit Moods(const Records& records) : records_(records) {}

    // The tool to use in place of the plan's choice, and why; nothing for the choice itself.
    std::optional<std::pair<std::string, std::string>> ask(const Plan& plan,
                                                           const std::function<bool(const std::string&)>& may_be_tried);
    // A tool is used in the place of another one.
    void tried(const std::string& tool, const std::string& place);
    // A tool failed: nothing follows from it.
    void forget(const std::string& tool);
    // How far off its expected time a tool was; true where the machine was slow, so that it says nothing of it.
    bool hear(int bucket, const std::string& tool, double deviation, double variance);
    // A tool changed its speed. If all became slower and it is as fast again as before, the others are, too.
    void changed(const std::string& tool, double by);

  private:
    // A tool that seemed faster: where, by how much (a logarithm, below 0), and in whose place it was used.
    struct Faster {
        std::string tool;
        int bucket;
        double by;
        std::string place;
    };

    void answer(const Faster& faster, double deviation);
    void move(double by, const std::string& but);

    const Records& records_;
    std::map<std::string, std::string> places_;
    std::optional<Faster> faster_;
    double slower_ = 0;
};

}  // namespace fastio
