#include <nanobind/nanobind.h>

#include <algorithm>
#include <vector>

#include "bindings/values.hpp"
#include "pickle/pickler.hpp"
#include "pickle/unpickler.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

// Returns a function that returns None for objects of exactly these types, and calls `function` for all others.
nb::object unless_of(nb::tuple types, nb::object function) {
    std::vector<nb::object> excluded;
    for (nb::handle type : types) excluded.push_back(nb::borrow(type));
    auto filtered = [excluded, function](nb::handle value) -> nb::object {
        nb::handle type = value.type();
        auto is = [type](const nb::object& other) { return other.is(type); };
        return std::any_of(excluded.begin(), excluded.end(), is) ? nb::none() : function(value);
    };
    return nb::cpp_function(filtered, nb::arg("value").none());
}

// Returns the object that the pickle holds and the bytes behind it; None if the pickle is unsupported.
nb::object unpickle(nb::bytes data, nb::dict names, nb::dict calls, nb::object load, nb::frozenset classes) {
    nb::object result;
    Unpickler unpickler(names, calls, load, classes);
    if (!unpickler.run({data.c_str(), data.size()}, result)) return nb::none();
    return nb::make_tuple(result, unpickler.left());
}

// Returns the pickle and its storages; None if the object holds an unsupported type.
nb::object pickle(nb::handle object, nb::dict names, nb::dict storages, nb::tuple rebuild, nb::object locate,
                  nb::object cpu, nb::frozenset devices) {
    Pickler pickler(names, storages, rebuild, locate, cpu, devices);
    if (!pickler.run(object)) return nb::none();
    return nb::make_tuple(nb::bytes(pickler.data().data(), pickler.data().size()), pickler.storages(),
                          pickler.trimmed());
}

}  // namespace

void bind_pickle(nb::module_& module) {
    module.def("unpickle", &unpickle, "data"_a, "names"_a, "calls"_a, "load"_a, "classes"_a = nb::frozenset());
    module.def("pickle", &pickle, "object"_a.none(), "names"_a, "storages"_a, "rebuild"_a, "locate"_a, "cpu"_a.none(),
               "devices"_a);
    module.def("unless_of", &unless_of, "types"_a, "function"_a);
}

}  // namespace fastio
