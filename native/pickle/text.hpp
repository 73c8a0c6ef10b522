// Finds the text constants of a pickle without running it.
#pragma once

#include <cstddef>
#include <string_view>
#include <unordered_set>

namespace fastio {

// The text constants of a pickle, which include the keys of its storages.
struct PickleText {
    std::unordered_set<std::string_view> found;  // views into the pickle
    bool complete = false;                       // the pickle was parsed to its STOP
};

// Parses the opcodes up to STOP. It does not find text that the pickle computes, nor text longer than `longest` bytes.
PickleText pickle_text(const void* data, size_t nbytes, size_t longest);

}  // namespace fastio
