#include "bindings/values.hpp"

#include "support/errors.hpp"

namespace nb = nanobind;

namespace fastio {

namespace {

// Fields of fastio.transports.extent_rows.Rows that an Extent lacks.
constexpr Py_ssize_t kRepeats = 7, kStride = 8;

uint64_t number(PyObject* tuple, Py_ssize_t index) {
    unsigned long long value = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(tuple, index));
    if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) throw nb::python_error();
    return value;
}

// Calls `take(tuple)` for each item; they must be tuples of at least `fields` items.
template <typename Take>
void for_each_tuple(nb::handle sequence, Py_ssize_t fields, const Take& take) {
    nb::object fast = nb::steal(PySequence_Fast(sequence.ptr(), "expected a sequence of tuples"));
    if (!fast.is_valid()) throw nb::python_error();
    Py_ssize_t count = PySequence_Fast_GET_SIZE(fast.ptr());
    for (Py_ssize_t index = 0; index < count; ++index) {
        PyObject* item = PySequence_Fast_GET_ITEM(fast.ptr(), index);
        if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) < fields) {
            throw nb::type_error("expected a sequence of tuples as in fastio.transports.transport");
        }
        take(item);
    }
}

}  // namespace

std::vector<Extent> extents_from(nb::handle sequence) {
    std::vector<Extent> extents;
    extents.reserve(nb::len(sequence));
    nb::object entries = nb::getattr(sequence, "entries", nb::borrow(sequence));
    for_each_tuple(entries, 4, [&](PyObject* item) {
        int checksum = PyObject_IsTrue(PyTuple_GET_ITEM(item, 3));
        if (checksum < 0) throw nb::python_error();
        Extent extent{number(item, 0), number(item, 1), reinterpret_cast<uint8_t*>(number(item, 2)), checksum == 1};
        const bool is_rows = PyTuple_GET_SIZE(item) > kStride;
        const uint64_t repeats = is_rows ? number(item, kRepeats) : 1;
        const uint64_t stride = is_rows ? number(item, kStride) : 0;
        for (uint64_t row = 0; row < repeats; ++row) {
            extents.push_back(extent);
            extent.offset += stride;
            extent.address += extent.nbytes;
        }
    });
    return extents;
}

std::vector<Patch> patches_from(nb::handle sequence, size_t extents) {
    std::vector<Patch> patches;
    for_each_tuple(sequence, 2, [&](PyObject* item) {
        Patch patch{number(item, 0), static_cast<size_t>(number(item, 1))};
        if (patch.index >= extents) throw nb::index_error("a patch's extent index is out of range");
        if (!patches.empty() && patch.offset < patches.back().offset) throw nb::value_error("patches must be sorted");
        patches.push_back(patch);
    });
    return patches;
}

Span span_from(nb::handle span) {
    if (span.is_none()) return {};
    if (!PyTuple_Check(span.ptr()) || PyTuple_GET_SIZE(span.ptr()) < 3) throw nb::type_error("expected a Span");
    return {number(span.ptr(), 0), number(span.ptr(), 1), reinterpret_cast<uint8_t*>(number(span.ptr(), 2))};
}

}  // namespace fastio
