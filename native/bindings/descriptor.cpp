#include <fcntl.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "bindings/values.hpp"
#include "support/deferred_close.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

// A file descriptor that is owned by this object from the system call on. With os.open, a signal handler may raise
// before the descriptor is assigned to a name, and the descriptor leaks.
class Descriptor {
  public:
    Descriptor(nb::object path, int flags, int mode) : path_(std::move(path)), flags_(flags), mode_(mode) {
        PyObject* bytes = nullptr;
        if (PyUnicode_FSConverter(path_.ptr(), &bytes) == 0) throw nb::python_error();
        encoded_ = nb::steal<nb::bytes>(bytes);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }

    int open() {
        while (fd_ < 0) {
            int error = 0;
            {
                nb::gil_scoped_release release;
                fd_ = ::open(encoded_.c_str(), flags_ | O_CLOEXEC, mode_);
                if (fd_ < 0) error = errno;
            }
            if (fd_ >= 0) break;
            if (error != EINTR) fail(error);
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
        }
        return fd_;
    }

    nb::object enter(nb::handle self) {
        try {
            return self.attr("open")();
        } catch (nb::python_error&) {
            close();
            throw;
        }
    }

    int fileno() const {
        if (fd_ < 0) {
            PyErr_Format(PyExc_ValueError, "%S is not open", path_.ptr());
            throw nb::python_error();
        }
        return fd_;
    }

    void close() {
        const int fd = std::exchange(fd_, -1);
        if (fd < 0) return;
        int error = 0;
        {
            nb::gil_scoped_release release;
            if (::close(fd) != 0) error = errno;
        }
        if (error != 0 && error != EINTR) fail(error);  // after EINTR it is closed, too
    }

    void close_later() {
        const int fd = std::exchange(fd_, -1);
        if (fd < 0) return;
        nb::gil_scoped_release release;
        fastio::close_later(fd);
    }

    int detach() {
        const int fd = fileno();
        fd_ = -1;
        return fd;
    }

  private:
    [[noreturn]] void fail(int error) const {
        errno = error;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path_.ptr());
        throw nb::python_error();
    }

    nb::object path_;
    nb::bytes encoded_;
    int flags_, mode_;
    int fd_ = -1;
};

}  // namespace

void bind_descriptor(nb::module_& module) {
    nb::class_<Descriptor>(module, "Descriptor",
                           "A file or folder, opened as by os.open; closed when the object is destroyed.")
        .def(nb::init<nb::object, int, int>(), "path"_a, "flags"_a, "mode"_a = 0666)
        .def("open", &Descriptor::open, "Open it, if it is not open. Returns the descriptor.")
        .def("fileno", &Descriptor::fileno, "The descriptor. ValueError if it is not open.")
        .def("close", &Descriptor::close, "Close it, if it is open.")
        .def("close_later", &Descriptor::close_later, "Close it on another thread, if it is open.")
        .def("detach", &Descriptor::detach, "Return the descriptor, which the caller must close.")
        .def("__enter__", [](nb::handle self) { return nb::cast<Descriptor&>(self).enter(self); })
        .def(
            "__exit__", [](Descriptor& self, nb::handle, nb::handle, nb::handle) { self.close(); }, "kind"_a.none(),
            "error"_a.none(), "at"_a.none());
}

}  // namespace fastio
