#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "beliefs.hpp"
#include "buckets.hpp"
#include "python_io.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

nb::list cells_of(nb::object curve) {
    nb::list cells;
    for (auto& [bucket, cell] : nb::cast<Curve&>(curve).cells()) {
        cells.append(nb::make_tuple(bucket, nb::cast(&cell, nb::rv_policy::reference_internal, curve)));
    }
    return cells;
}

// Of each tool (curve or None, mean and variance of the prior): mean, deviation, heard, samples, nearby.
nb::list believe(nb::list tools, int bucket) {
    std::vector<Known> known;
    known.reserve(tools.size());
    for (nb::handle tool : tools) {
        nb::handle curve = tool[0];
        known.push_back({curve.is_none() ? nullptr : nb::cast<const Curve*>(curve),
                         {nb::cast<double>(tool[1]), nb::cast<double>(tool[2])}});
    }
    nb::list result;
    for (const auto& [belief, heard, samples, nearby] : estimates(known, bucket)) {
        result.append(nb::make_tuple(belief.mean, std::sqrt(belief.variance), heard, samples, nearby));
    }
    return result;
}

}  // namespace

void bind_dicts(nb::module_& module) {
    module.attr("BUCKETS_PER_OCTAVE") = kBucketsPerOctave;
    module.attr("FIRST_OCTAVE") = kFirstOctave;
    module.attr("BUCKETS") = kBuckets;
    module.attr("MEDIAN_VARIANCE") = kMedianVariance;
    module.def("bucket_nbytes", &bucket_nbytes, "bucket"_a);
    module.def("shape", &shape, "nbytes"_a);
    module.def("lower_median", &lower_median, "values"_a);
    module.def("believe", &believe, "tools"_a, "bucket"_a);

    nb::class_<Samples>(module, "Samples")
        .def(nb::init<const std::vector<double>&, const std::vector<double>&>(), "values"_a = std::vector<double>(),
             "firsts"_a = std::vector<double>())
        .def("__len__", [](const Samples& samples) { return samples.values.size(); })
        .def_ro("values", &Samples::values)
        .def_ro("firsts", &Samples::firsts)
        .def_ro("doubt", &Samples::doubt)
        .def_ro("fresh", &Samples::fresh)
        .def_ro("fresh_firsts", &Samples::fresh_firsts)
        .def_ro("rewritten", &Samples::rewritten)
        .def_prop_ro("median", &Samples::median)
        .def("add_first", &Samples::add_first, "value"_a)
        .def("extend", &Samples::extend, "values"_a, "firsts"_a)
        .def("clear", &Samples::clear)
        .def("drop_last", &Samples::drop_last)
        .def("keep_last", &Samples::keep_last, "count"_a)
        .def("shift", &Samples::shift, "by"_a, "doubt"_a)
        .def("written", &Samples::written)
        .def("variance", &Samples::variance, "noise"_a);

    nb::class_<Curve>(module, "Curve")
        .def(nb::init<>())
        .def("cell", &Curve::cell, "bucket"_a, nb::rv_policy::reference_internal)
        .def("find", nb::overload_cast<int>(&Curve::find), "bucket"_a, nb::rv_policy::reference_internal)
        .def("cells", &cells_of)
        .def("add", &Curve::add, "bucket"_a, "value"_a)
        .def("put", &Curve::put, "bucket"_a, "samples"_a)
        .def("hear", &Curve::hear, "deviation"_a)
        .def_prop_ro("noise", &Curve::noise)
        .def_prop_ro("measured", &Curve::measured);
}

}  // namespace fastio
