#include "memory/memory.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/values.hpp"
#include "checksum/block_crcs.hpp"
#include "checksum/copy_batch.hpp"
#include "checksum/crc32.hpp"
#include "checksum/digests.hpp"
#include "memory/fault_probe.hpp"
#include "memory/populate.hpp"
#include "memory/streaming_copy.hpp"
#include "support/errors.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

// Exports a slice as a writable buffer: torch.frombuffer() makes a tensor of it and keeps it alive.
int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    auto* slice = nb::inst_ptr<Slice>(nb::handle(self));
    return PyBuffer_FillInfo(view, self, slice->data(), static_cast<Py_ssize_t>(slice->nbytes()), 0, flags);
}

PyType_Slot slice_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

// From this size on, checksums are computed without the GIL.
constexpr size_t kLarge = 64 << 10;

uint32_t checksum(uint32_t value, const void* data, size_t nbytes) {
    if (nbytes < kLarge) return crc32(value, data, nbytes);
    nb::gil_scoped_release release;
    return crc32(value, data, nbytes);
}

uint32_t checksum_of(nb::handle data, uint32_t value) {
    Py_buffer view;
    if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
    uint32_t result = checksum(value, view.buf, static_cast<size_t>(view.len));
    PyBuffer_Release(&view);
    return result;
}

template <typename Work>
auto without_gil(Work work) {
    nb::gil_scoped_release release;
    return work();
}

nb::bytes as_bytes(const std::vector<uint32_t>& values) {
    return nb::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(uint32_t));
}

}  // namespace

void bind_memory(nb::module_& module) {
    nb::class_<Mapping>(module, "Mapping",
                        "Anonymous memory, in huge pages if the kernel has them: zeros, or old bytes of this process.")
        .def(
            "__init__",
            [](Mapping* self, uint64_t nbytes, bool used, bool reserved) {
                new (self) Mapping(nbytes, used ? Pages::kRecycled : reserved ? Pages::kReserved : Pages::kFresh);
            },
            "nbytes"_a, "used"_a = false, "reserved"_a = false)
        .def_prop_ro("address", [](const Mapping& mapping) { return reinterpret_cast<uintptr_t>(mapping.data()); })
        .def_prop_ro("nbytes", &Mapping::nbytes)
        .def("keep_from_children", &Mapping::keep_from_children)
        .def("populate", [](Mapping& mapping) {
            nb::gil_scoped_release release;
            populate_in_threads(mapping.data(), mapping.nbytes());
        });
    nb::class_<Slice>(module, "Slice", nb::type_slots(slice_slots),
                      "A part of a mapping, as a writable buffer. When destroyed, it returns its pages to the system.")
        .def(nb::init<std::shared_ptr<Mapping>, uint64_t, uint64_t>(), "mapping"_a, "offset"_a, "nbytes"_a)
        .def_prop_ro("address", [](const Slice& slice) { return reinterpret_cast<uintptr_t>(slice.data()); })
        .def_prop_ro("nbytes", &Slice::nbytes);
    nb::class_<Digests>(module, "Digests",
                        "Digests of copied memory, block by block, which find what changed in its source.")
        .def(nb::init<size_t>(), "blocks"_a)
        .def_prop_ro_static("BLOCK", [](nb::handle) { return Digests::kBlock; })
        .def(
            "copy",
            [](Digests& digests, size_t first, uintptr_t target, uintptr_t source, uint64_t nbytes) {
                nb::gil_scoped_release release;
                return digests.copy(first, reinterpret_cast<uint8_t*>(target), reinterpret_cast<const uint8_t*>(source),
                                    nbytes);
            },
            "first"_a, "target"_a, "source"_a, "nbytes"_a)
        .def(
            "update",
            [](Digests& digests, size_t first, uintptr_t target, uintptr_t source, uint64_t nbytes) {
                nb::gil_scoped_release release;
                return digests.update(first, reinterpret_cast<uint8_t*>(target),
                                      reinterpret_cast<const uint8_t*>(source), nbytes);
            },
            "first"_a, "target"_a, "source"_a, "nbytes"_a)
        .def(
            "differs",  // too short to release the GIL
            [](const Digests& digests, size_t first, uintptr_t source, uint64_t nbytes) {
                return digests.differs(first, reinterpret_cast<const uint8_t*>(source), nbytes);
            },
            "first"_a, "source"_a, "nbytes"_a);
    nb::class_<CopyBatch>(module, "CopyBatch",
                          "Copies of memory that threads share, made again and again, with CRC-32s of the copies.")
        .def(
            "__init__",
            [](CopyBatch* self, const std::vector<std::tuple<uintptr_t, uintptr_t, uint64_t, uint64_t>>& rows) {
                std::vector<CopyBatch::Copy> copies;
                copies.reserve(rows.size());
                for (const auto& [target, source, nbytes, block] : rows) {
                    copies.push_back(
                        {reinterpret_cast<uint8_t*>(target), reinterpret_cast<const uint8_t*>(source), nbytes, block});
                }
                new (self) CopyBatch(std::move(copies));
            },
            "copies"_a)
        .def("begin", &CopyBatch::begin)
        .def("run", &CopyBatch::run, "control"_a, "most"_a, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("nbytes", &CopyBatch::nbytes)
        .def("crcs", &CopyBatch::crcs)
        .def(
            "block_crcs", [](const CopyBatch& batch, size_t copy) { return as_bytes(batch.block_crcs(copy)); },
            "copy"_a);
    module.def("fault_signal", &fault_signal, "fd"_a, "nbytes"_a, nb::call_guard<nb::gil_scoped_release>());
    module.def(
        "streaming_copy",
        [](uintptr_t target, uintptr_t source, uint64_t nbytes) {
            streaming_copy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), nbytes);
        },
        "target"_a, "source"_a, "nbytes"_a, nb::call_guard<nb::gil_scoped_release>());
    module.def("crc32", &checksum_of, "data"_a, "value"_a = 0);
    module.def(
        "crc32_at",
        [](uintptr_t address, uint64_t nbytes, uint32_t value) {
            return checksum(value, reinterpret_cast<const void*>(address), nbytes);
        },
        "address"_a, "nbytes"_a, "value"_a = 0);
    module.def(
        "crc32_blocks",
        [](uintptr_t address, uint64_t nbytes, uint64_t block) {
            return as_bytes(
                without_gil([=] { return crc32_blocks(reinterpret_cast<const uint8_t*>(address), nbytes, block); }));
        },
        "address"_a, "nbytes"_a, "block"_a);
    module.def(
        "crc32_of_blocks",
        [](const nb::bytes& crcs, uint64_t nbytes, uint64_t block) {
            if (crcs.size() % sizeof(uint32_t) != 0) throw Refused("expected four bytes for each CRC-32");
            std::vector<uint32_t> values(crcs.size() / sizeof(uint32_t));
            if (!values.empty()) std::memcpy(values.data(), crcs.data(), crcs.size());
            return crc32_of_blocks(values.data(), values.size(), nbytes, block);
        },
        "crcs"_a, "nbytes"_a, "block"_a);
    module.def("crc32_combine", &crc32_combine, "first"_a, "second"_a, "second_nbytes"_a);
    module.def("crc32_kernel", &crc32_kernel);
}

}  // namespace fastio
