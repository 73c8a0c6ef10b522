// Tests the wait for the kernel's nvme driver on simulated /sys trees.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/check.hpp"
#include "vfio/started.hpp"
#include "vfio/sysfs.hpp"

namespace {

namespace fs = std::filesystem;

constexpr const char* kPci = "0000:03:00.0";
constexpr uint64_t kLong = 60'000;

struct Tree {
    std::string root, folder, controller;

    Tree() {
        char path[] = "/tmp/fastio-sysfs-XXXXXX";
        root = mkdtemp(path);
        folder = root + fastio::sysfs::pci_folder(kPci);
        controller = folder + "/nvme/nvme2";
        fs::create_directories(folder);
        driver("nvme");
    }
    ~Tree() { fs::remove_all(root); }
    Tree(const Tree&) = delete;
    Tree& operator=(const Tree&) = delete;

    void driver(const std::string& name) const {
        fs::remove(folder + "/driver");
        if (!name.empty()) fs::create_symlink("../../../../bus/pci/drivers/" + name, folder + "/driver");
    }
    void state(const std::string& text) const {
        fs::create_directories(controller);
        std::ofstream(controller + "/new") << text << '\n';
        fs::rename(controller + "/new", controller + "/state");  // at once, as in /sys
    }
    std::string wait(uint64_t limit_ms) const { return fastio::wait_until_started(kPci, limit_ms, root); }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void test_settled() {
    const Tree tree;
    for (const char* state : {"live", "dead"}) {
        tree.state(state);
        CHECK(tree.wait(0).empty(), "%s: %s", state, tree.wait(0).c_str());
    }
    tree.state("connecting");
    for (const char* driver : {"vfio-pci", ""}) {
        tree.driver(driver);
        CHECK(tree.wait(0).empty(), "driver '%s': %s", driver, tree.wait(0).c_str());
    }
}

void test_starts_while_waiting() {
    const Tree tree;
    std::thread kernel([&tree] {
        for (const char* state : {"new", "resetting", "connecting", "live"}) {
            usleep(10'000);
            tree.state(state);
        }
    });
    const std::string refusal = tree.wait(kLong);
    const std::string state = fastio::sysfs::read(tree.controller + "/state");
    kernel.join();
    CHECK(refusal.empty() && state == "live", "'%s' in state %s", refusal.c_str(), state.c_str());
}

void test_given_up_while_waiting() {
    const Tree tree;
    tree.state("deleting");
    std::thread kernel([&tree] {
        usleep(20'000);
        tree.driver("");
    });
    const std::string refusal = tree.wait(kLong);
    kernel.join();
    CHECK(refusal.empty(), "%s", refusal.c_str());
}

void test_does_not_start() {
    const Tree tree;
    CHECK(has(tree.wait(0), "within 0 s (it has no state yet)"), "%s", tree.wait(0).c_str());
    tree.state("connecting");
    const std::string refusal = tree.wait(0);
    CHECK(has(refusal, "its state is 'connecting'") && has(refusal, "echo 0000:03:00.0 > "), "%s", refusal.c_str());
}

}  // namespace

int main() {
    test_settled();
    test_starts_while_waiting();
    test_given_up_while_waiting();
    test_does_not_start();
}
