#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bindings/values.hpp"
#include "tuner/buckets.hpp"
#include "tuner/curve.hpp"

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

}  // namespace

void bind_dicts(nb::module_& module) {
    module.attr("BUCKETS") = kBuckets;
    module.def("bucket_of", &bucket_of, "nbytes"_a);
    module.def("bucket_nbytes", &bucket_nbytes, "bucket"_a);
    module.def("shape", &shape, "nbytes"_a);

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
        .def("extend", &Samples::extend, "values"_a, "firsts"_a)
        .def("clear", &Samples::clear)
        .def("written", &Samples::written);

    nb::class_<Curve>(module, "Curve")
        .def("cell", &Curve::cell, "bucket"_a, nb::rv_policy::reference_internal)
        .def("cells", &cells_of)
        .def("put", &Curve::put, "bucket"_a, "samples"_a);
}

}  // namespace fastio
