// Unpickles state dicts in C++.
//
// It takes a subset of what torch's weights_only unpickler takes: protocol 2, globals from the caller's table, calls of
// functions that the caller allows, items set in exact dicts and lists, attributes of exact OrderedDicts. If the caller
// names classes, also protocols 3 to 5, and instances of exactly these classes with a state. It leaves anything else to
// the caller.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace fastio {

class Unpickler {
  public:
    // `names`: the object for each global (b"module\nname"). `calls`: each function that may be called, and what is
    // called in its place. `load` returns the storage for a persistent id. `classes`: those of which the pickle may
    // make instances, without calling __init__, and give these a state.
    Unpickler(nanobind::dict names, nanobind::dict calls, nanobind::object load, nanobind::frozenset classes);

    // Builds the object that a pickle holds. Returns false if the pickle is unsupported. Throws Python's exceptions.
    bool run(std::string_view pickle, nanobind::object& result);

    // The bytes behind the pickle, after run().
    size_t left() const { return rest_.size(); }

  private:
    bool step(uint8_t opcode);
    bool step_of_later_protocol(uint8_t opcode);
    bool take(size_t nbytes, std::string_view& data);
    bool number(size_t nbytes, uint64_t& value);
    bool has(size_t values) const { return stack_.size() - base() >= values; }
    size_t base() const { return marks_.empty() ? 0 : marks_.back(); }
    bool push(nanobind::object value);
    bool push_new(PyObject* value);
    nanobind::object pop();
    bool pop_tuple(size_t values);
    bool global();
    bool global_on_stack();
    bool push_global(nanobind::bytes name);
    bool text(size_t width);
    bool bytes(size_t width);
    bool long_number();
    bool reduce();
    bool make();
    bool build();
    bool is_class(nanobind::handle found) const;
    bool append(size_t from);
    bool set_items(size_t from);
    bool put(uint64_t index);
    bool get(uint64_t index);

    nanobind::dict names_;
    std::vector<std::pair<nanobind::object, nanobind::object>> calls_;
    nanobind::object load_, ordered_dict_;
    nanobind::frozenset classes_;
    uint64_t protocol_ = 2;
    std::string_view rest_;
    std::vector<nanobind::object> stack_, memo_;
    std::vector<size_t> marks_;
};

}  // namespace fastio
