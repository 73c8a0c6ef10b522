// Physical region pages: how a command tells the controller where its memory is (NVMe base specification, 4.1.1).
#pragma once

#include <cstdint>

#include "nvme/wire.hpp"

namespace fastio {

constexpr unsigned kPrpsInList = nvme::kPage / sizeof(uint64_t);
// One list, which is one page: with the page that PRP1 names, enough wherever in a page the memory begins.
constexpr uint64_t kLargestByPrp = kPrpsInList * nvme::kPage;

struct Prps {
    uint64_t first, second;
};

// For `nbytes` (1 to kLargestByPrp) from a device address on, contiguous for the device, a multiple of 4. Fills `list`,
// one page that the device calls `list_address`, where two entries are too few.
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
