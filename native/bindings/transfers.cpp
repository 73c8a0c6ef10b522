#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/values.hpp"
#include "io_engine/io_uring.hpp"
#include "transfer/cached.hpp"
#include "transfer/control.hpp"
#include "transfer/direct.hpp"
#include "transfer/memory_checksums.hpp"
#include "transfer/virtual_disk.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

std::pair<std::vector<uint32_t>, bool> py_direct_write(int fd, uint64_t size, nb::handle extents, nb::handle patches,
                                                       uint64_t block, unsigned depth, uint64_t alignment,
                                                       Control& control) {
    Extents image(extents_from(extents), size);
    std::vector<Patch> sites = patches_from(patches, image.all().size());
    nb::gil_scoped_release release;
    DirectWritten written = direct_write(fd, size, image, sites, {block, depth, alignment, 0}, control);
    return {std::move(written.checksums), written.copied};
}

std::vector<uint32_t> py_direct_read(int fd, uint64_t size, nb::handle extents, nb::handle span, uint64_t block,
                                     unsigned depth, uint64_t alignment, unsigned threads, unsigned readers,
                                     Control& control) {
    Extents image(extents_from(extents), size);
    Span region = span_from(span);
    nb::gil_scoped_release release;
    DirectOptions options{block, depth, alignment, threads, is_on_virtual_disk(fd), readers};
    return direct_read(fd, size, std::move(image), region, options, control);
}

std::vector<uint32_t> py_cached_write(int fd, uint64_t size, nb::handle extents, nb::handle patches, uint64_t block,
                                      unsigned threads, bool write_back, Control& control) {
    Extents image(extents_from(extents), size);
    std::vector<Patch> sites = patches_from(patches, image.all().size());
    nb::gil_scoped_release release;
    return cached_write(fd, size, image, sites, {block, threads, write_back}, control);
}

std::vector<uint32_t> py_cached_read(int fd, uint64_t size, nb::handle extents, nb::handle span, uint64_t block,
                                     unsigned threads, bool cold, Control& control) {
    Extents image(extents_from(extents), size);
    Span region = span_from(span);
    nb::gil_scoped_release release;
    return cached_read(fd, image, region, {block, threads, cold}, control);
}

}  // namespace

void bind_transfers(nb::module_& module) {
    nb::class_<Control>(
        module, "Control",
        "State shared by the caller and a running transfer: bytes done so far, cancellation, and whether the memory "
        "may change.")
        .def(nb::init<>())
        .def_prop_ro("done", [](const Control& control) { return control.done.load(); })
        .def_prop_ro("cancelled", [](const Control& control) { return control.cancelled.load(); })
        .def_prop_rw(
            "still", [](const Control& control) { return control.immutable.load(); },
            [](Control& control, bool still) { control.immutable = still; })
        .def("advance", &Control::advance, "nbytes"_a)
        .def("cancel", [](Control& control) { control.cancelled = true; });
    module.def(
        "memory_checksums",
        [](nb::handle extents, unsigned threads) {
            const std::vector<Extent> memory = extents_from(extents);
            nb::gil_scoped_release release;
            return memory_checksums(memory, threads);
        },
        "extents"_a, "threads"_a);
    module.def("probe_ring", [] { Ring probe(1); });
    module.def("direct_write", &py_direct_write, "fd"_a, "size"_a, "extents"_a, "patches"_a, "block"_a, "depth"_a,
               "alignment"_a, "control"_a);
    module.def("direct_read", &py_direct_read, "fd"_a, "size"_a, "extents"_a, "span"_a.none(), "block"_a, "depth"_a,
               "alignment"_a, "threads"_a, "readers"_a, "control"_a);
    module.def("cached_write", &py_cached_write, "fd"_a, "size"_a, "extents"_a, "patches"_a, "block"_a, "threads"_a,
               "write_back"_a, "control"_a);
    module.def("cached_read", &py_cached_read, "fd"_a, "size"_a, "extents"_a, "span"_a.none(), "block"_a, "threads"_a,
               "cold"_a, "control"_a);
}

}  // namespace fastio
