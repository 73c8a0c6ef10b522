// Checks the entries of a safetensors header, and keeps less of them than the parsed JSON: a model may have ten
// thousand.
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

// One tensor: its bytes from `begin` to `end` of the data.
struct Row {
    uint64_t begin, end;
    nb::object name, dtype, shape;
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

// The entries of a header, which is added in parts.
class HeaderRows {
  public:
    explicit HeaderRows(nb::dict itemsizes) : itemsizes_(std::move(itemsizes)) {}

    // Returns whether each entry is exactly a dtype, a shape and offsets that agree.
    bool add(const nb::dict& entries) {
        Py_ssize_t position = 0;
        PyObject *name = nullptr, *entry = nullptr;
        while (PyDict_Next(entries.ptr(), &position, &name, &entry)) {
            if (!add_entry(name, entry)) return false;
        }
        return true;
    }

    // Returns the names by offset, bytes and name; None unless the tensors fill `room` bytes without holes.
    nb::object in_order(uint64_t room) const {
        std::vector<const Row*> rows;
        rows.reserve(rows_.size());
        for (const Row& row : rows_) rows.push_back(&row);
        if (!std::is_sorted(rows.begin(), rows.end(), is_before)) std::sort(rows.begin(), rows.end(), is_before);
        uint64_t end = 0;
        nb::list names;
        for (const Row* row : rows) {
            if (row->begin != end) return nb::none();
            end = row->end;
            names.append(row->name);
        }
        return end == room ? nb::object(names) : nb::none();
    }

    nb::tuple row(size_t index) const {
        const Row& found = rows_.at(index);
        return nb::make_tuple(found.dtype, found.shape, found.begin, found.end);
    }

    // Returns the dtypes and the shapes of rows.
    nb::tuple columns(const nb::list& indices) const {
        nb::list dtypes, shapes;
        for (nb::handle index : indices) {
            const Row& row = rows_.at(nb::cast<size_t>(index));
            dtypes.append(row.dtype);
            shapes.append(row.shape);
        }
        return nb::make_tuple(dtypes, shapes);
    }

    size_t size() const { return rows_.size(); }

  private:
    bool add_entry(PyObject* name, PyObject* entry) {
        if (!PyDict_CheckExact(entry) || PyDict_GET_SIZE(entry) != 3) return false;
        PyObject* dtype = PyDict_GetItemWithError(entry, dtype_.ptr());
        PyObject* shape = PyDict_GetItemWithError(entry, shape_.ptr());
        PyObject* offsets = PyDict_GetItemWithError(entry, offsets_.ptr());
        if (dtype == nullptr || shape == nullptr || offsets == nullptr) return false;
        if (!PyUnicode_CheckExact(dtype) || !PyList_CheckExact(shape) || !PyList_CheckExact(offsets)) return false;
        PyObject* itemsize = PyDict_GetItemWithError(itemsizes_.ptr(), dtype);
        if (itemsize == nullptr || PyList_GET_SIZE(offsets) != 2) return false;
        const std::optional<uint64_t> nbytes = nbytes_of(shape, length_of(itemsize).value());
        const std::optional<uint64_t> begin = length_of(PyList_GET_ITEM(offsets, 0));
        const std::optional<uint64_t> end = length_of(PyList_GET_ITEM(offsets, 1));
        if (!nbytes || !begin || !end || *begin > *end || *end - *begin != *nbytes) return false;
        rows_.push_back({*begin, *end, nb::borrow(name), shared(dtype), nb::borrow(shape)});
        return true;
    }

    // Returns one object for all that are equal to it: files have few dtypes.
    nb::object shared(PyObject* dtype) {
        if (!last_.is_valid() || PyUnicode_Compare(last_.ptr(), dtype) != 0) last_ = nb::borrow(dtype);
        return last_;
    }

    static bool is_before(const Row* one, const Row* other) {
        const auto place = std::tie(one->begin, one->end), another = std::tie(other->begin, other->end);
        return place != another ? place < another : PyUnicode_Compare(one->name.ptr(), other->name.ptr()) < 0;
    }

    nb::dict itemsizes_;
    nb::object dtype_ = interned("dtype"), shape_ = interned("shape"), offsets_ = interned("data_offsets"), last_;
    std::vector<Row> rows_;
};

}  // namespace

void bind_header_entries(nb::module_& module) {
    nb::class_<HeaderRows>(module, "HeaderRows")
        .def(nb::init<nb::dict>(), nb::arg("itemsizes"))
        .def("add", &HeaderRows::add, nb::arg("entries"))
        .def("in_order", &HeaderRows::in_order, nb::arg("room"))
        .def("row", &HeaderRows::row, nb::arg("index"))
        .def("columns", &HeaderRows::columns, nb::arg("indices"))
        .def("__len__", &HeaderRows::size);
}

}  // namespace fastio
