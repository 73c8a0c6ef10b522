// Gives Python the tensors of a safetensors header: names, in their order, and what is asked for of each. A model may
// have ten thousand.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bindings/objects.hpp"
#include "bindings/values.hpp"
#include "checksum/crc32.hpp"
#include "safetensors/header.hpp"

namespace nb = nanobind;

namespace fastio {

namespace {

// The tensors of a header that was parsed. Its text may be freed.
class HeaderRows {
  public:
    HeaderRows(Header header, std::vector<HeaderDtype> dtypes, nb::list names, nb::list in_order)
        : header_(std::move(header)),
          dtypes_(std::move(dtypes)),
          names_(std::move(names)),
          in_order_(std::move(in_order)) {
        for (HeaderRow& row : header_.rows) row.name = {};
    }

    nb::list in_order() const { return in_order_; }

    nb::tuple row(size_t index) const {
        const HeaderRow& found = header_.rows.at(index);
        return nb::make_tuple(dtypes_[found.dtype].name, shape(found), found.begin, found.end);
    }

    // Returns the CRC-32 of the sorted names, the dtypes and the shapes as JSON; None if names are not all of ASCII.
    nb::object table_crc() const {
        std::vector<std::pair<std::string_view, const HeaderRow*>> sorted;
        sorted.reserve(header_.rows.size());
        for (size_t index = 0; index < header_.rows.size(); ++index) {
            PyObject* name = PyList_GET_ITEM(names_.ptr(), static_cast<Py_ssize_t>(index));
            if (!PyUnicode_IS_ASCII(name)) return nb::none();
            const char* text = reinterpret_cast<const char*>(PyUnicode_1BYTE_DATA(name));
            sorted.emplace_back(std::string_view(text, PyUnicode_GET_LENGTH(name)), &header_.rows[index]);
            if (sorted.back().first.find('\x7f') != std::string_view::npos) return nb::none();  // JSON escapes it
        }
        std::sort(sorted.begin(), sorted.end(), [](auto& one, auto& other) { return one.first < other.first; });
        std::string names = "[[", dtypes, shapes;
        for (const auto& [name, row] : sorted) {
            const char* comma = row == sorted.front().second ? "" : ",";
            names.append(comma).append("\"").append(name).append("\"");
            dtypes.append(comma).append("\"").append(dtypes_[row->dtype].name).append("\"");
            shapes.append(comma).append("[");
            for (size_t axis = 0; axis < row->rank; ++axis) {
                shapes.append(axis ? "," : "").append(std::to_string(header_.lengths[row->shape + axis]));
            }
            shapes.append("]");
        }
        const std::string text = names + "],[" + dtypes + "],[" + shapes + "]]";
        return nb::int_(crc32(0, text.data(), text.size()));
    }

  private:
    nb::list shape(const HeaderRow& row) const {
        nb::list found;
        for (size_t axis = 0; axis < row.rank; ++axis) found.append(header_.lengths[row.shape + axis]);
        return found;
    }

    Header header_;
    std::vector<HeaderDtype> dtypes_;
    nb::list names_, in_order_;
};

std::string_view view_of(const nb::bytes& text) { return {text.c_str(), text.size()}; }

// Returns (rows, index of each name, metadata as bytes or None); None for a header that is unusual, or wrong.
nb::object header_rows(const nb::bytes& text, const nb::dict& itemsizes, uint64_t room) {
    std::vector<HeaderDtype> dtypes;
    for (auto [name, itemsize] : itemsizes) {
        dtypes.push_back({nb::cast<std::string>(name), nb::cast<uint64_t>(itemsize)});
    }
    std::optional<Header> header = parse_header(view_of(text), dtypes);
    if (!header) return nb::none();
    const std::optional<std::vector<size_t>> order = rows_in_order(header->rows, room);
    if (!order) return nb::none();
    nb::list names, in_order;
    nb::dict index;
    for (const HeaderRow& row : header->rows) {
        const auto length = static_cast<Py_ssize_t>(row.name.size());
        nb::object name = nb::steal(PyUnicode_DecodeUTF8(row.name.data(), length, nullptr));
        if (!name.is_valid()) {
            PyErr_Clear();
            return nb::none();
        }
        index[name] = names.size();
        names.append(name);
    }
    if (index.size() != names.size()) return nb::none();  // a name occurs twice
    for (size_t place : *order) in_order.append(names[place]);
    nb::object metadata = nb::none();
    if (header->metadata) metadata = nb::bytes(header->metadata->data(), header->metadata->size());
    return nb::make_tuple(HeaderRows(std::move(*header), std::move(dtypes), names, in_order), index, metadata);
}

}  // namespace

void bind_header_entries(nb::module_& module) {
    nb::class_<HeaderRows>(module, "HeaderRows")
        .def_prop_ro("in_order", &HeaderRows::in_order)
        .def("row", &HeaderRows::row, nb::arg("index"))
        .def("table_crc", &HeaderRows::table_crc);
    module.def("header_rows", &header_rows, nb::arg("text"), nb::arg("itemsizes"), nb::arg("room"));
}

}  // namespace fastio
