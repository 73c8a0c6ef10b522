#include "vfio/exit.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

namespace fastio {

struct LeavingList {
    std::mutex mutex;
    std::vector<LeaveAtExit*> entries;

    LeavingList() {
        std::atexit([] { of_process().leave_all(); });
    }

    static LeavingList& of_process() {
        static auto* instance = new LeavingList;  // never destroyed: it is used at exit
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
    LeavingList& list = LeavingList::of_process();
    std::lock_guard<std::mutex> lock(list.mutex);
    list.entries.push_back(this);
}

LeaveAtExit::~LeaveAtExit() {
    LeavingList& list = LeavingList::of_process();
    std::lock_guard<std::mutex> lock(list.mutex);
    list.entries.erase(std::remove(list.entries.begin(), list.entries.end(), this), list.entries.end());
}

}  // namespace fastio
