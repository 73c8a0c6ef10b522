// The status of an NVMe command, in words.
#pragma once

#include <cstdint>
#include <string>

namespace fastio {

// `status` is the completion's field without its phase bit: Do Not Retry (bit 14), More (13), Command Retry Delay
// (12:11), type (10:8), code (7:0). Gives such as "LBA out of range (0x80)"; a code that is not known, by its type.
std::string nvme_status_words(uint16_t status);

// Whether the controller says that the same command may succeed if it is sent again.
constexpr bool nvme_may_retry(uint16_t status) { return (status & 0x4000U) == 0; }

}  // namespace fastio
