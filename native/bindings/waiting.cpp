#include <nanobind/nanobind.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "bindings/values.hpp"
#include "support/latch.hpp"
#include "transfer/control.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

using Clock = std::chrono::steady_clock;

// How often to check for signals: another thread may receive the signal, which does not wake the waiting one.
constexpr double kSignalCheckSeconds = 0.05;

// The time, as time.perf_counter() returns it.
double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

struct PythonLatch {
    Latch latch;
    std::atomic<double> opened{0};
    std::atomic<bool> broken{false};

    void open() {
        double never = 0;
        opened.compare_exchange_strong(never, now());
        latch.open();
    }

    // Python's signal handlers run during the wait, and may raise.
    bool wait(double seconds) {
        const double end = now() + seconds;
        double left = seconds;
        while (!latch.is_open() && left > 0) {
            {
                nb::gil_scoped_release release;
                latch.wait(std::min(left, kSignalCheckSeconds));
            }
            if (PyErr_CheckSignals() != 0) throw nb::python_error();
            left = end - now();
        }
        return latch.is_open();
    }

    void leave(nb::handle kind) {
        if (kind.is_none()) return;
        broken = true;
        open();
    }
};

// A function for a thread to run once. Its latch opens when it has run, or when the task is destroyed without running.
class ThreadTask {
  public:
    ThreadTask(nb::object work, nb::object over) : work_(std::move(work)), over_(std::move(over)) {}
    ThreadTask(const ThreadTask&) = delete;
    ThreadTask& operator=(const ThreadTask&) = delete;
    ~ThreadTask() { end(); }

    void run() {
        nb::object work = std::move(work_);  // it may hold much memory, which is released before the latch opens
        try {
            work();
        } catch (...) {
            work.reset();
            end();
            throw;
        }
        work.reset();
        end();
    }

  private:
    void end() { nb::cast<PythonLatch&>(over_).open(); }

    nb::object work_, over_;
};

// A context manager that is not left before its tasks are over, whatever signals arrive. It is entered and left in
// native code, where no signal handler runs; Python runs them afterwards.
class JoinOnExit {
  public:
    JoinOnExit(nb::object control, nb::object begin) : control_(std::move(control)), begin_(std::move(begin)) {}

    nb::object enter() {
        nb::object begin = std::move(begin_);  // it may refer to the owner of this object
        try {
            return begin(nb::find(this));
        } catch (nb::python_error&) {
            finish();
            throw;
        }
    }

    ThreadTask* task(nb::object work, nb::object over) {
        latches_.push_back(over);
        return new ThreadTask(std::move(work), std::move(over));
    }

    void finish() {
        if (::getpid() != process_) return;  // a forked child does not have the threads
        std::vector<nb::object> left;
        for (const nb::object& over : latches_) {
            if (!nb::cast<PythonLatch&>(over).latch.is_open()) left.push_back(over);
        }
        if (left.empty()) return;
        nb::cast<Control&>(control_).cancelled = true;
        for (const nb::object& over : left) {
            Latch& latch = nb::cast<PythonLatch&>(over).latch;
            nb::gil_scoped_release release;
            while (!latch.wait(std::numeric_limits<double>::infinity())) {
            }
        }
    }

  private:
    nb::object control_, begin_;
    std::vector<nb::object> latches_;
    pid_t process_ = ::getpid();
};

}  // namespace

void bind_waiting(nb::module_& module) {
    nb::class_<PythonLatch>(module, "Latch",
                            "A one-shot event. As a context, it is opened, and broken, by an exception.")
        .def(nb::init<>())
        .def("open", &PythonLatch::open, "Open it and wake all waiting threads. A second call does nothing.")
        .def("wait", &PythonLatch::wait, "seconds"_a = std::numeric_limits<double>::infinity(),
             "Wait until it is open, or so many seconds. Returns whether it is open.")
        .def_prop_ro("is_open", [](const PythonLatch& self) { return self.latch.is_open(); })
        .def_prop_ro("is_broken", [](const PythonLatch& self) { return self.broken.load(); })
        .def_prop_ro(
            "opened",
            [](const PythonLatch& self) {
                double opened = self.opened;
                return opened == 0 ? nb::object(nb::none()) : nb::object(nb::float_(opened));
            },
            "The time.perf_counter() at which it was opened; None if it is closed.")
        .def("__enter__", [](nb::object self) { return self; })
        .def(
            "__exit__", [](PythonLatch& self, nb::handle kind, nb::handle, nb::handle) { self.leave(kind); },
            "kind"_a.none(), "error"_a.none(), "at"_a.none());
    nb::class_<ThreadTask>(module, "ThreadTask",
                           "A function for a thread to run once; ``over`` opens when it has run, or never will.")
        .def(nb::init<nb::object, nb::object>(), "work"_a, "over"_a)
        .def("__call__", &ThreadTask::run);
    nb::class_<JoinOnExit>(module, "JoinOnExit",
                           "A context that is not left before the tasks made in it are over, whatever signals arrive.")
        .def(nb::init<nb::object, nb::object>(), "control"_a, "begin"_a)
        .def("task", &JoinOnExit::task, "work"_a, "over"_a, "Make a task that the context waits for.")
        .def("__enter__", &JoinOnExit::enter)
        .def(
            "__exit__", [](JoinOnExit& self, nb::handle, nb::handle, nb::handle) { self.finish(); }, "kind"_a.none(),
            "error"_a.none(), "at"_a.none());
}

}  // namespace fastio
