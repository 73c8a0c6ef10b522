#ifdef FASTIO_SPDK

#include "spdk/device.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "block_store/devices.hpp"
#include "nvme/wire.hpp"
#include "support/errors.hpp"

namespace fastio {

namespace {

constexpr unsigned kRecoveries = 3;
constexpr unsigned kPollsPerAdminPoll = 1024;  // the admin queue reports events and lost controllers, nothing urgent
constexpr uint64_t kTimeout = 30'000'000;      // microseconds, as in Linux's driver
constexpr uint64_t kLargest = 1 << 20;

std::string trimmed(const int8_t* text, size_t size) {
    std::string found(reinterpret_cast<const char*>(text), size);
    found.erase(found.find_last_not_of(" \0", std::string::npos, 2) + 1);
    return found;
}

void on_timeout(void* argument, spdk_nvme_ctrlr*, spdk_nvme_qpair*, uint16_t) {
    static_cast<SpdkController*>(argument)->timed_out = true;
}

// Returns N of "ns=N" or "ns:N", which SPDK does not parse; 0 if there is none.
uint32_t namespace_of(const std::string& id) {
    for (size_t at = id.find("ns"); at != std::string::npos; at = id.find("ns", at + 2)) {
        bool is_key = at == 0 || std::strchr(" \t\n", id[at - 1]) != nullptr;
        if (is_key && at + 2 < id.size() && (id[at + 2] == '=' || id[at + 2] == ':')) {
            return static_cast<uint32_t>(std::strtoul(id.c_str() + at + 3, nullptr, 10));
        }
    }
    return 0;
}

}  // namespace

SpdkController::SpdkController(const spdk_nvme_transport_id& where, const std::string& name) : where_(where) {
    spdk_nvme_ctrlr_opts options;
    spdk_nvme_ctrlr_get_default_ctrlr_opts(&options, sizeof(options));
    options.keep_alive_timeout_ms = 0;  // off: an idle store does not poll, for any length of time
    controller_ = spdk_nvme_connect(&where_, &options, sizeof(options));
    if (controller_ == nullptr) {
        throw Refused("SPDK does not reach a controller at '" + name +
                      "': check that it is present, bound to vfio-pci and unused by other processes; see `fastio-bench "
                      "doctor`");
    }
    spdk_nvme_ctrlr_register_timeout_callback(controller_, kTimeout, kTimeout, on_timeout, this);
}

SpdkController::~SpdkController() { static_cast<void>(spdk_nvme_detach(controller_)); }

bool SpdkController::is_at(const spdk_nvme_transport_id& where) const {
    return spdk_nvme_transport_id_compare(&where_, &where) == 0;
}

SpdkDevice::SpdkDevice(std::shared_ptr<SpdkController> controller, const std::string& id,
                       std::deque<DeviceCompletion>& completions)
    : controller_(std::move(controller)), id_(id), completions_(completions), nsid_(namespace_of(id)) {
    if (nsid_ == 0) nsid_ = spdk_nvme_ctrlr_get_first_active_ns(controller_->get());
    find_namespace();
    const uint32_t lba_bytes = spdk_nvme_ns_get_sector_size(namespace_);
    const nvme::NamespaceData data{spdk_nvme_ns_get_num_sectors(namespace_), lba_bytes,
                                   spdk_nvme_ns_get_md_size(namespace_)};
    if (const std::string reason = nvme::unusable_reason(data, kStoreBlock); !reason.empty()) {
        throw Refused("the namespace at '" + id_ + "'" + reason);
    }
    spdk_nvme_io_qpair_opts options;
    spdk_nvme_ctrlr_get_default_io_qpair_opts(controller_->get(), &options, sizeof(options));
    options.delay_cmd_submit = true;  // one doorbell write for all commands of a poll
    queue_ = spdk_nvme_ctrlr_alloc_io_qpair(controller_->get(), &options, sizeof(options));
    if (queue_ == nullptr) throw Refused("the controller at '" + id_ + "' gives no I/O queue");
}

SpdkDevice::~SpdkDevice() {
    if (queue_ != nullptr) spdk_nvme_ctrlr_free_io_qpair(queue_);
}

void SpdkDevice::find_namespace() {
    namespace_ = nsid_ == 0 ? nullptr : spdk_nvme_ctrlr_get_ns(controller_->get(), nsid_);
    if (namespace_ == nullptr || !spdk_nvme_ns_is_active(namespace_)) {
        throw Refused("the controller at '" + id_ + "' has no active namespace" +
                      (nsid_ == 0 ? std::string() : " " + std::to_string(nsid_)));
    }
}

StoreDriver::Device SpdkDevice::describe() const {
    const spdk_nvme_ctrlr_data* data = spdk_nvme_ctrlr_get_data(controller_->get());
    return {id_, spdk_nvme_ns_get_size(namespace_) / kStoreBlock, spdk_nvme_ns_get_sector_size(namespace_),
            trimmed(data->mn, sizeof(data->mn)), trimmed(data->sn, sizeof(data->sn))};
}

uint64_t SpdkDevice::largest_transfer() const {
    uint64_t most = std::min<uint64_t>(spdk_nvme_ns_get_max_io_xfer_size(namespace_), kLargest);
    return std::max(most / kStoreBlock * kStoreBlock, kStoreBlock);
}

void SpdkDevice::send(const DeviceCommand& command) {
    waiting_.push_back(command);
    submit_waiting();
}

int SpdkDevice::submit(const DeviceCommand& command) {
    uint32_t lba = spdk_nvme_ns_get_sector_size(namespace_);
    auto* running = new Running{this, command.tag, command.nbytes};
    auto move = command.write ? spdk_nvme_ns_cmd_write : spdk_nvme_ns_cmd_read;
    const uint32_t flags = command.durable ? SPDK_NVME_IO_FLAGS_FORCE_UNIT_ACCESS : 0;
    int failed =
        move(namespace_, queue_, command.memory, command.offset / lba, command.nbytes / lba, done, running, flags);
    if (failed != 0) delete running;
    return failed;
}

void SpdkDevice::submit_waiting() {
    while (queue_ != nullptr && !waiting_.empty()) {
        DeviceCommand command = waiting_.front();
        int failed = submit(command);
        // The queue is full, or it failed and poll() will recover it. If nothing runs, nothing will make room.
        if ((failed == -ENOMEM && running_ > 0) || failed == -ENXIO) return;
        waiting_.pop_front();
        if (failed == 0) {
            ++running_;
        } else {
            completions_.push_back({command.tag, failed, 0});
        }
    }
}

void SpdkDevice::poll() {
    if (queue_ == nullptr) return give_up(EIO);
    if (++polls_ % kPollsPerAdminPoll == 0) spdk_nvme_ctrlr_process_admin_completions(controller_->get());
    bool lost = spdk_nvme_qpair_process_completions(queue_, 0) < 0;
    if (lost || controller_->timed_out) recover();
    submit_waiting();
    // With delay_cmd_submit, SPDK writes the doorbell when completions are processed.
    if (queue_ != nullptr && running_ > 0 && spdk_nvme_qpair_process_completions(queue_, 0) < 0) recover();
}

void SpdkDevice::recover() {
    if (++recoveries_ > kRecoveries) return give_up(EIO);
    bool reset = controller_->timed_out || spdk_nvme_ctrlr_is_failed(controller_->get());
    controller_->timed_out = false;
    int failed = reset ? -ENXIO : spdk_nvme_ctrlr_reconnect_io_qpair(queue_);
    if (failed != 0 && failed != -ENODEV) {
        if (spdk_nvme_ctrlr_reset(controller_->get()) != 0) return give_up(EIO);
        failed = spdk_nvme_ctrlr_reconnect_io_qpair(queue_);
    }
    if (failed == -ENODEV) return give_up(ENODEV);
    if (failed != 0) return;  // the next poll finds the queue lost again
    try {
        find_namespace();  // a reset may have replaced the object
    } catch (const Refused&) {
        give_up(ENODEV);
    }
}

void SpdkDevice::give_up(int error) {
    if (queue_ != nullptr) {
        recoveries_ = kRecoveries + 1;
        spdk_nvme_qpair* queue = queue_;
        queue_ = nullptr;
        spdk_nvme_ctrlr_free_io_qpair(queue);  // calls done() for the running commands
    }
    for (const DeviceCommand& command : waiting_) completions_.push_back({command.tag, -error, 0});
    waiting_.clear();
}

void SpdkDevice::done(void* argument, const spdk_nvme_cpl* completion) {
    std::unique_ptr<Running> running(static_cast<Running*>(argument));
    SpdkDevice& device = *running->device;
    --device.running_;
    uint16_t status = completion->status_raw >> 1;  // without the phase bit
    if (!spdk_nvme_cpl_is_error(completion)) {
        device.recoveries_ = 0;
        device.completions_.push_back({running->tag, static_cast<int32_t>(running->nbytes), 0});
        return;
    }
    // Aborted with its queue by a recovery: ECANCELED lets the store send it again, unless the device was given up.
    bool aborted =
        completion->status.sct == SPDK_NVME_SCT_GENERIC && completion->status.sc == SPDK_NVME_SC_ABORTED_SQ_DELETION;
    int error = aborted && device.recoveries_ <= kRecoveries ? ECANCELED : EIO;
    device.completions_.push_back({running->tag, -error, status});
}

}  // namespace fastio

#endif
