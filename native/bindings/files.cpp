#include "transfer/files.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <string_view>

#include "bindings/values.hpp"
#include "pickle/text.hpp"
#include "support/deferred_close.hpp"
#include "zip/entries.hpp"
#include "zip/plain.hpp"
#include "zip/writer.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

// Decodes a record name. Bytes that are not UTF-8 become surrogates, which match no name that torch looks up.
nb::object decoded(const std::string& name) {
    PyObject* text = PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "surrogateescape");
    if (text == nullptr) throw nb::python_error();
    return nb::steal(text);
}

struct ZipDirectory {
    std::vector<ZipRecord> records;
    bool is_standard_end = true;
};

// Calls read(offset, nbytes), which returns bytes. Without the GIL.
std::vector<uint8_t> called(nb::handle read, uint64_t offset, uint64_t nbytes) {
    nb::gil_scoped_acquire acquire;
    nb::bytes found = nb::cast<nb::bytes>(read(offset, nbytes));
    if (found.size() != nbytes) throw Truncated(offset + found.size());
    const auto* data = reinterpret_cast<const uint8_t*>(found.c_str());
    return {data, data + nbytes};
}

ZipDirectory* open_directory(int fd, uint64_t size, bool read_local_headers, nb::object read) {
    ZipSource source(fd);
    if (!read.is_none()) {
        source.read = [handle = nb::handle(read)](uint64_t offset, uint64_t nbytes) {
            return called(handle, offset, nbytes);
        };
    }
    nb::gil_scoped_release release;
    bool is_standard = true;
    std::vector<ZipRecord> records = read_directory(source, size, read_local_headers, &is_standard);
    return new ZipDirectory{std::move(records), is_standard};
}

// Returns make(name, offset, nbytes, crc, header) for each record, the name without the folder that torch adds.
nb::list records_of(const ZipDirectory& directory, nb::handle make) {
    nb::list list;
    for (const ZipRecord& record : directory.records) {
        size_t slash = record.name.find('/');
        std::string name = slash == std::string::npos ? record.name : record.name.substr(slash + 1);
        list.append(make(decoded(name), record.offset, record.nbytes, record.crc, record.header));
    }
    return list;
}

// Returns what is needed to inflate each record, in the order of records_of().
nb::list methods_of(const ZipDirectory& directory) {
    nb::list list;
    for (const ZipRecord& record : directory.records) {
        list.append(nb::make_tuple(record.method, (record.flags & kUnreadable) != 0, record.size));
    }
    return list;
}

// Returns the key that pickles use for the storage in a record; empty if the record holds no storage.
std::string_view storage_key(const ZipRecord& record) {
    constexpr std::string_view kStorages = "/data/";
    std::string_view name = record.name;
    name.remove_prefix(std::min(name.find('/'), name.size()));
    const bool is_storage = record.nbytes > 0 && name.substr(0, kStorages.size()) == kStorages;
    return is_storage ? name.substr(kStorages.size()) : std::string_view();
}

// Returns for each record whether it is a storage that the pickle may use: it is not empty, and its key is a text
// constant of the pickle. A pickle that cannot be parsed may use all storages.
nb::list mentioned(const ZipDirectory& directory, nb::bytes pickle) {
    size_t longest = 0;
    for (const ZipRecord& record : directory.records) longest = std::max(longest, storage_key(record).size());
    const PickleText text = pickle_text(pickle.data(), pickle.size(), longest);
    nb::list found;
    for (const ZipRecord& record : directory.records) {
        const std::string_view key = storage_key(record);
        found.append(!key.empty() && (!text.complete || text.found.count(key) != 0));
    }
    return found;
}

nb::list runs_of(const ZipBuilder& builder) {
    nb::list list;
    for (const Run& run : builder.runs()) list.append(nb::make_tuple(run.offset, run.start, run.nbytes));
    return list;
}

nb::list patches_of(const ZipBuilder& builder) {
    nb::list list;
    for (const Patch& patch : builder.patches()) list.append(nb::make_tuple(patch.offset, patch.index));
    return list;
}

