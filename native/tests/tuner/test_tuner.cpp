// The tuner: it finds the fastest tool, avoids what fails, notices what changes, and no input harms it.
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>

#include "tests/support/check.hpp"
#include "tuner/buckets.hpp"
#include "tuner/reasons.hpp"
#include "tuner/tuner.hpp"

namespace {

using fastio::Choice;
using fastio::Prior;
using fastio::Tools;
using fastio::Tuner;

const Tools kTools{"slow", "fast", "other"};

std::shared_ptr<Prior> nothing() { return std::make_shared<Prior>(std::vector<std::pair<int, Prior::Costs>>{{0, {}}}); }

double seconds(const std::string& tool, double nbytes) {
    return (1e-4 + nbytes * 1e-9) * (tool == "fast" ? 1 : tool == "slow" ? 2 : 1.5);
}

// So many calls at mixed sizes; how many of them went to the tool.
int run(Tuner& tuner, int calls, const std::string& tool, double factor = 1) {
    std::mt19937_64 chance(calls);
    std::lognormal_distribution<double> noise(0, 0.05);
    int found = 0;
    for (int call = 0; call < calls; ++call) {
        double nbytes = std::pow(2, 12 + 14 * std::generate_canonical<double, 53>(chance));
        Choice choice = tuner.choose(nbytes, kTools);
        CHECK(choice.order.size() == 3 && choice.order[0] == choice.tool && !choice.reason.empty(), "whole");
        double took = seconds(choice.tool, nbytes) * noise(chance) * (choice.tool == "fast" ? factor : 1);
        tuner.observe(nbytes, choice.tool, took, call < 3);
        found += choice.tool == tool ? 1 : 0;
    }
    return found;
}

void check_learning() {
    Tuner tuner(nothing());
    run(tuner, 100, "fast");
    int found = run(tuner, 400, "fast");
    CHECK(found > 360, "the fastest tool in %d of 400 calls", found);
    auto times = tuner.times(1 << 20, kTools);
    CHECK(!times.empty() && times.front().first == "fast", "known to be the fastest");
    run(tuner, 200, "other", 3);
    found = run(tuner, 300, "other", 3);
    // The others are looks at small sizes, 1 % of the time: it may be as fast as before again.
    CHECK(found > 160, "after it became three times slower, the next in %d of 300 calls", found);
    found = run(tuner, 300, "fast");
    CHECK(found > 160, "after it was as fast as before again, it in %d of 300 calls", found);
    tuner.renew();
    CHECK(tuner.calls() == 1300, "%ld calls", tuner.calls());
}

void check_failures() {
    Tuner tuner(nothing());
    run(tuner, 100, "fast");
    tuner.fail("fast", "refused");
    CHECK(run(tuner, 100, "fast") == 0, "what failed is avoided");
    for (const std::string& tool : kTools) tuner.fail(tool, "refused");
    CHECK(tuner.choose(4096, kTools).order.size() == 3, "of what failed, something");
    tuner.observe(4096, "fast", 1e-5, false);
    CHECK(!tuner.record("fast")->failure && tuner.record("slow")->failure, "forgiven once it did it");
    bool refused = false;
    try {
        tuner.choose(1, {});
    } catch (const std::invalid_argument&) {
        refused = true;
    }
    CHECK(refused, "no tool to choose from");
}

// Any order of calls, sizes, sets of tools and times; more tools and plans than are kept.
void check_anything() {
    std::mt19937_64 chance(5);
    auto any = [&chance](size_t count) { return chance() % count; };
    Prior::Costs costs;
    for (int tool = 0; tool < 40; ++tool) costs["t" + std::to_string(tool)] = {0.1 * tool, 0.3};
    std::vector<std::pair<int, Prior::Costs>> priors{{40, costs}, {90, costs}};
    const double extremes[] = {0, 1, 1e-300, 1e300, -1, std::nan(""), std::numeric_limits<double>::infinity()};
    Tuner tuner(std::make_shared<Prior>(priors));
    for (int call = 0; call < 20'000; ++call) {
        Tools tools;
        for (size_t count = 1 + any(5); count > 0; --count) tools.push_back("t" + std::to_string(any(80)));
        double nbytes = any(50) ? std::pow(2, static_cast<double>(any(56))) : extremes[any(7)];
        Choice choice = tuner.choose(nbytes, tools);
        if (any(100) == 0) tuner.fail(choice.tool, "x");
        if (any(500) == 0) tuner.renew();
        double took = any(50) ? std::exp(-10.0 + 0.1 * static_cast<double>(any(100))) : extremes[any(7)];
        if (any(10)) tuner.observe(nbytes, any(20) ? choice.tool : "t7", took, any(9) == 0);
        CHECK(tuner.records().size() <= 64, "%zu tools", tuner.records().size());
        tuner.times(nbytes, tools);
    }
}

void check_words() {
    CHECK(fastio::describe_nbytes(0) == "0 B" && fastio::describe_nbytes(1023) == "1023 B", "bytes");
    CHECK(fastio::describe_nbytes(3145728) == "3 MiB" && fastio::describe_nbytes(1e15) == "931323 GiB", "more of them");
    CHECK(fastio::describe_seconds(1.2345e-5) == "12.3 us" && fastio::describe_seconds(2) == "2 s", "seconds");
    CHECK(fastio::bucket_of(255) == 0 && fastio::bucket_of(1e300) == fastio::kBuckets - 1, "the first and the last");
    for (int bucket = 0; bucket < fastio::kBuckets; ++bucket) {
        CHECK(fastio::bucket_of(static_cast<double>(fastio::bucket_nbytes(bucket))) == bucket, "bucket %d", bucket);
    }
}

}  // namespace

int main() {
    check_learning();
    check_failures();
    check_anything();
    check_words();
    return 0;
}
