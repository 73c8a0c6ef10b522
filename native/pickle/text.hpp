#pragma once

#include <cstddef>
#include <string_view>
#include <unordered_set>

namespace fastio {

// Text constants of a pickle, such as the names of the records that its storages lie in.
struct PickleText {
    std::unordered_set<std::string_view> found;  // they point into the pickle
    bool complete = false;                       // the pickle was understood to its end
};

// Walks the opcodes up to STOP, and runs nothing. Text that the pickle computes is not found, nor text of more than
// `longest` bytes.
PickleText pickle_text(const void* data, size_t nbytes, size_t longest);

}  // namespace fastio
