#include "failures.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "blobs.hpp"
#include "host.hpp"
#include "model.hpp"
#include "support/errors.hpp"

namespace rig {

namespace {

using fastio::kStoreBlock;

// Writes and reads until it is killed. Writes a byte to the pipe `ready` when it has commands in flight.
[[noreturn]] void work(const std::string& driver, const Places& places, int ready) {
    auto store = open_store(driver, places);
    Blobs blobs(*store, driver);
    for (int round = 0;; ++round) {
        blobs.write(round, blobs.pick(1, 64 * kStoreBlock));
        if (round >= 8) blobs.check(round - 8);
        if (round >= 16) blobs.free(round - 16);
        if (round == 24) CHECK(write(ready, "x", 1) == 1, "the pipe is open");
    }
}

}  // namespace

std::string reset_file(const std::string& driver, const std::string& place) {
    return driver == "vfio" ? "/sys/bus/pci/devices/" + place + "/reset" : kernel_reset(place);
}

void test_killed(const std::string& driver, const Places& places) {
    constexpr std::array<int, 4> kSignals = {SIGKILL, SIGTERM, SIGSEGV, SIGKILL};
    for (int number : kSignals) {
        int ready[2];
        CHECK(pipe(ready) == 0, "pipe");
        const pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) work(driver, places, ready[1]);
        close(ready[1]);
        char byte = 0;
        CHECK(read(ready[0], &byte, 1) == 1, "the program runs until it is killed");
        close(ready[0]);
        usleep(20000);  // kill it at an arbitrary point of its work
        CHECK(kill(child, number) == 0, "kill");
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child, "waitpid");
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == number, "the program ends by the signal, not with status %d",
              status);
        auto store = open_store(driver, places);  // at once: the killed program must leave nothing behind
        Blobs blobs(*store, driver);
        for (int round = 0; round < 50; ++round) blobs.write(round, blobs.pick(1, 20 * kStoreBlock));
        for (int round = 49; round >= 0; --round) blobs.check(round);
    }
    note(std::to_string(kSignals.size()) + " programs killed, " + std::to_string(kSignals.size()) + " clean claims");
}

void test_in_use(const std::string& driver, const Places& places) {
    const std::string path = kernel_device(places.at(0));
    const int holder = open(path.c_str(), O_RDONLY | O_EXCL);  // as a mounted filesystem, a swap area or a RAID does
    CHECK(holder >= 0, "open %s: %s", path.c_str(), std::strerror(errno));
    std::string reason;
    try {
        open_driver(driver, places);
    } catch (const fastio::Refused& refused) {
        reason = refused.reason;
    }
    CHECK(reason.find(path.substr(5)) != std::string::npos, "the refusal names the used device %s: '%s'", path.c_str(),
          reason.c_str());
    CHECK(kernel_device(places.at(0)) == path, "the kernel keeps the disk");
    close(holder);
    open_driver(driver, places);  // unused now
    note(reason);
}

void test_handover(const std::string& driver, const Places& places) {
    constexpr int kRounds = 20, kPauses = 5;
    for (int round = 0; round < kRounds; ++round) {
        usleep(static_cast<unsigned>(round % kPauses) * 10'000);
        auto store = open_store(driver, places);
        Blobs blobs(*store, driver);
        blobs.write(round, 4 * kStoreBlock);
        blobs.check(round);
    }
    note(std::to_string(kRounds) + " times");
}

void test_opened_in_reset(const std::string& driver, const Places& places) {
    const pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        const int fd = open(reset_file(driver, places.at(0)).c_str(), O_WRONLY);
        _exit(write(fd, "1", 1) == 1 ? 0 : 1);
    }
    usleep(20'000);  // the reset takes 100 ms
    auto store = open_store(driver, places);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the disk is reset");
    Blobs blobs(*store, driver);
    blobs.write(0, 4 * kStoreBlock);
    blobs.check(0);
    store.reset();
    const std::string bound =
        std::filesystem::read_symlink("/sys/bus/pci/devices/" + places.at(0) + "/driver").filename();
    CHECK(bound == "vfio-pci", "the disk stays with vfio-pci, and is not given to %s", bound.c_str());
}

void test_timeout(const std::string& driver, const Places& places) {
    // The first write is done at once; the throttled disk takes five seconds for the second.
    constexpr uint64_t kCommands = 2, kBlocks = 16;
    Opened opened = open_driver(driver, places, 2000);
    const uint64_t nbytes = kBlocks * kStoreBlock;
    fastio::Mapping mapping(kCommands * nbytes);
    const std::string refusal = opened.driver->map_memory(mapping.data(), mapping.nbytes());
    CHECK(refusal.empty(), "%s", refusal.c_str());
    Model model(1, {kCommands * kBlocks});
    std::string words;
    uint64_t failures = 0;
    for (bool write : {true, false}) {
        fastio::DeviceCompletion completion;
        for (uint64_t number = 0; number < kCommands; ++number) {
            uint8_t* memory = mapping.data() + number * nbytes;
            for (uint64_t block = 0; write && block < kBlocks; ++block) {
                put_stamp(memory + block * kStoreBlock, {0, 1, number * kBlocks + block, model.run()});
            }
            opened.driver->send(
                {write, 0, opened.fds[0], memory, static_cast<uint32_t>(nbytes), number * nbytes, number});
        }
        opened.driver->flush();
        for (uint64_t left = kCommands; left > 0;) {
            if (!opened.driver->reap(completion)) {
                opened.driver->wait();
                continue;
            }
            --left;
            const bool failed = completion.result < 0;
            const std::string error = describe(driver, write, 0, completion.tag * kBlocks, completion);
            CHECK(!failed || write, "reads after the timeout succeed: %s", error.c_str());
            if (write) model.wrote(0, completion.tag * kBlocks, kBlocks, 1, failed);
            if (failed) words = error, ++failures;
            if (write) continue;
            const std::string wrong =
                model.judge_read(0, completion.tag * kBlocks, kBlocks, mapping.data() + completion.tag * nbytes);
            CHECK(wrong.empty(), "%s", wrong.c_str());
        }
    }
    // The emulated disk finishes its commands before a reset. The kernel then counts them as done; the driver vfio has
    // failed them.
    CHECK(failures > 0 || driver != "vfio", "a write times out");
    opened.driver->unmap_memory(mapping.data());
    note(failures == 0 ? "done after a wait" : std::to_string(failures) + " failed: " + words);
}

}  // namespace rig
