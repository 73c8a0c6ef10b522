#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "block_store.hpp"
#include "python_io.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

using Release = nb::call_guard<nb::gil_scoped_release>;
// errno, write, device, LBA, stuck
using FailureTuple = std::tuple<int, bool, unsigned, uint64_t, bool>;

std::optional<FailureTuple> as_tuple(const std::optional<BlockStore::Failure>& failure) {
    if (!failure) return std::nullopt;
    return FailureTuple{failure->error, failure->write, failure->device, failure->lba, failure->stuck};
}

// The driver is made first: where it cannot work, the descriptors stay the caller's.
BlockStore* make(const std::vector<std::tuple<int, uint64_t>>& devices, uint64_t limit_blocks,
                 const std::string& driver, uint64_t memory_alignment) {
    std::unique_ptr<StoreDriver> made = make_store_driver(driver);
    std::vector<StoreDevices::Device> list;
    for (const auto& [fd, fixed_blocks] : devices) list.push_back({fd, fixed_blocks});
    auto owned = std::make_unique<StoreDevices>(std::move(list), limit_blocks);
    return new BlockStore(std::move(owned), std::move(made), memory_alignment);
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
    return result;
}

}  // namespace

void bind_store(nb::module_& module) {
    nb::class_<BlockStore>(module, "BlockStore", "Blocks on files or devices, by index; see fastio/offload/store.py.")
        .def(nb::new_(&make), "devices"_a, "limit_blocks"_a, "driver"_a, "memory_alignment"_a)
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
            "index"_a, Release(), "Whether it is done, and then how it failed, if it did.")
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
        .def("close", &BlockStore::close, Release())
        .def("set_recording", &BlockStore::set_recording, "recording"_a, Release())
        .def("trace", &trace)
        .def("notes", &BlockStore::notes, Release())
        .def("stats", &stats);
}

}  // namespace fastio
