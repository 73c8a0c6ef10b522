#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "files.hpp"
#include "pickle_names.hpp"
#include "python_io.hpp"
#include "zip.hpp"
#include "zip_write.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

// Names are bytes of the file: what is not UTF-8 is kept as surrogates, and matches no name that torch asks for.
nb::object decoded(const std::string& name) {
    PyObject* text = PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "surrogateescape");
    if (text == nullptr) throw nb::python_error();
    return nb::steal(text);
}

struct ZipDirectory {
    std::vector<ZipRecord> records;
};

ZipDirectory* open_directory(int fd, uint64_t size, bool careful) {
    nb::gil_scoped_release release;
    return new ZipDirectory{read_directory(fd, size, careful)};
}

// Without the folder that torch puts every record in. `make` is what each record becomes.
nb::list records_of(const ZipDirectory& directory, nb::handle make) {
    nb::list list;
    for (const ZipRecord& record : directory.records) {
        size_t slash = record.name.find('/');
        std::string name = slash == std::string::npos ? record.name : record.name.substr(slash + 1);
        list.append(make(decoded(name), record.offset, record.nbytes, record.crc));
    }
    return list;
}

// Whether all records are stored, and in one folder: what torch writes.
bool is_plain(const ZipDirectory& directory) {
    if (directory.records.empty()) return false;
    size_t slash = directory.records.front().name.find('/');
    if (slash == std::string::npos) return false;
    std::string folder = directory.records.front().name.substr(0, slash + 1);
    return std::all_of(directory.records.begin(), directory.records.end(), [&](const ZipRecord& record) {
        return record.method == 0 && record.name.compare(0, folder.size(), folder) == 0;
    });
}

// Pairs of bytes: module and name. None where the pickle may name others, or hides them behind numbers.
nb::object names_in(nb::bytes data) {
    PickleNames names = pickle_names(data.data(), data.size());
    if (!names.all) return nb::none();
    nb::list list;
    for (const auto& [module, name] : names.found) {
        list.append(nb::make_tuple(nb::bytes(module.data(), module.size()), nb::bytes(name.data(), name.size())));
    }
    return list;
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

void bind_builder(nb::module_& module) {
    nb::class_<ZipBuilder>(module, "ZipBuilder", "Lays out a .pt file as torch does, before any of it is written.")
        .def(nb::init<std::string, uint64_t>(), "folder"_a, "alignment"_a)
        .def(
            "add_bytes",
            [](ZipBuilder& builder, const std::string& name, nb::bytes data) {
                builder.add_bytes(name, data.c_str(), data.size());
            },
            "name"_a, "data"_a, "A record whose bytes are given.")
        .def(
            "add_memory",
            [](ZipBuilder& builder, const std::string& name, uintptr_t address, uint64_t nbytes) {
                builder.add_bytes(name, reinterpret_cast<const void*>(address), nbytes);
            },
            "name"_a, "address"_a, "nbytes"_a, "A small record whose bytes are copied now.")
        .def("add_extent", &ZipBuilder::add_extent, "name"_a, "nbytes"_a,
             "A record whose bytes are moved later; gives their offset.")
        .def("reserve", &ZipBuilder::reserve, "nbytes"_a, "Make room for so many bytes besides the extents'.")
        .def("finish", &ZipBuilder::finish)
        .def_prop_ro("size", &ZipBuilder::size)
        .def(
            "literal",
            [](const ZipBuilder& builder) { return nb::bytearray(builder.literal().data(), builder.literal().size()); })
        .def("runs", &runs_of, "Tuples (offset in the file, start in the literal, nbytes).")
        .def("patches", &patches_of, "Tuples (offset in the file, number of the extent).");
}

}  // namespace

void bind_files(nb::module_& module) {
    nb::class_<ZipDirectory>(module, "ZipDirectory", "The directory of a zip file, every number checked.")
        .def(nb::new_(&open_directory), "fd"_a, "size"_a, "careful"_a = false)
        .def("records", &records_of, "make"_a, "make(name, offset, nbytes, crc) for each record, in file order.")
        .def_prop_ro("plain", &is_plain)
        .def(
            "confirm",
            [](const ZipDirectory& directory, uintptr_t address, uint64_t offset, uint64_t nbytes) {
                return check_headers(directory.records, reinterpret_cast<const uint8_t*>(address), offset, nbytes);
            },
            "address"_a, "offset"_a, "nbytes"_a);
    bind_builder(module);
    module.def("pickle_names", &names_in, "data"_a);
    module.def(
        "resident",
        [](int fd, uint64_t nbytes) {
            nb::gil_scoped_release release;
            return resident(fd, nbytes);
        },
        "fd"_a, "nbytes"_a);
    module.def(
        "direct_alignment",
        [](int fd) {
            DirectAlignment alignment = direct_alignment(fd);
            return nb::make_tuple(alignment.memory, alignment.offset);
        },
        "fd"_a);
    module.def(
        "allocate",
        [](int fd, uint64_t size) {
            nb::gil_scoped_release release;
            allocate(fd, size);
        },
        "fd"_a, "size"_a);
}

}  // namespace fastio
