// What to try, given what is believed: the price of a look against what it may bring. Pure.
//
// A tool is tried while its time may, within the confidence, be below that of every other (upper confidence bounds:
// Auer, Cesa-Bianchi and Fischer, 2002); later it is looked at now and then, the more seldom the more it costs. All of
// that out of a budget of seconds: a few usual calls, and a share of the time since. So cheap sizes are tried at once,
// and a tool that is far slower is not looked at where one call would cost as much as a hundred others.
#pragma once

#include "tuner/choice.hpp"

namespace fastio {

constexpr double kBudgetCalls = 5;      // usual calls that may be spent on trying tools from the start,
constexpr double kBudgetShare = 0.005;  // and the share of the time from then on
constexpr double kListedCalls = 1;      // of those, for a tool that the starting dictionary calls slower: it is to
                                        // show at cheap sizes first that it is not
constexpr double kMostStake = 20;       // usual calls that one try is charged with at most: more is bad luck;
constexpr double kStallStake = 2;       // and if the machine stalled in it, so many times what the best tool takes

// The opinion to act on: the lowest bound of `best` and the `others` that may be tried. `dearness` is the expected time
// over the usual call's; a dear call is a bad moment for experiments, since sizes nearby teach as much for less.
// `large`: calls of which one counts; `huge`: others must promise what is given away for the processor (`preferred`).
const Opinion& pick(const Opinion& best, const std::vector<const Opinion*>& others, double dearness, bool large,
                    bool huge);

// The first in the order of `tools` that was measured and is equal in time to the fastest, the first of `ranked`: less
// than 8 % slower, and less than the error of the two. The fastest itself where there is none. A `huge` call takes the
// processor from the program for long, so there 12 % are given away whatever is known.
const Opinion& preferred(const std::vector<const Opinion*>& ranked, const Tools& tools, bool huge);

// When to look again at each tool but the best, the first of `ranked`, which takes so many seconds.
std::vector<Look> looks_at(const std::vector<const Opinion*>& ranked, double seconds, bool large);

}  // namespace fastio
