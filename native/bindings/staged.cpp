#include "transfer/staged.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/values.hpp"
#include "device/cuda.hpp"
#include "memory/memory.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastio {

namespace {

using Result = std::pair<std::vector<uint32_t>, bool>;

StagedPlaces places_from(std::vector<int> devices, uintptr_t copies, size_t extents) {
    if (devices.size() != extents) throw nb::value_error("expected one device for each extent");
    if (copies == 0 && std::count(devices.begin(), devices.end(), kHost) != static_cast<ptrdiff_t>(extents)) {
        throw nb::value_error("memory of a device needs copies");
    }
    return {std::move(devices), reinterpret_cast<const DeviceCopies*>(copies)};
}

StagedMemory memory_from(const std::vector<uintptr_t>& buffers, uint64_t window) {
    if (buffers.empty() || window == 0 || window % kPage != 0) {
        throw nb::value_error("expected staging buffers, and windows of whole pages");
    }
    StagedMemory memory{{}, window};
    for (uintptr_t buffer : buffers) memory.buffers.push_back(reinterpret_cast<uint8_t*>(buffer));
    return memory;
}

Result py_staged_read(int fd, int direct, uint64_t size, nb::handle extents, nb::handle span, std::vector<int> devices,
                      uintptr_t copies, const std::vector<uintptr_t>& buffers, uint64_t window, Control& control) {
    const Extents image(extents_from(extents), size);
    const Span region = span_from(span);
    const StagedPlaces places = places_from(std::move(devices), copies, image.all().size());
    const StagedMemory memory = memory_from(buffers, window);
    nb::gil_scoped_release release;
    OpenFile file(fd, direct);
    std::vector<uint32_t> checksums = staged_read(file, image, region, places, memory, control);
    return {std::move(checksums), file.was_refused()};
}

Result py_staged_write(int fd, int direct, uint64_t size, nb::handle extents, nb::handle patches,
                       std::vector<int> devices, uintptr_t copies, const std::vector<uintptr_t>& buffers,
                       uint64_t window, Control& control) {
    const Extents image(extents_from(extents), size);
    const std::vector<Patch> sites = patches_from(patches, image.all().size());
    const StagedPlaces places = places_from(std::move(devices), copies, image.all().size());
    const StagedMemory memory = memory_from(buffers, window);
    nb::gil_scoped_release release;
    OpenFile file(fd, direct);
    std::vector<uint32_t> checksums = staged_write(file, size, image, sites, places, memory, control);
    return {std::move(checksums), file.was_refused()};
}

}  // namespace

void bind_staged(nb::module_& module) {
    module.def("cuda_copies", [] { return reinterpret_cast<uintptr_t>(cuda_copies()); });
    module.def(
        "cuda_copy",
        [](uintptr_t stream, const std::vector<std::tuple<uintptr_t, uintptr_t, uint64_t>>& copies, bool to_host) {
            for (const auto& [host, device, nbytes] : copies) {
                if (nbytes == 0) continue;
                cuda_copy(reinterpret_cast<void*>(stream), reinterpret_cast<void*>(to_host ? host : device),
                          reinterpret_cast<const void*>(to_host ? device : host), nbytes, to_host);
            }
        },
        "stream"_a, "copies"_a, "to_host"_a, nb::call_guard<nb::gil_scoped_release>());
    module.def("staged_read", &py_staged_read, "fd"_a, "direct"_a, "size"_a, "extents"_a, "span"_a.none(), "devices"_a,
               "copies"_a, "buffers"_a, "window"_a, "control"_a);
    module.def("staged_write", &py_staged_write, "fd"_a, "direct"_a, "size"_a, "extents"_a, "patches"_a, "devices"_a,
               "copies"_a, "buffers"_a, "window"_a, "control"_a);
}

}  // namespace fastio
