#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "python_io.hpp"
#include "files.hpp"
#include "zip.hpp"

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

nb::list records_of(const ZipDirectory& directory) {
    nb::list list;
    for (const ZipRecord& record : directory.records) {
        list.append(nb::make_tuple(decoded(record.name), record.offset, record.nbytes, record.crc, record.method,
                                   record.header));
    }
    return list;
}

}  // namespace

void bind_files(nb::module_& module) {
    nb::class_<ZipDirectory>(module, "ZipDirectory", "The directory of a zip file, every number checked.")
        .def(nb::new_(&open_directory), "fd"_a, "size"_a, "careful"_a = false)
        .def("records", &records_of, "Tuples (name, offset, nbytes, crc, method, header), in file order.")
        .def(
            "confirm",
            [](const ZipDirectory& directory, uintptr_t address, uint64_t offset, uint64_t nbytes) {
                return check_headers(directory.records, reinterpret_cast<const uint8_t*>(address), offset, nbytes);
            },
            "address"_a, "offset"_a, "nbytes"_a);
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
