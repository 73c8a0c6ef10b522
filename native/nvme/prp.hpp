// Physical region pages (PRPs): how a command describes its memory (NVMe base specification, 4.1.1).
#pragma once

#include <cstdint>

#include "nvme/wire.hpp"

namespace fastio {

constexpr unsigned kPrpsInList = nvme::kPage / sizeof(uint64_t);
// The limit of one list, which is one page. With the page of PRP1 it suffices wherever in a page the memory begins.
constexpr uint64_t kLargestByPrp = kPrpsInList * nvme::kPage;

struct Prps {
    uint64_t first, second;
};

// Returns the PRPs for `nbytes` (1 to kLargestByPrp) from a device address on, a multiple of 4, in contiguous device
// addresses. If two entries are too few, fills `list`, one page at device address `list_address`.
inline Prps make_prps(uint64_t address, uint64_t nbytes, uint64_t* list, uint64_t list_address) {
    const uint64_t first = nvme::kPage - address % nvme::kPage;  // bytes in PRP1's page
    if (nbytes <= first) return {address, 0};
    uint64_t page = address + first;
    const uint64_t end = address + nbytes;
    if (end - page <= nvme::kPage) return {address, page};
    for (uint64_t* entry = list; page < end; page += nvme::kPage) *entry++ = page;
    return {address, list_address};
}

}  // namespace fastio
