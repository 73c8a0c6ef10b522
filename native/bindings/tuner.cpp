#include "tuner/tuner.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/values.hpp"
#include "tuner/reasons.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

template <typename Values>
nb::dict dict_of(const Values& values) {
    nb::dict found;
    for (const auto& [name, value] : values) found[nb::cast(name)] = nb::cast(value);
    return found;
}

nb::tuple order_of(const Choice& choice) { return nb::tuple(nb::cast(choice.order)); }

nb::tuple fields_of(const Choice& choice) {
    return nb::make_tuple(choice.tool, choice.reason, choice.exploring, order_of(choice));
}

// A prior's costs as Python says them: by bucket and tool, a logarithm and its doubt.
using Told = std::vector<std::pair<int, std::map<std::string, std::pair<double, double>>>>;

std::vector<std::pair<int, Prior::Costs>> costs_of(const Told& told) {
    std::vector<std::pair<int, Prior::Costs>> costs;
    for (const auto& [bucket, tools] : told) {
        Prior::Costs& made = costs.emplace_back(bucket, Prior::Costs()).second;
        for (const auto& [tool, cost] : tools) made[tool] = {cost.first, cost.second};
    }
    return costs;
}

}  // namespace

void bind_tuner(nb::module_& module) {
    module.def("describe_nbytes", &describe_nbytes, "nbytes"_a);
    module.def("describe_seconds", &describe_seconds, "seconds"_a);

    nb::class_<Prior>(module, "Prior")
        .def("__init__", [](Prior* place, const Told& told) { new (place) Prior(costs_of(told)); }, "costs"_a);

    nb::class_<Failure>(module, "Failure")
        .def(nb::init<std::string, int, long>(), "reason"_a, "count"_a, "until"_a)
        .def_ro("reason", &Failure::reason)
        .def_ro("count", &Failure::count)
        .def_ro("until", &Failure::until);

    nb::class_<Record>(module, "Record")
        .def_prop_ro(
            "curve", [](Record& record) { return &record.curve; }, nb::rv_policy::reference_internal)
        .def_rw("failure", &Record::failure)
        .def_prop_ro("used", [](const Record& record) { return !record.last.empty(); });

    nb::class_<Opinion>(module, "Opinion")
        .def_ro("tool", &Opinion::tool)
        .def_ro("mean", &Opinion::mean)
        .def_ro("deviation", &Opinion::deviation)
        .def_prop_ro("source", [](const Opinion& opinion) { return name_of(opinion.source); })
        .def_ro("samples", &Opinion::samples)
        .def_ro("nearby", &Opinion::nearby)
        .def("seconds", &Opinion::seconds, "bucket"_a);

    nb::class_<Choice>(module, "Choice")
        .def(
            "__init__",
            [](Choice* place, std::string tool, std::string reason, bool exploring, Tools order) {
                new (place) Choice{std::move(tool), std::move(reason), exploring, std::move(order)};
            },
            "tool"_a, "reason"_a, "exploring"_a, "order"_a)
        .def_ro("tool", &Choice::tool)
        .def_ro("reason", &Choice::reason)
        .def_ro("exploring", &Choice::exploring)
        .def_prop_ro("order", &order_of)
        .def(
            "__eq__", [](const Choice& one, const Choice& other) { return fields_of(one).equal(fields_of(other)); },
            nb::is_operator())
        .def("__hash__", [](const Choice& choice) { return nb::hash(fields_of(choice)); })
        .def("__repr__", [](const Choice& choice) {
            return nb::str("Choice(tool={!r}, reason={!r}, exploring={!r}, order={!r})").format(*fields_of(choice));
        });

    nb::class_<Plan>(module, "Plan").def_ro("ranked", &Plan::ranked).def_ro("choice", &Plan::choice);

    nb::class_<Tuner>(module, "Tuner")
        .def(
            "__init__", [](Tuner* place, std::shared_ptr<Prior> prior) { new (place) Tuner(std::move(prior)); },
            "prior"_a)
        .def_prop_ro("calls", &Tuner::calls)
        .def_prop_ro("records", [](const Tuner& tuner) { return dict_of(tuner.records()); })
        .def(
            "adopt", [](Tuner& tuner, std::shared_ptr<Prior> prior) { tuner.prior = std::move(prior); }, "prior"_a)
        .def("choose", &Tuner::choose, "nbytes"_a, "candidates"_a, nb::kw_only(), "first"_a = false)
        .def("observe", &Tuner::observe, "nbytes"_a, "tool"_a, "seconds"_a, nb::kw_only(), "first"_a = false)
        .def("fail", &Tuner::fail, "tool"_a, "reason"_a)
        .def("renew", &Tuner::renew)
        .def(
            "times",
            [](Tuner& tuner, double nbytes, const Tools& candidates) {
                return dict_of(tuner.times(nbytes, candidates));
            },
            "nbytes"_a, "candidates"_a)
        .def("record", &Tuner::record, "tool"_a)
        .def("make_plan", &Tuner::make_plan, "bucket"_a, "candidates"_a, nb::kw_only(), "first"_a = false);
}

}  // namespace fastio
