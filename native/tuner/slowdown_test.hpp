// Whether a tool became slower, or the machine: another tool, used in between, tells. Pure.
//
// A busy disk slows all tools down for a while. Who blames the one that was used leaves the best tool for long, since
// its next look costs much by then. So while a tool is suspected every other call is another tool's, one that would be
// the better one were the suspicion right, and the two explanations are weighed by a sequential probability ratio test
// (Wald, 1945).
#pragma once

namespace fastio {

// Of one tool.
struct Trial {
    double by = 0;        // the change of speed suspected, as a logarithm above 0; 0 where there is none
    bool wanted = false;  // another tool is to be used next
    int compared = 0;     // how often that was done,
    int asked = 0;        // and how often wanted
    double odds = 0;      // logarithm of the odds of a slow machine against a slow tool

    // Whether it is the tool.
    bool proved() const;
    // Whether it was suspected long enough without anything to compare it with.
    bool unanswered() const;
    // Whether there were comparisons that did not decide yet.
    bool undecided() const { return compared > 0 && !proved(); }

    // The tool took so much longer again.
    void suspect(double longer);
    // Hears how far off another tool's time was, and the variance of that; true if it was the machine.
    bool compare(double deviation, double variance);
    // Nothing is suspected any more.
    void end() { *this = {}; }
};

}  // namespace fastio
