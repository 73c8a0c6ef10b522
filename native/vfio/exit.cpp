#include "vfio/exit.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

namespace fastio {

struct ExitList {
    std::mutex mutex;
    std::vector<LeaveAtExit*> entries;

    ExitList() {
        std::atexit([] { instance().leave_all(); });
    }

    static ExitList& instance() {
        static auto* instance = new ExitList;  // never destroyed: it is used at exit
        return *instance;
    }

    void leave_all() {
        std::lock_guard<std::mutex> lock(mutex);
        for (const LeaveAtExit* entry : entries) {
            if (entry->owner_ == getpid()) entry->leave_();
        }
    }
};

LeaveAtExit::LeaveAtExit(std::function<void()> leave) : leave_(std::move(leave)), owner_(getpid()) {
    ExitList& list = ExitList::instance();
    std::lock_guard<std::mutex> lock(list.mutex);
    list.entries.push_back(this);
}

LeaveAtExit::~LeaveAtExit() {
    ExitList& list = ExitList::instance();
    std::lock_guard<std::mutex> lock(list.mutex);
    list.entries.erase(std::remove(list.entries.begin(), list.entries.end(), this), list.entries.end());
}

}  // namespace fastio
