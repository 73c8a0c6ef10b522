#include "vfio/started.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "vfio/sysfs.hpp"

namespace fastio {

namespace {

constexpr unsigned kPause = 5000;  // us

// Returns the controller's state in the kernel's words, such as "connecting"; "" if the driver has none for it yet.
std::string state_of(const std::string& folder) {
    const std::vector<std::string> controllers = sysfs::names(folder + "/nvme");
    return controllers.empty() ? "" : sysfs::read(folder + "/nvme/" + controllers.front() + "/state");
}

}  // namespace

std::string wait_until_started(const std::string& pci, uint64_t limit_ms, const std::string& root) {
    using Clock = std::chrono::steady_clock;
    const std::string folder = root + sysfs::pci_folder(pci);
    const auto until = Clock::now() + std::chrono::milliseconds(limit_ms);
    while (sysfs::link(folder + "/driver") == "nvme") {
        const std::string state = state_of(folder);
        if (state == "live" || state == "dead") break;
        if (Clock::now() > until) {
            return "the kernel's nvme driver has not started this controller within " +
                   std::to_string(limit_ms / 1000) + " s (" +
                   (state.empty() ? "it has no state yet" : "its state is '" + state + "'") +
                   "): see dmesg; to take it nevertheless: echo " + pci + " > " + sysfs::driver_folder("nvme") +
                   "/unbind";
        }
        usleep(kPause);
    }
    return {};
}

}  // namespace fastio
