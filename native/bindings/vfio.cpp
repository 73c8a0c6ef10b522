#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings/values.hpp"
#include "vfio/container.hpp"
#include "vfio/peer.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

void bind_vfio(nb::module_& module) {
    using Release = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<VfioPeer>(module, "VfioPeer", "A BAR of a PCI device, as memory; see fastio/nvme/bar_memory.py.")
        .def(nb::init<std::string, unsigned>(), "pci"_a, "bar"_a, Release())
        .def_prop_ro("address", [](const VfioPeer& peer) { return reinterpret_cast<uintptr_t>(peer.address()); })
        .def_prop_ro("nbytes", &VfioPeer::nbytes)
        .def("close", &VfioPeer::close, Release());
    module.def("dma_buf_refusal", &dma_buf_refusal, "Why the vfio driver cannot map a dma-buf on this kernel.");
}

}  // namespace fastio
