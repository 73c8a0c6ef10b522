// Describes the status of an NVMe command in words.
#pragma once

#include <cstdint>
#include <string>

namespace fastio {

// `status` is the completion's field without its phase bit: Do Not Retry (bit 14), More (13), Command Retry Delay
// (12:11), type (10:8), code (7:0). Returns a text such as "LBA out of range (0x80)"; for an unknown code, its type.
std::string nvme_status_words(uint16_t status);

// Whether the status allows a retry of the same command.
constexpr bool nvme_may_retry(uint16_t status) { return (status & 0x4000U) == 0; }

}  // namespace fastio
