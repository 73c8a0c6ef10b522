// Converts Python values to native ones, and declares the functions that bind each part of the module.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "transfer/direct.hpp"
#include "transfer/extents.hpp"

namespace fastio {

// Convert sequences of fastio.transports.transport.Extent and Patch (any tuples with the same first fields). Of
// fastio.transports.extent_rows.ExtentRows, a Rows becomes so many extents.
std::vector<Extent> extents_from(nanobind::handle sequence);
std::vector<Patch> patches_from(nanobind::handle sequence, size_t extents);
Span span_from(nanobind::handle span);

void bind_holds(nanobind::module_& module);
void bind_weak_storage(nanobind::module_& module);
void bind_hooks(nanobind::module_& module);
void bind_waiting(nanobind::module_& module);
void bind_descriptor(nanobind::module_& module);
void bind_memory(nanobind::module_& module);
void bind_transfers(nanobind::module_& module);
void bind_staged(nanobind::module_& module);
void bind_files(nanobind::module_& module);
void bind_codec(nanobind::module_& module);
void bind_pickle(nanobind::module_& module);
void bind_store(nanobind::module_& module);
void bind_vfio(nanobind::module_& module);
void bind_header_entries(nanobind::module_& module);

}  // namespace fastio
