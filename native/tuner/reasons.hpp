// What is said about a choice, for people. Pure.
#pragma once

#include "tuner/choice.hpp"

namespace fastio {

// "12.3 MiB"
std::string describe_nbytes(double nbytes);
// "12.3 ms"
std::string describe_seconds(double seconds);

// A try of a tool, before all others in their order.
Choice instead(const Choice& choice, const std::string& tool, const std::string& reason);

// Why the `chosen` tool: the first of the `usable` ones is the best, another a try. `first`: for a process's first
// call.
std::string why(int bucket, const Opinion& chosen, const std::vector<const Opinion*>& usable, const Opinion& fastest,
                bool first);

// That a tool is looked at again near a size in place of another.
std::string again(int bucket, const std::string& tool, const std::string& other);

}  // namespace fastio
