// A model of SPDK's NVMe driver in memory. NOT SPDK: see spdk/env.h.
//
// Commands wait until their queue is polled, complete in any order, access registered memory only, and return the
// status that the test has set. A call that violates SPDK's documented contract fails the test.
#include "fake_spdk.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "spdk/env.h"
#include "spdk/nvme.h"
#include "tests/support/check.hpp"

namespace {

std::mt19937_64 order(7);

struct Command {
    bool write;
    spdk_nvme_ns* ns;
    uint8_t* memory;
    uint64_t lba, count;
    spdk_nvme_cmd_cb callback;
    void* argument;
};

}  // namespace

struct spdk_nvme_ns {
    fake::Namespace* model;
};

struct spdk_nvme_qpair {
    spdk_nvme_ctrlr* ctrlr = nullptr;
    bool lost = false;
    unsigned commands = 0, idle_polls = 0;
    std::vector<Command> running;
};

struct spdk_nvme_ctrlr {
    fake::Controller* model = nullptr;
    bool remote = false;
    bool failed = false;
    spdk_nvme_ctrlr_data data{};
    std::map<uint32_t, std::unique_ptr<spdk_nvme_ns>> namespaces;
    spdk_nvme_timeout_cb on_timeout = nullptr;
    void* argument = nullptr;
    std::vector<spdk_nvme_qpair*> queues;
};

namespace fake {

World& world() {
    static World only;
    return only;
}

}  // namespace fake

namespace {

void complete(const Command& command, uint16_t type_and_code) {
    spdk_nvme_cpl cpl{};
    cpl.status_raw = static_cast<uint16_t>(type_and_code << 1 | 1);
    command.callback(command.argument, &cpl);
}

void abort_all(spdk_nvme_qpair* qpair) {
    std::vector<Command> running;
    running.swap(qpair->running);
    for (const Command& command : running) complete(command, SPDK_NVME_SC_ABORTED_SQ_DELETION);
}

bool touches(const Command& command, uint64_t lba) { return lba >= command.lba && lba < command.lba + command.count; }

bool hangs(const Command& command) {
    const auto& hanging = command.ns->model->hanging_lbas;
    return std::any_of(hanging.begin(), hanging.end(), [&](uint64_t lba) { return touches(command, lba); });
}

void carry_out(const Command& command) {
    fake::Namespace& model = *command.ns->model;
    for (const auto& [lba, status] : model.bad_lbas) {
        if (touches(command, lba)) return complete(command, status);
    }
    uint64_t nbytes = command.count * model.lba_bytes;
    uint8_t* data = model.data.data() + command.lba * model.lba_bytes;
    std::memcpy(command.write ? data : command.memory, command.write ? command.memory : data, nbytes);
    complete(command, 0);
}

bool is_registered(const uint8_t* memory, uint64_t nbytes) {
    auto begin = reinterpret_cast<uintptr_t>(memory);
    const auto& pieces = fake::world().registered;
    return std::any_of(pieces.begin(), pieces.end(),
                       [&](const auto& piece) { return piece.first <= begin && begin + nbytes <= piece.second; });
}

int submit(bool write, spdk_nvme_ns* ns, spdk_nvme_qpair* qpair, void* payload, uint64_t lba, uint32_t count,
           spdk_nvme_cmd_cb callback, void* argument) {
    fake::Controller& model = *qpair->ctrlr->model;
    if (qpair->lost || qpair->ctrlr->failed) return -ENXIO;
    if (qpair->running.size() >= model.requests) return -ENOMEM;
    fake::Namespace& space = *ns->model;
    uint64_t nbytes = uint64_t(count) * space.lba_bytes;
    CHECK(count > 0 && nbytes <= space.largest, "a command has between 1 and the largest number of bytes, not %lu",
          (unsigned long)nbytes);
    CHECK((lba + count) * space.lba_bytes <= space.data.size(), "a command lies in the namespace");
    auto* memory = static_cast<uint8_t*>(payload);
    CHECK(qpair->ctrlr->remote || is_registered(memory, nbytes), "DMA uses registered memory only");
    qpair->running.push_back({write, ns, memory, lba, count, callback, argument});
    if (model.lose_queue_in > 0 && ++qpair->commands % model.lose_queue_in == 0) {
        qpair->lost = true;
        qpair->ctrlr->failed = model.fails_with_it;
    }
    return 0;
}

std::string value_of(const std::string& text, const std::string& key) {
    size_t at = text.find(key + "=");
    if (at == std::string::npos) return {};
    at += key.size() + 1;
    return text.substr(at, text.find(' ', at) - at);
}

void put(int8_t* field, size_t size, const std::string& text) {
    std::memset(field, ' ', size);
    std::memcpy(field, text.data(), std::min(size, text.size()));
}

}  // namespace

