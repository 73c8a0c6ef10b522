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

// A signal may be heard by another thread than the one that waits, which is not woken then.
constexpr double kLookInSeconds = 0.05;

// As time.perf_counter has it.
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

    // Python's signal handlers run meanwhile, and may raise.
    bool wait(double seconds) {
        const double end = now() + seconds;
        double left = seconds;
        while (!latch.is_open() && left > 0) {
            {
                nb::gil_scoped_release release;
                latch.wait(std::min(left, kLookInSeconds));
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

// What a thread is to do. Its latch opens when it is done, or when it never will be: who was to do it is gone.
class ThreadTask {
  public:
    ThreadTask(nb::object work, nb::object over) : work_(std::move(work)), over_(std::move(over)) {}
    ThreadTask(const ThreadTask&) = delete;
    ThreadTask& operator=(const ThreadTask&) = delete;
    ~ThreadTask() { end(); }

    void run() {
        nb::object work = std::move(work_);  // it may hold much, and nobody is told before that is gone
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

// A context that cannot be left before the errands that were made in it are over, whatever signals come: entered and
// left in C, where none is heard. Python hears them afterwards.
class JoinOnExit {
  public:
    JoinOnExit(nb::object control, nb::object begin) : control_(std::move(control)), begin_(std::move(begin)) {}

    nb::object enter() {
        nb::object begin = std::move(begin_);  // it may hold who holds this
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
        if (::getpid() != process_) return;  // a fork has none of its threads
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
                            "Once opened, it stays open. As a context it is broken, and opened, by an exception.")
        .def(nb::init<>())
        .def("open", &PythonLatch::open, "Let them go on. A second call does nothing.")
        .def("wait", &PythonLatch::wait, "seconds"_a = std::numeric_limits<double>::infinity(),
             "Return when it is open, or after so many seconds; gives whether it is open.")
        .def_prop_ro("is_open", [](const PythonLatch& self) { return self.latch.is_open(); })
        .def_prop_ro("is_broken", [](const PythonLatch& self) { return self.broken.load(); })
        .def_prop_ro(
            "opened",
            [](const PythonLatch& self) {
                double opened = self.opened;
                return opened == 0 ? nb::object(nb::none()) : nb::object(nb::float_(opened));
            },
            "When it was opened, by time.perf_counter; None if it is closed.")
        .def("__enter__", [](nb::object self) { return self; })
        .def(
            "__exit__", [](PythonLatch& self, nb::handle kind, nb::handle, nb::handle) { self.leave(kind); },
            "kind"_a.none(), "error"_a.none(), "at"_a.none());
    nb::class_<ThreadTask>(module, "ThreadTask",
                           "What a thread is to do: ``over`` opens when it is done, or never will be.")
        .def(nb::init<nb::object, nb::object>(), "work"_a, "over"_a)
        .def("__call__", &ThreadTask::run);
    nb::class_<JoinOnExit>(module, "JoinOnExit",
                           "A context that no signal ends before the errands that were made in it are over.")
        .def(nb::init<nb::object, nb::object>(), "control"_a, "begin"_a)
        .def("task", &JoinOnExit::task, "work"_a, "over"_a, "A task that the context waits for.")
        .def("__enter__", &JoinOnExit::enter)
        .def(
            "__exit__", [](JoinOnExit& self, nb::handle, nb::handle, nb::handle) { self.finish(); }, "kind"_a.none(),
            "error"_a.none(), "at"_a.none());
}

}  // namespace fastio
