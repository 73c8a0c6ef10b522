// Checks the entries of a safetensors header all at once: the parsed JSON has an object for each of ten thousand
// tensors.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "bindings/objects.hpp"
#include "bindings/values.hpp"

namespace nb = nanobind;

namespace fastio {

namespace {

constexpr uint64_t kMost = uint64_t{1} << 63;  // torch's sizes have 63 bits

struct Span {
    uint64_t begin, end;
    PyObject* name;
};

// Returns the value of an int below 2^63.
std::optional<uint64_t> length_of(PyObject* value) {
    if (!PyLong_CheckExact(value)) return std::nullopt;  // a bool is another type
    const unsigned long long number = PyLong_AsUnsignedLongLong(value);
    if (number == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        return std::nullopt;
    }
    return number < kMost ? std::optional<uint64_t>(number) : std::nullopt;
}

// Returns the bytes of a tensor; nothing for a shape that is no list of lengths, or of 2^63 elements or more.
std::optional<uint64_t> nbytes_of(PyObject* shape, uint64_t itemsize) {
    uint64_t nbytes = itemsize;
    bool is_empty = false;
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(shape); ++index) {
        const std::optional<uint64_t> length = length_of(PyList_GET_ITEM(shape, index));
        if (!length) return std::nullopt;
        is_empty = is_empty || *length == 0;
        if (__builtin_mul_overflow(nbytes, std::max<uint64_t>(*length, 1), &nbytes) || nbytes >= kMost) {
            return std::nullopt;
        }
    }
    return is_empty ? 0 : nbytes;
}

class Fields {
  public:
    explicit Fields(nb::dict itemsizes) : itemsizes_(std::move(itemsizes)) {}

    // Returns the bytes of an entry; nothing for one that is not exactly dtype, shape and data_offsets that agree.
    std::optional<Span> span(PyObject* name, PyObject* entry) const {
        if (!PyDict_CheckExact(entry) || PyDict_GET_SIZE(entry) != 3) return std::nullopt;
        PyObject* dtype = PyDict_GetItemWithError(entry, dtype_.ptr());
        PyObject* shape = PyDict_GetItemWithError(entry, shape_.ptr());
        PyObject* offsets = PyDict_GetItemWithError(entry, offsets_.ptr());
        if (dtype == nullptr || shape == nullptr || offsets == nullptr) return std::nullopt;
        if (!PyUnicode_CheckExact(dtype) || !PyList_CheckExact(shape) || !PyList_CheckExact(offsets)) {
            return std::nullopt;
        }
        PyObject* itemsize = PyDict_GetItemWithError(itemsizes_.ptr(), dtype);
        if (itemsize == nullptr || PyList_GET_SIZE(offsets) != 2) return std::nullopt;
        const std::optional<uint64_t> nbytes = nbytes_of(shape, length_of(itemsize).value());
        const std::optional<uint64_t> begin = length_of(PyList_GET_ITEM(offsets, 0));
        const std::optional<uint64_t> end = length_of(PyList_GET_ITEM(offsets, 1));
        if (!nbytes || !begin || !end || *begin > *end || *end - *begin != *nbytes) return std::nullopt;
        return Span{*begin, *end, name};
    }

  private:
    nb::dict itemsizes_;
    nb::object dtype_ = interned("dtype"), shape_ = interned("shape"), offsets_ = interned("data_offsets");
};

// Returns whether one entry lies before another: by offset, bytes and name.
bool is_before(const Span& one, const Span& other) {
    const auto place = std::tie(one.begin, one.end), another = std::tie(other.begin, other.end);
    return place != another ? place < another : PyUnicode_Compare(one.name, other.name) < 0;
}

nb::object entries_in_order(nb::dict entries, uint64_t room, nb::dict itemsizes) {
    const Fields fields(std::move(itemsizes));
    std::vector<Span> spans;
    spans.reserve(nb::len(entries));
    Py_ssize_t position = 0;
    PyObject *name = nullptr, *entry = nullptr;
    while (PyDict_Next(entries.ptr(), &position, &name, &entry)) {
        const std::optional<Span> span = fields.span(name, entry);
        if (!span) return nb::none();
        spans.push_back(*span);
    }
    if (!std::is_sorted(spans.begin(), spans.end(), is_before)) std::sort(spans.begin(), spans.end(), is_before);
    uint64_t end = 0;
    nb::list names;
    for (const Span& span : spans) {
        if (span.begin != end) return nb::none();
        end = span.end;
        names.append(nb::handle(span.name));
    }
    return end == room ? nb::object(names) : nb::none();
}

}  // namespace

void bind_header_entries(nb::module_& module) {
    module.def("entries_in_order", &entries_in_order, nb::arg("entries"), nb::arg("room"), nb::arg("itemsizes"));
}

}  // namespace fastio
