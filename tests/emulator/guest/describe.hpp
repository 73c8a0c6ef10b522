// Describes errors in words, and checks for injected ones.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "block_store/store.hpp"
#include "devices.hpp"
#include "nvme/status.hpp"
#include "tests/support/check.hpp"

namespace rig {

constexpr uint16_t kCode = 0x7ff;  // type and code, without More and Do Not Retry
constexpr uint16_t kWriteFault = 0x280, kUnrecoveredRead = 0x281;

inline std::string describe(const std::string& driver, bool write, unsigned device, uint64_t block, int error,
                            uint16_t status) {
    return "driver " + driver + ": " + (write ? "write" : "read") + " of device " + std::to_string(device) +
           " at block " + std::to_string(block) + ": " +
           (status == 0 ? std::string(std::strerror(error)) : fastio::nvme_status_words(status));
}

inline std::string describe(const std::string& driver, bool write, unsigned device, uint64_t block,
                            const fastio::DeviceCompletion& completion) {
    return describe(driver, write, device, block, -completion.result, completion.status);
}

inline std::string describe(const std::string& driver, const fastio::BlockStore::Failure& failure) {
    return describe(driver, failure.write, failure.device, failure.lba, failure.error, failure.status);
}

// Checks that an error is that of a failing medium: its NVMe status, or the errno that the kernel translates it to.
inline void check_injected(const std::string& driver, bool write, int error, uint16_t status) {
    if (knows_status(driver)) {
        CHECK(error == EIO, "EIO, not errno %d", error);
        CHECK((status & kCode) == (write ? kWriteFault : kUnrecoveredRead), "a media error, not status %s",
              fastio::nvme_status_words(status).c_str());
    } else {
        CHECK(error == ENODATA && status == 0, "ENODATA without a status, not errno %d, status %u", error, status);
    }
}

}  // namespace rig
