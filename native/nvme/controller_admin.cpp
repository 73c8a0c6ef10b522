// Admin commands: identify the controller and its namespaces, create I/O queues.
#include <algorithm>
#include <cstring>

#include "block_store/devices.hpp"
#include "nvme/controller.hpp"
#include "nvme/prp.hpp"
#include "nvme/status.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

constexpr uint32_t kContiguous = 1;

}  // namespace

uint32_t NvmeController::admin(nvme::Command command, const char* what) {
    command.id = next_admin_id_++;
    admin_.push(command);
    admin_.ring();
    const uint64_t begin = host_.now_ms();
    nvme::Completion completion;
    while (!admin_.pop(completion)) {
        const std::string stopped = stop_reason();
        if (!stopped.empty()) throw Refused(name_ + ": " + stopped + " while the controller was asked to " + what);
        if (host_.now_ms() - begin > timeout_ms_) {
            throw Refused(name_ + ": the controller did not " + what + " within " + std::to_string(timeout_ms_) +
                          " ms");
        }
        host_.pause();
    }
    if (completion.id != command.id) {
        throw Refused(name_ + ": the controller completed a command that was not sent when asked to " + what);
    }
    const auto status = static_cast<uint16_t>(completion.status >> 1);
    if (status != 0) throw Refused(name_ + ": the controller refused to " + what + ": " + nvme_status_words(status));
    return completion.result;
}

const uint8_t* NvmeController::identify(uint32_t namespace_id, nvme::IdentifyStructure structure, const char* what) {
    nvme::Command command{};
    command.opcode = nvme::kIdentify;
    command.nsid = namespace_id;
    command.prp1 = base_ + kIdentifyPage;
    command.cdw10 = structure;
    admin(command, what);
    return at(kIdentifyPage);
}

void NvmeController::identify_controller() {
    const uint8_t* page = identify(0, nvme::kController, "identify itself");
    const nvme::ControllerData data = nvme::parse_controller(page);
    serial_ = data.serial;
    model_ = data.model;
    largest_transfer_ = data.largest_transfer(0, kLargestByPrp);
    uint32_t longest_shutdown = 0;  // RTD3E, in microseconds
    std::memcpy(&longest_shutdown, page + 88, sizeof longest_shutdown);
    shutdown_ms_ = std::min(longest_shutdown / 1000, timeout_ms_);
}

std::vector<uint32_t> NvmeController::namespaces() {
    const uint8_t* page = identify(0, nvme::kActiveNamespaces, "list its namespaces");
    std::vector<uint32_t> ids;
    for (size_t number = 0; number < kPage / sizeof(uint32_t); ++number) {
        uint32_t id = 0;
        std::memcpy(&id, page + number * sizeof id, sizeof id);
        if (id == 0) break;
        ids.push_back(id);
    }
    return ids;
}

NvmeNamespace NvmeController::describe(uint32_t id) {
    const uint8_t* page = identify(id, nvme::kNamespace, "describe a namespace");
    const nvme::NamespaceData data = nvme::parse_namespace(page);
    if (const std::string reason = nvme::unusable_reason(data, kStoreBlock); !reason.empty()) {
        throw Refused(name_ + "/" + std::to_string(id) + reason);
    }
    return {id, data.lbas, data.lba_bytes};
}

void NvmeController::create_queues() {
    nvme::Command features{};
    features.opcode = nvme::kSetFeatures;
    features.cdw10 = nvme::kNumberOfQueues;
    features.cdw11 = static_cast<uint32_t>((pairs_.size() - 1) << 16 | (pairs_.size() - 1));
    const uint32_t granted = admin(features, "grant I/O queues");
    const size_t count = std::min(granted & 0xffff, granted >> 16) + size_t{1};
    if (count < pairs_.size()) pairs_.resize(count);
    for (uint32_t number = 1; number <= pairs_.size(); ++number) {
        const uint64_t commands = base_ + kPairRings + (number - 1) * pair_bytes();
        nvme::Command create{};
        create.prp1 = commands + submission_bytes();
        create.opcode = nvme::kCreateIoCq;
        create.cdw10 = (entries_ - 1) << 16 | number;
        create.cdw11 = kContiguous;  // without interrupts
        admin(create, "create a completion queue");
        create.prp1 = commands;
        create.opcode = nvme::kCreateIoSq;
        create.cdw11 = number << 16 | kContiguous;
        admin(create, "create a submission queue");
    }
}

}  // namespace fastio
