#pragma once

#include <cstddef>
#include <set>
#include <string_view>
#include <utility>

namespace fastio {

// What a pickle may call: the classes and functions that it names.
struct PickleNames {
    std::set<std::pair<std::string_view, std::string_view>> found;  // module and name; they point into the pickle
    bool all = false;  // whether these are all: the pickle was understood to its end, and hides none behind numbers
};

// Walks the opcodes up to STOP, and runs nothing. Names that are put together on the stack are not found.
PickleNames pickle_names(const void* data, size_t nbytes);

}  // namespace fastio
