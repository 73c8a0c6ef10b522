#include "block_store/store.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/values.hpp"
#include "nvme/status.hpp"
#include "spdk/environment.hpp"
#include "support/errors.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

using Release = nb::call_guard<nb::gil_scoped_release>;
// errno, write, device, LBA, stuck, NVMe status
using FailureTuple = std::tuple<int, bool, unsigned, uint64_t, bool, uint16_t>;

std::optional<FailureTuple> as_tuple(const std::optional<BlockStore::Failure>& failure) {
    if (!failure) return std::nullopt;
    return FailureTuple{failure->error, failure->write, failure->device, failure->lba, failure->stuck, failure->status};
}

// Makes a store on the driver's own devices, with their sizes, if the driver reports them; else on the caller's
// devices.
BlockStore* assemble(std::unique_ptr<StoreDriver> driver, std::vector<StoreDevices::Device> list, uint64_t limit_blocks,
                     uint64_t memory_alignment) {
    const std::vector<StoreDriver::Device> known = driver->devices();
    if (!known.empty()) list.resize(known.size(), {-1, 0});
    for (size_t number = 0; number < known.size(); ++number) {
        if (known[number].blocks == 0) throw Refused(known[number].name + " has no room for a block");
        list[number].fixed_blocks = known[number].blocks;
    }
    auto owned = std::make_unique<StoreDevices>(std::move(list), limit_blocks);
    return new BlockStore(std::move(owned), std::move(driver), memory_alignment);
}

// Creates the driver first: if that fails, the caller still owns the descriptors.
BlockStore* make(const std::vector<std::tuple<int, uint64_t>>& devices, uint64_t limit_blocks,
                 const std::string& driver, uint64_t memory_alignment) {
    std::vector<int> fds;
    std::vector<StoreDevices::Device> list;
    for (const auto& [fd, fixed_blocks] : devices) {
        fds.push_back(fd);
        list.push_back({fd, fixed_blocks});
    }
    return assemble(make_store_driver(driver, fds), std::move(list), limit_blocks, memory_alignment);
}

BlockStore* make_by_name(const std::vector<std::string>& devices, uint64_t limit_blocks, const std::string& driver,
                         uint64_t memory_alignment) {
    return assemble(make_store_driver(driver, devices), {}, limit_blocks, memory_alignment);
}

std::vector<std::tuple<std::string, uint64_t, uint32_t, std::string, std::string>> devices(BlockStore& store) {
    nb::gil_scoped_release release;
    std::vector<std::tuple<std::string, uint64_t, uint32_t, std::string, std::string>> result;
    for (const StoreDriver::Device& device : store.devices()) {
        result.emplace_back(device.name, device.blocks, device.lba_bytes, device.model, device.serial);
    }
    return result;
}

std::vector<std::tuple<bool, unsigned, uint64_t, uint64_t>> trace(BlockStore& store) {
    nb::gil_scoped_release release;
    std::vector<std::tuple<bool, unsigned, uint64_t, uint64_t>> result;
    for (const BlockStore::Traced& traced : store.trace()) {
        result.emplace_back(traced.write, traced.device, traced.lba, traced.blocks);
    }
    return result;
}

nb::dict stats(BlockStore& store) {
    BlockStore::Stats stats{};
    {
        nb::gil_scoped_release release;
        stats = store.stats();
    }
    nb::dict result;
    result["bytes_written"] = stats.bytes_written;
    result["bytes_read"] = stats.bytes_read;
    result["bytes_bounced"] = stats.bytes_bounced;
    result["commands_written"] = stats.commands_written;
    result["commands_read"] = stats.commands_read;
    result["bytes_used"] = stats.bytes_used;
    result["bytes_provisioned"] = stats.bytes_provisioned;
    result["commands_under_way"] = stats.commands_under_way;
    result["retries"] = stats.retries;
    result["doorbells"] = stats.doorbells;
    result["system_calls"] = stats.system_calls;
    return result;
}

}  // namespace

void bind_store(nb::module_& module) {
    module.def("why_no_spdk", &why_no_spdk, "Why this build has no SPDK driver; empty if it has one.");
    nb::class_<BlockStore>(module, "BlockStore",
                           "Blocks on files or devices, by index; see fastio/offload/stores/block_store.py.")
        .def(nb::new_(&make), "devices"_a, "limit_blocks"_a, "driver"_a, "memory_alignment"_a)
        .def(nb::new_(&make_by_name), "devices"_a, "limit_blocks"_a, "driver"_a, "memory_alignment"_a)
        .def(
            "issue",
            [](BlockStore& store, int64_t index, uintptr_t address, uint64_t nbytes, bool write) {
                store.issue(index, reinterpret_cast<uint8_t*>(address), nbytes, write);
            },
            "index"_a, "address"_a, "nbytes"_a, "write"_a, Release())
        .def("update", &BlockStore::update, Release())
        .def(
            "is_done",
            [](BlockStore& store, int64_t index) {
                std::optional<BlockStore::Failure> failure;
                bool done = store.is_done(index, failure);
                return std::tuple<bool, std::optional<FailureTuple>>{done, as_tuple(failure)};
            },
            "index"_a, Release(), "Whether it is done, and its failure, if it failed.")
        .def("finished", &BlockStore::finished, "indices"_a, Release(),
             "Those without a pending command, after an update.")
        .def(
            "wait",
            [](BlockStore& store, int64_t index) {
                std::optional<BlockStore::Failure> failure;
                store.wait(index, failure);
                return as_tuple(failure);
            },
            "index"_a, Release())
        .def("free", &BlockStore::free, "index"_a, Release())
        .def("contains", &BlockStore::contains, "index"_a, Release())
        .def(
            "map",
            [](BlockStore& store, uintptr_t address, uint64_t nbytes) {
                store.map(reinterpret_cast<uint8_t*>(address), nbytes);
            },
            "address"_a, "nbytes"_a, Release())
        .def(
            "unmap", [](BlockStore& store, uintptr_t address) { store.unmap(reinterpret_cast<uint8_t*>(address)); },
            "address"_a, Release())
        .def(
            "peek",
            [](BlockStore& store, unsigned device, uint64_t block, uintptr_t address, uint64_t nbytes) {
                std::optional<BlockStore::Failure> failure;
                store.peek(device, block, reinterpret_cast<uint8_t*>(address), nbytes, failure);
                return as_tuple(failure);
            },
            "device"_a, "block"_a, "address"_a, "nbytes"_a, Release())
        .def(
            "poke",
            [](BlockStore& store, unsigned device, uint64_t block, uintptr_t address, uint64_t nbytes) {
                std::optional<BlockStore::Failure> failure;
                store.poke(device, block, reinterpret_cast<const uint8_t*>(address), nbytes, failure);
                return as_tuple(failure);
            },
            "device"_a, "block"_a, "address"_a, "nbytes"_a, Release())
        .def("devices", &devices, "Tuples (name, blocks, LBA bytes, model, serial), if the driver reports its devices.")
        .def("close", &BlockStore::close, Release())
        .def("set_recording", &BlockStore::set_recording, "recording"_a, Release())
        .def("trace", &trace)
        .def("notes", &BlockStore::notes, Release())
        .def("stats", &stats);
    module.def("nvme_status", &nvme_status_words, "status"_a, "The meaning of an NVMe status, in words.");
}

}  // namespace fastio
