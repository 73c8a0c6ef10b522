#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bindings/values.hpp"
#include "codec/csr.hpp"
#include "codec/exponents.hpp"
#include "support/errors.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

// Returns the kernel of that name; the fastest for an empty name. Throws Refused for an unknown name.
const CsrKernel& kernel_named(const std::string& name) {
    for (const CsrKernel& kernel : csr_kernels()) {
        if (name.empty() || name == kernel.name) return kernel;
    }
    throw Refused("this processor has no CSR-128 kernel \"" + name + "\"");
}

nb::list kernel_names() {
    nb::list names;
    for (const CsrKernel& kernel : csr_kernels()) names.append(kernel.name);
    return names;
}

}  // namespace

void bind_codec(nb::module_& module) {
    module.def("csr_kernels", &kernel_names);
    module.def("csr_nbytes", &csr_nbytes, "elements"_a, "itemsize"_a, "nonzeros"_a);
    module.def(
        "csr_count",
        [](uintptr_t source, uint64_t elements, uint64_t itemsize, const std::string& kernel) {
            nb::gil_scoped_release release;
            return csr_count(kernel_named(kernel), reinterpret_cast<const void*>(source), elements, itemsize);
        },
        "source"_a, "elements"_a, "itemsize"_a, "kernel"_a = "");
    module.def(
        "csr_encode",
        [](uintptr_t source, uint64_t elements, uint64_t itemsize, uintptr_t payload, uint64_t nbytes,
           const std::string& kernel) {
            nb::gil_scoped_release release;
            csr_encode(kernel_named(kernel), reinterpret_cast<const void*>(source), elements, itemsize,
                       reinterpret_cast<void*>(payload), nbytes);
        },
        "source"_a, "elements"_a, "itemsize"_a, "payload"_a, "nbytes"_a, "kernel"_a = "");
    module.def(
        "csr_decode",
        [](uintptr_t payload, uint64_t nbytes, uintptr_t destination, uint64_t elements, uint64_t itemsize,
           const std::string& kernel) {
            nb::gil_scoped_release release;
            csr_decode(kernel_named(kernel), reinterpret_cast<const void*>(payload), nbytes,
                       reinterpret_cast<void*>(destination), elements, itemsize);
        },
        "payload"_a, "nbytes"_a, "destination"_a, "elements"_a, "itemsize"_a, "kernel"_a = "");
    module.def(
        "exponents_nbytes",
        [](uintptr_t source, uint64_t elements) {
            nb::gil_scoped_release release;
            return exponents_nbytes(reinterpret_cast<const void*>(source), elements);
        },
        "source"_a, "elements"_a);
    module.def(
        "exponents_encode",
        [](uintptr_t source, uint64_t elements, uintptr_t payload, uint64_t nbytes) {
            nb::gil_scoped_release release;
            exponents_encode(reinterpret_cast<const void*>(source), elements, reinterpret_cast<void*>(payload), nbytes);
        },
        "source"_a, "elements"_a, "payload"_a, "nbytes"_a);
    module.def(
        "exponents_decode",
        [](uintptr_t payload, uint64_t nbytes, uintptr_t destination, uint64_t elements) {
            nb::gil_scoped_release release;
            exponents_decode(reinterpret_cast<const void*>(payload), nbytes, reinterpret_cast<void*>(destination),
                             elements);
        },
        "payload"_a, "nbytes"_a, "destination"_a, "elements"_a);
}

}  // namespace fastio
