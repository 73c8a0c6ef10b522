// Pickles of what state dicts are made of, without Python between one opcode and the next.
//
// It takes what torch's weights_only unpickler takes, or less: of protocol 2, names from a table of the caller's, calls
// of functions that the caller names, items set in exact dicts and lists, attributes of exact OrderedDicts. Anything
// else it leaves to torch.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace fastio {

class Unpickler {
  public:
    // `names` has what a global (b"module\nname") stands for, `calls` what may be called, and what is called for it.
    // `load` makes a storage of a persistent id.
    Unpickler(nanobind::dict names, nanobind::dict calls, nanobind::object load);

    // Puts together what a pickle holds; false if it is not of this kind. What Python raises meanwhile is thrown.
    bool run(std::string_view pickle, nanobind::object& result);

  private:
    bool step(uint8_t opcode);
    bool take(size_t nbytes, std::string_view& data);
    bool number(size_t nbytes, uint64_t& value);
    bool has(size_t values) const { return stack_.size() - base() >= values; }
    size_t base() const { return marks_.empty() ? 0 : marks_.back(); }
    bool push(nanobind::object value);
    bool push_new(PyObject* value);
    nanobind::object pop();
    bool pop_tuple(size_t values);
    bool global();
    bool text();
    bool long_number();
    bool reduce();
    bool build();
    bool append(size_t from);
    bool set_items(size_t from);
    bool put(uint64_t index);
    bool get(uint64_t index);

    nanobind::dict names_;
    std::vector<std::pair<nanobind::object, nanobind::object>> calls_;
    nanobind::object load_, ordered_dict_;
    std::string_view rest_;
    std::vector<nanobind::object> stack_, memo_;
    std::vector<size_t> marks_;
};

}  // namespace fastio