extern "C" {

void spdk_env_opts_init(spdk_env_opts* opts) {
    CHECK(opts->opts_size == sizeof(*opts), "opts_size is set");
    opts->core_mask = "0x1";
}

int spdk_env_init(const spdk_env_opts* opts) {
    fake::World& world = fake::world();
    ++world.starts;
    world.started_with_huge_pages = !opts->no_huge;
    world.processors = opts->core_mask;
    CHECK(opts->no_huge == opts->no_pci && (!opts->no_huge || opts->mem_size > 0),
          "mem_size is set without huge pages");
    return world.start_result;
}

bool spdk_iommu_is_enabled(void) { return fake::world().iommu; }

int spdk_mem_register(void* vaddr, size_t len) {
    auto begin = reinterpret_cast<uintptr_t>(vaddr);
    if (begin % (2 << 20) != 0 || len % (2 << 20) != 0) return -EINVAL;
    for (const auto& [first, end] : fake::world().registered) {
        if (begin < end && first < begin + len) return -EBUSY;
    }
    fake::world().registered.insert({begin, begin + len});
    return 0;
}

int spdk_mem_unregister(void* vaddr, size_t len) {
    auto begin = reinterpret_cast<uintptr_t>(vaddr);
    size_t erased = fake::world().registered.erase({begin, begin + len});
    CHECK(erased == 1, "only registered memory is unregistered");
    return 0;
}

int spdk_nvme_transport_id_parse(spdk_nvme_transport_id* trid, const char* str) {
    std::string type = value_of(str, "trtype"), address = value_of(str, "traddr");
    if ((type != "PCIe" && type != "TCP") || address.empty() || address.size() >= sizeof(trid->traddr)) return -EINVAL;
    trid->trtype = type == "PCIe" ? SPDK_NVME_TRANSPORT_PCIE : SPDK_NVME_TRANSPORT_TCP;
    std::memcpy(trid->traddr, address.c_str(), address.size() + 1);
    return 0;
}

int spdk_nvme_transport_id_compare(const spdk_nvme_transport_id* one, const spdk_nvme_transport_id* two) {
    return one->trtype == two->trtype ? std::strcmp(one->traddr, two->traddr) : 1;
}

void spdk_nvme_ctrlr_get_default_ctrlr_opts(spdk_nvme_ctrlr_opts* opts, size_t) { opts->keep_alive_timeout_ms = 10000; }

spdk_nvme_ctrlr* spdk_nvme_connect(const spdk_nvme_transport_id* trid, const spdk_nvme_ctrlr_opts* opts, size_t) {
    CHECK(opts->keep_alive_timeout_ms == 0, "the keep-alive timeout is off, because an idle store does not poll");
    auto found = fake::world().controllers.find(trid->traddr);
    if (found == fake::world().controllers.end()) return nullptr;
    auto* ctrlr = new spdk_nvme_ctrlr;
    ctrlr->model = &found->second;
    ctrlr->remote = trid->trtype == SPDK_NVME_TRANSPORT_TCP;
    put(ctrlr->data.sn, sizeof(ctrlr->data.sn), "FAKE-" + found->first);
    put(ctrlr->data.mn, sizeof(ctrlr->data.mn), "a model of a controller");
    for (auto& [nsid, model] : found->second.namespaces) {
        ctrlr->namespaces[nsid] = std::make_unique<spdk_nvme_ns>(spdk_nvme_ns{&model});
    }
    ++fake::world().connected;
    return ctrlr;
}

int spdk_nvme_detach(spdk_nvme_ctrlr* ctrlr) {
    --fake::world().connected;
    delete ctrlr;
    return 0;
}

const spdk_nvme_ctrlr_data* spdk_nvme_ctrlr_get_data(spdk_nvme_ctrlr* ctrlr) { return &ctrlr->data; }

uint32_t spdk_nvme_ctrlr_get_first_active_ns(spdk_nvme_ctrlr* ctrlr) {
    for (const auto& [nsid, ns] : ctrlr->namespaces) {
        if (ns->model->active) return nsid;
    }
    return 0;
}

spdk_nvme_ns* spdk_nvme_ctrlr_get_ns(spdk_nvme_ctrlr* ctrlr, uint32_t nsid) {
    auto found = ctrlr->namespaces.find(nsid);
    return found == ctrlr->namespaces.end() ? nullptr : found->second.get();
}

void spdk_nvme_ctrlr_register_timeout_callback(spdk_nvme_ctrlr* ctrlr, uint64_t io_us, uint64_t,
                                               spdk_nvme_timeout_cb callback, void* argument) {
    CHECK(io_us >= 1'000'000, "the timeout is at least a second, not %lu us", (unsigned long)io_us);
    ctrlr->on_timeout = callback;
    ctrlr->argument = argument;
}

int32_t spdk_nvme_ctrlr_process_admin_completions(spdk_nvme_ctrlr* ctrlr) { return ctrlr->failed ? -ENXIO : 0; }

bool spdk_nvme_ctrlr_is_failed(spdk_nvme_ctrlr* ctrlr) { return ctrlr->failed; }

int spdk_nvme_ctrlr_reset(spdk_nvme_ctrlr* ctrlr) {
    fake::Controller& model = *ctrlr->model;
    ++model.resets;
    if (model.resets_that_fail > 0) {
        --model.resets_that_fail;
        return -1;
    }
    ctrlr->failed = false;
    for (spdk_nvme_qpair* qpair : ctrlr->queues) qpair->lost = true;
    for (auto& [nsid, ns] : ctrlr->namespaces) {
        ns->model->hanging_lbas.clear();
        ns = std::make_unique<spdk_nvme_ns>(*ns);  // old pointers become invalid
    }
    return 0;
}

void spdk_nvme_ctrlr_get_default_io_qpair_opts(spdk_nvme_ctrlr*, spdk_nvme_io_qpair_opts* opts, size_t) {
    *opts = {512, false};
}

spdk_nvme_qpair* spdk_nvme_ctrlr_alloc_io_qpair(spdk_nvme_ctrlr* ctrlr, const spdk_nvme_io_qpair_opts* opts, size_t) {
    CHECK(opts->delay_cmd_submit, "doorbell writes are batched");
    if (ctrlr->model->requests == 0) return nullptr;
    ++fake::world().queues;
    auto* qpair = new spdk_nvme_qpair;
    qpair->ctrlr = ctrlr;
    ctrlr->queues.push_back(qpair);
    return qpair;
}

int spdk_nvme_ctrlr_free_io_qpair(spdk_nvme_qpair* qpair) {
    abort_all(qpair);
    --fake::world().queues;
    auto& queues = qpair->ctrlr->queues;
    queues.erase(std::find(queues.begin(), queues.end(), qpair));
    delete qpair;
    return 0;
}

int spdk_nvme_ctrlr_reconnect_io_qpair(spdk_nvme_qpair* qpair) {
    if (qpair->ctrlr->model->removed) return -ENODEV;
    abort_all(qpair);
    ++qpair->ctrlr->model->reconnects;
    if (qpair->ctrlr->failed) return -ENXIO;
    qpair->lost = false;
    qpair->idle_polls = 0;
    return 0;
}

int32_t spdk_nvme_qpair_process_completions(spdk_nvme_qpair* qpair, uint32_t) {
    if (qpair->lost || qpair->ctrlr->failed || qpair->ctrlr->model->removed) return -ENXIO;
    std::shuffle(qpair->running.begin(), qpair->running.end(), order);
    auto ready = std::partition(qpair->running.begin(), qpair->running.end(), hangs);
    if (ready != qpair->running.end()) ready += static_cast<long>(order() % 2);  // one of them takes longer
    std::vector<Command> taken(std::min(ready, qpair->running.end()), qpair->running.end());
    qpair->running.resize(qpair->running.size() - taken.size());
    for (const Command& command : taken) carry_out(command);
    qpair->idle_polls = taken.empty() && !qpair->running.empty() ? qpair->idle_polls + 1 : 0;
    if (qpair->idle_polls >= fake::world().polls_to_time_out && qpair->ctrlr->on_timeout != nullptr) {
        qpair->ctrlr->on_timeout(qpair->ctrlr->argument, qpair->ctrlr, qpair, 0);
    }
    return static_cast<int32_t>(taken.size());
}

bool spdk_nvme_ns_is_active(spdk_nvme_ns* ns) { return ns->model->active; }
uint32_t spdk_nvme_ns_get_sector_size(spdk_nvme_ns* ns) { return ns->model->lba_bytes; }
uint64_t spdk_nvme_ns_get_num_sectors(spdk_nvme_ns* ns) { return ns->model->data.size() / ns->model->lba_bytes; }
uint64_t spdk_nvme_ns_get_size(spdk_nvme_ns* ns) { return ns->model->data.size(); }
uint32_t spdk_nvme_ns_get_md_size(spdk_nvme_ns* ns) { return ns->model->metadata_bytes; }
uint32_t spdk_nvme_ns_get_max_io_xfer_size(spdk_nvme_ns* ns) { return ns->model->largest; }

int spdk_nvme_ns_cmd_read(spdk_nvme_ns* ns, spdk_nvme_qpair* qpair, void* payload, uint64_t lba, uint32_t count,
                          spdk_nvme_cmd_cb callback, void* argument, uint32_t) {
    return submit(false, ns, qpair, payload, lba, count, callback, argument);
}

int spdk_nvme_ns_cmd_write(spdk_nvme_ns* ns, spdk_nvme_qpair* qpair, void* payload, uint64_t lba, uint32_t count,
                           spdk_nvme_cmd_cb callback, void* argument, uint32_t flags) {
    ++ns->model->writes;
    if ((flags & SPDK_NVME_IO_FLAGS_FORCE_UNIT_ACCESS) != 0) ++ns->model->durable_writes;
    return submit(true, ns, qpair, payload, lba, count, callback, argument);
}
}