// Exports the literal as a writable buffer, without a copy, since it may be many MiB. The buffer keeps the builder
// alive.
int get_literal(PyObject* self, Py_buffer* view, int flags) {
    auto* builder = nb::inst_ptr<ZipBuilder>(nb::handle(self));
    if (!builder->finished()) {
        PyErr_SetString(PyExc_BufferError, "the zip file is not finished");
        return -1;
    }
    std::vector<uint8_t>& literal = builder->literal();
    return PyBuffer_FillInfo(view, self, literal.data(), static_cast<Py_ssize_t>(literal.size()), 0, flags);
}

PyType_Slot builder_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_literal)}, {0, nullptr}};

void bind_builder(nb::module_& module) {
    nb::class_<ZipBuilder>(module, "ZipBuilder", nb::type_slots(builder_slots),
                           "Lays out a .pt file as torch does, before any of it is written. When finished, it is a "
                           "writable buffer of its literal: all bytes of the file except the extents'.")
        .def(nb::init<std::string, uint64_t>(), "folder"_a, "alignment"_a)
        .def(
            "add_bytes",
            [](ZipBuilder& builder, const std::string& name, nb::bytes data) {
                builder.add_bytes(name, data.c_str(), data.size());
            },
            "name"_a, "data"_a, "Add a record with these bytes.")
        .def(
            "add_memory",
            [](ZipBuilder& builder, const std::string& name, uintptr_t address, uint64_t nbytes) {
                builder.add_bytes(name, reinterpret_cast<const void*>(address), nbytes);
            },
            "name"_a, "address"_a, "nbytes"_a, "Add a small record, whose bytes are copied now.")
        .def("add_extent", &ZipBuilder::add_extent, "name"_a, "nbytes"_a,
             "Add a record whose bytes are written later. Returns their offset.")
        .def("reserve", &ZipBuilder::reserve, "nbytes"_a, "Reserve memory for the literal.")
        .def("finish", &ZipBuilder::finish)
        .def_prop_ro("size", &ZipBuilder::size)
        .def("runs", &runs_of, "Tuples (offset in the file, start in the literal, nbytes).")
        .def("patches", &patches_of, "Tuples (offset in the file, index of the extent).");
}

}  // namespace

void bind_files(nb::module_& module) {
    nb::class_<ZipDirectory>(module, "ZipDirectory", "The directory of a zip file, with every number checked.")
        .def(nb::new_(&open_directory), "fd"_a, "size"_a, "careful"_a = false, "read"_a = nb::none(),
             "With read, the file is what read(offset, nbytes) returns, and not the open one.")
        .def("records", &records_of, "make"_a,
             "make(name, offset, nbytes, crc, header) for each record, in file order.")
        .def("methods", &methods_of, "Tuples (method, encrypted, inflated size) for the same records.")
        .def("mentioned", &mentioned, "pickle"_a)
        .def_prop_ro("in_one_folder", [](const ZipDirectory& directory) { return in_one_folder(directory.records); })
        .def(
            "why_odd",
            [](const ZipDirectory& directory) {
                return nonstandard_reason(directory.records, directory.is_standard_end);
            },
            "Why only torch's own reader can read the archive; empty if fastio can.")
        .def(
            "confirm",
            [](const ZipDirectory& directory, uintptr_t address, uint64_t offset, uint64_t nbytes) {
                return check_headers(directory.records, reinterpret_cast<const uint8_t*>(address), offset, nbytes);
            },
            "address"_a, "offset"_a, "nbytes"_a);
    bind_builder(module);
    module.def(
        "resident",
        [](int fd, uint64_t nbytes, bool sampled) {
            nb::gil_scoped_release release;
            return resident(fd, nbytes, sampled);
        },
        "fd"_a, "nbytes"_a, "sampled"_a = false);
    module.def(
        "direct_alignment",
        [](int fd) -> std::optional<std::tuple<uint32_t, uint32_t>> {
            std::optional<DirectAlignment> alignment = direct_alignment(fd);
            if (!alignment) return std::nullopt;
            return std::tuple(alignment->memory, alignment->offset);
        },
        "fd"_a);
    module.def(
        "allocate",
        [](int fd, uint64_t size) {
            nb::gil_scoped_release release;
            allocate(fd, size);
        },
        "fd"_a, "size"_a);
    module.def("wait_closed", &wait_closed, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace fastio
