#include "tuner/reasons.hpp"

#include <cstdio>

#include "tuner/buckets.hpp"

namespace fastio {

namespace {

std::string number(const char* format, double value) {
    char text[64];
    std::snprintf(text, sizeof text, format, value);
    return text;
}

std::string size_of(int bucket) { return describe_nbytes(static_cast<double>(bucket_nbytes(bucket))); }

}  // namespace

std::string describe_nbytes(double nbytes) {
    static const char* const units[] = {"B", "KiB", "MiB", "GiB"};
    int unit = 0;
    for (; nbytes >= 1024 && unit < 3; ++unit) nbytes /= 1024;
    return number(nbytes < 1000 ? "%.3g " : "%.0f ", nbytes) + units[unit];
}

std::string describe_seconds(double seconds) {
    if (seconds < 1e-3) return number("%.3g us", seconds * 1e6);
    return seconds < 1 ? number("%.3g ms", seconds * 1e3) : number("%.3g s", seconds);
}

Choice instead(const Choice& choice, const std::string& tool, const std::string& reason) {
    Tools order{tool};
    for (const std::string& other : choice.order) {
        if (other != tool) order.push_back(other);
    }
    return {tool, reason, true, std::move(order)};
}

std::string why(int bucket, const Opinion& chosen, const std::vector<const Opinion*>& usable, const Opinion& fastest,
                bool first) {
    if (usable.size() == 1) return chosen.tool + " is the only tool that can be used";
    const Opinion& best = *usable.front();
    std::string size = size_of(bucket);
    if (&chosen != &best) {
        if (!chosen.known()) return "trying " + chosen.tool + ", which was not measured near " + size + " yet";
        return "trying " + chosen.tool + " again near " + size + ": it may still be faster than " + best.tool;
    }
    auto took = [bucket](const Opinion& one) { return describe_seconds(one.seconds(bucket)); };
    if (best.known()) {
        std::string where = (best.source == Source::kMeasured ? "at " : "by the sizes around ") + size;
        if (first) where = "as a process's first call " + where;
        if (&best != &fastest) {
            return best.tool + " and " + fastest.tool + " are equal in time " + where + " (" + took(best) + " and " +
                   took(fastest) + "); " + best.tool + " takes less CPU";
        }
        const Opinion& other = *usable[1];
        return best.tool + " is the fastest " + where + ": " + took(best) + ", then " + other.tool + " " + took(other);
    }
    if (best.source == Source::kPrior) {
        return "nothing is measured near " + size + " yet: the starting dictionary puts " + best.tool + " first";
    }
    if (best.source == Source::kUnknown) {
        return "nothing is known near " + size + " yet: " + best.tool + " is the first that can be used";
    }
    return best.tool + " was the fastest near " + size + " as far as first calls tell";
}

std::string again(int bucket, const std::string& tool, const std::string& other) {
    return "looking again at " + tool + " near " + size_of(bucket) + ", after " + other;
}

}  // namespace fastio
