// Tests the in-use check of a controller's namespaces on simulated /sys and /proc trees.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/check.hpp"
#include "vfio/in_use.hpp"
#include "vfio/sysfs.hpp"

namespace {

namespace fs = std::filesystem;

constexpr const char* kPci = "0000:03:00.0";

struct Tree {
    std::string root;

    Tree() {
        char path[] = "/tmp/fastio-sysfs-XXXXXX";
        root = mkdtemp(path);
        // One private namespace, and one shared with another controller of the subsystem.
        folder(pci() + "/nvme/nvme2/nvme2n1");
        folder(pci() + "/nvme/nvme2/nvme2c2n7");
        folder(pci() + "/nvme/nvme2/power");
        file("/sys/class/block/nvme2n1/dev", "259:1");
        file("/sys/class/block/nvme2n1/nvme2n1p3/partition", "3");
        file("/sys/class/block/nvme2n1p3/dev", "259:3");
        file("/sys/class/block/nvme2n7/dev", "259:9");
        folder("/sys/class/block/nvme2n1p3/holders");
        file("/proc/self/mountinfo", "21 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw");
        file("/proc/swaps", "Filename Type Size Used Priority\n/dev/nvme2n10 partition 1 0 -2");
    }
    ~Tree() { fs::remove_all(root); }
    Tree(const Tree&) = delete;
    Tree& operator=(const Tree&) = delete;

    static std::string pci() { return fastio::sysfs::pci_folder(kPci); }
    void folder(const std::string& path) const { fs::create_directories(root + path); }
    void file(const std::string& path, const std::string& text) const {
        fs::create_directories(fs::path(root + path).parent_path());
        std::ofstream(root + path) << text << '\n';
    }
    std::string use() const {
        fastio::ExclusiveOpens held;
        return fastio::namespace_in_use(kPci, held, root);
    }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void test_unused() {
    const Tree tree;
    CHECK(tree.use().empty(), "%s", tree.use().c_str());
    tree.file("/dev/nvme2n1", "");
    tree.file("/dev/nvme2n1p3", "");
    fastio::ExclusiveOpens held;
    CHECK(fastio::namespace_in_use("0000:04:00.0", held, tree.root).empty() && held.size() == 0,
          "a missing controller is unused");
    CHECK(fastio::namespace_in_use(kPci, held, tree.root).empty() && held.size() == 1,
          "the device is held open, its partition is not");
}

void test_mounts() {
    Tree tree;
    tree.file("/proc/self/mountinfo", "22 1 259:3 / /home rw shared:1 master:2 - ext4 /dev/root rw");
    CHECK(has(tree.use(), "nvme2n1p3 is mounted on /home"), "found by device number: %s", tree.use().c_str());
    tree.file("/proc/self/mountinfo", "22 1 0:40 / /data rw - btrfs /dev/nvme2n7 rw");
    CHECK(has(tree.use(), "nvme2n7 is mounted on /data"), "found by device name: %s", tree.use().c_str());
    tree.file("/proc/self/mountinfo", "22 1 0:40 / /data rw - btrfs /dev/nvme2n70 rw");
    CHECK(tree.use().empty(), "another device with the same prefix does not count");
}

void test_swap_and_holders() {
    Tree tree;
    tree.file("/proc/swaps", "Filename Type\n/dev/nvme2n1p3\tpartition 1 0 -2");
    CHECK(has(tree.use(), "nvme2n1p3 is swap space"), "%s", tree.use().c_str());
    tree.file("/proc/swaps", "Filename Type");
    tree.folder("/sys/class/block/nvme2n7/holders/dm-4");
    CHECK(has(tree.use(), "dm-4 is built on nvme2n7"), "%s", tree.use().c_str());
}

void test_processes() {
    const Tree tree;
    const std::string path = tree.root + "/proc/swaps";
    CHECK(fastio::processes_with(path).empty(), "no process has it open");
    std::ifstream opened(path);
    const std::string who = fastio::processes_with(path);
    CHECK(has(who, "process " + std::to_string(getpid()) + " (test_vfio_in_us"), "%s", who.c_str());
}

}  // namespace

int main() {
    test_unused();
    test_mounts();
    test_swap_and_holders();
    test_processes();
}
