// The state of the modelled SPDK, for a test to control and inspect. NOT SPDK: see spdk/env.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fake {

struct Namespace {
    uint32_t lba_bytes = 512;
    uint32_t metadata_bytes = 0;
    uint32_t largest = 128 << 10;
    bool active = true;
    unsigned writes = 0, durable_writes = 0;
    std::vector<uint8_t> data = std::vector<uint8_t>(8 << 20);
    std::map<uint64_t, uint16_t> bad_lbas = {};  // -> type << 8 | code
    std::set<uint64_t> hanging_lbas = {};        // commands that touch one never complete
};

struct Controller {
    std::map<uint32_t, Namespace> namespaces;
    unsigned requests = 6;       // the requests of a queue
    unsigned lose_queue_in = 0;  // a queue is lost after so many commands; 0: never
    bool fails_with_it = false;  // the controller fails with the queue; only a reset recovers it
    unsigned resets_that_fail = 0;
    bool removed = false;
    unsigned resets = 0, reconnects = 0;
};

struct World {
    int start_result = 0;
    bool iommu = true;
    unsigned polls_to_time_out = 50;
    std::map<std::string, Controller> controllers;  // by traddr
    std::set<std::pair<uintptr_t, uintptr_t>> registered;
    unsigned starts = 0, connected = 0, queues = 0;
    bool started_with_huge_pages = false;
    std::string processors;
};

World& world();

}  // namespace fake
