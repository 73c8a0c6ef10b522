// How staged transfers scale, on a modelled machine. All speeds are modelled ones: see clocked_machine.hpp.
#include <cstdio>
#include <vector>

#include "memory/memory.hpp"
#include "tests/support/check.hpp"
#include "tests/transfer/clocked_machine.hpp"
#include "transfer/staged.hpp"

namespace {

constexpr uint64_t kWindow = 2 << 20;
constexpr uint64_t kTensor = (8 << 20) + 4096 + 64;  // so that windows hold parts of two
constexpr size_t kTensors = 128;

// The modelled speed of a transfer of 128 tensors, in bytes per second.
double speed(bool write, unsigned workers, const ModelledMachine& machine) {
    std::vector<fastio::Extent> extents;
    auto* nowhere = reinterpret_cast<uint8_t*>(uintptr_t{1} << 40);  // no byte is moved
    for (size_t index = 0; index < kTensors; ++index) {
        extents.push_back({index * kTensor, kTensor, nowhere + index * 2 * kTensor, false});
    }
    const uint64_t size = kTensors * kTensor;
    fastio::Mapping staging(workers * 2 * kWindow);
    fastio::StagedMemory memory{{}, kWindow};
    for (unsigned worker = 0; worker < workers; ++worker) {
        memory.buffers.push_back(staging.data() + worker * 2 * kWindow);
    }
    Clocks clocks(workers);
    ClockedFile file(clocks, machine);
    const ClockedDevice device(clocks, machine);
    const fastio::StagedPlaces places{std::vector<int>(kTensors, 0), device.copies()};
    fastio::Control control;
    if (write) {
        fastio::staged_write(file, size, fastio::Extents(extents, size), {}, places, memory, control);
    } else {
        fastio::staged_read(file, fastio::Extents(extents, size), {}, places, memory, control);
    }
    // The host copies each byte once, from or to the file: all copies of the device are from or to staging memory.
    CHECK(file.moved == size && device.copied() == size, "the host copied %.3f bytes for each byte",
          static_cast<double>(file.moved) / static_cast<double>(size));
    const double found = static_cast<double>(size) / clocks.end();
    std::printf("modelled: %s, %2u workers: %5.2f GB/s\n", write ? "save" : "load", workers, found / 1e9);
    return found;
}

void test_a_warm_load_reaches_the_slowest_part() {
    ModelledMachine machine;
    machine.file_each = 5e9;  // a page cache
    machine.file_all = 40e9;
    machine.bus = 55e9;
    machine.request = 512 << 10;
    for (const unsigned workers : {1U, 2U, 4U, 8U, 16U}) {
        const double slowest = std::min(workers * machine.file_each, machine.file_all);
        CHECK(speed(false, workers, machine) >= 0.9 * slowest, "of %.1f GB/s", slowest / 1e9);
    }
    machine.bus = 12e9;
    for (const unsigned workers : {4U, 8U, 16U}) {
        CHECK(speed(false, workers, machine) >= 0.95 * machine.bus, "of the bus");
    }
}

void test_a_cold_load_reaches_the_disk() {
    ModelledMachine machine;
    machine.file_all = 12e9;  // a disk
    machine.file_latency = 100e-6;
    machine.bus = 55e9;
    for (const unsigned workers : {2U, 4U, 8U, 16U}) {
        CHECK(speed(false, workers, machine) >= 0.95 * machine.file_all, "of the disk");
    }
    machine.file_latency = 1e-3;  // each worker reads a window in 1.2 ms
    CHECK(speed(false, 4, machine) >= 1.95 * speed(false, 2, machine), "four workers wait at the same time");
}

void test_a_save_reaches_the_disk_while_it_copies_from_the_device() {
    ModelledMachine machine;
    machine.file_all = 6e9;
    machine.file_latency = 100e-6;
    machine.bus = 12e9;
    CHECK(speed(true, 4, machine) >= 0.95 * machine.file_all, "of the disk");
    machine.file_latency = 0;
    CHECK(speed(true, 1, machine) >= 0.95 * machine.file_all, "one worker copies and writes at the same time");
}

}  // namespace

int main() {
    test_a_warm_load_reaches_the_slowest_part();
    test_a_cold_load_reaches_the_disk();
    test_a_save_reaches_the_disk_while_it_copies_from_the_device();
    return 0;
}
