#include "block_store/devices.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "memory/memory.hpp"
#include "support/errors.hpp"
#include "transfer/files.hpp"

namespace fastio {

namespace {

constexpr uint64_t kStripe = (1 << 20) / kStoreBlock;  // blocks: a stripe is one large command
constexpr uint64_t kStep = (256 << 20) / kStoreBlock;  // blocks: large, so that files grow rarely
constexpr uint64_t kUnlimited = std::numeric_limits<int64_t>::max() / kStoreBlock;

bool is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

// The limit that a failed growth of a file met; "" if the system has none.
std::string file_limit(int error) {
    rlimit limit{};
    if (error != EFBIG || getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
    return "; ulimit -f allows files of " + std::to_string(limit.rlim_cur) + " bytes, so raise it";
}

}  // namespace

StoreDevices::StoreDevices(std::vector<Device> devices, uint64_t limit_blocks)
    : devices_(std::move(devices)), limit_(limit_blocks == 0 ? kUnlimited : limit_blocks), sizes_(devices_.size(), 0) {
    for (size_t number = 0; number < devices_.size(); ++number) {
        uint64_t fixed = devices_[number].fixed_blocks;
        if (fixed == 0) continue;
        sizes_[number] = fixed;
        uint64_t striped = devices_.size() == 1 ? fixed : fixed / kStripe * kStripe * devices_.size();
        limit_ = std::min(limit_, striped);
    }
}

StoreDevices::~StoreDevices() { close(); }

void StoreDevices::discard() noexcept {
    for (const Device& device : devices_) {
        if (device.fd < 0 || device.fixed_blocks != 0) continue;
        // If it fails, the space is freed when the last process closes the file.
        [[maybe_unused]] int failed = ftruncate(device.fd, 0);
    }
}

void StoreDevices::close() noexcept {
    for (Device& device : devices_) {
        if (device.fd >= 0) ::close(device.fd);
        device.fd = -1;
    }
}

uint64_t StoreDevices::grow(uint64_t blocks) {
    if (blocks > limit_) {
        throw SystemError(ENOSPC,
                          "growing the store to " + std::to_string(blocks * kStoreBlock) + " bytes of " +
                              std::to_string(limit_ * kStoreBlock),
                          blocks_ * kStoreBlock);
    }
    uint64_t generous = std::min(limit_, round_up(blocks, kStep));
    try {
        allocate_each(generous);
        blocks_ = generous;
    } catch (const SystemError& error) {
        if (!is_full(error.error)) throw;
        allocate_each(blocks);
        blocks_ = blocks;
    }
    return blocks_;
}

// Allocates in every file its share of `blocks` blocks of the store.
void StoreDevices::allocate_each(uint64_t blocks) {
    uint64_t share = devices_.size() == 1 ? blocks : round_up(blocks, kStripe * devices_.size()) / devices_.size();
    for (size_t number = 0; number < devices_.size(); ++number) {
        if (sizes_[number] >= share) continue;
        try {
            allocate(devices_[number].fd, share * kStoreBlock);
        } catch (const SystemError& error) {
            std::string reason = error.operation + ": " + std::strerror(error.error);
            throw SystemError(error.error == EDQUOT ? ENOSPC : error.error,
                              "growing the store (" + reason + file_limit(error.error) + ")",
                              sizes_[number] * kStoreBlock);
        }
        sizes_[number] = share;
    }
}

StorePlace StoreDevices::locate(uint64_t lba) const {
    uint64_t count = devices_.size();
    if (count == 1) return {0, lba, kUnlimited - lba};
    uint64_t stripe = lba / kStripe, within = lba % kStripe;
    return {static_cast<unsigned>(stripe % count), stripe / count * kStripe + within, kStripe - within};
}

}  // namespace fastio
