#include "nvme/status.hpp"

#include <array>
#include <cstdio>

namespace fastio {

namespace {

struct KnownStatus {
    uint16_t status;  // type and code
    const char* words;
};

// The statuses of Identify, queue creation, reads and writes (NVM Express Base Specification 2.0, figures 94 to 102,
// and the NVM Command Set specification).
constexpr KnownStatus kKnown[] = {
    {0x000, "success"},
    {0x001, "invalid command opcode"},
    {0x002, "invalid field in command"},
    {0x003, "command ID conflict"},
    {0x004, "data transfer error"},
    {0x005, "aborted due to power loss"},
    {0x006, "internal error"},
    {0x007, "abort requested"},
    {0x008, "aborted due to deletion of its submission queue"},
    {0x009, "aborted due to a failed fused command"},
    {0x00a, "aborted due to a missing fused command"},
    {0x00b, "invalid namespace or format"},
    {0x00c, "command sequence error"},
    {0x00d, "invalid SGL segment descriptor"},
    {0x00e, "invalid number of SGL descriptors"},
    {0x00f, "data SGL length invalid"},
    {0x011, "SGL descriptor type invalid"},
    {0x012, "invalid use of the controller memory buffer"},
    {0x013, "PRP offset invalid"},
    {0x014, "atomic write unit exceeded"},
    {0x015, "operation denied"},
    {0x01c, "sanitize failed"},
    {0x01d, "sanitize in progress"},
    {0x01e, "SGL data block granularity invalid"},
    {0x020, "namespace is write protected"},
    {0x021, "command interrupted"},
    {0x022, "transient transport error"},
    {0x023, "prohibited by the command and feature lockdown"},
    {0x024, "admin command media not ready"},
    {0x080, "LBA out of range"},
    {0x081, "capacity exceeded"},
    {0x082, "namespace not ready"},
    {0x083, "reservation conflict"},
    {0x084, "format in progress"},
    {0x100, "completion queue invalid"},
    {0x101, "invalid queue identifier"},
    {0x102, "invalid queue size"},
    {0x103, "abort command limit exceeded"},
    {0x108, "invalid interrupt vector"},
    {0x10c, "invalid queue deletion"},
    {0x10d, "feature identifier not saveable"},
    {0x10e, "feature not changeable"},
    {0x10f, "feature not namespace specific"},
    {0x11a, "namespace not attached"},
    {0x180, "conflicting attributes"},
    {0x181, "invalid protection information"},
    {0x182, "attempted write to a read-only range"},
    {0x183, "command size limit exceeded"},
    {0x1b8, "zoned boundary error"},
    {0x1b9, "zone is full"},
    {0x1ba, "zone is read only"},
    {0x1bb, "zone is offline"},
    {0x1bc, "zone invalid write"},
    {0x280, "write fault"},
    {0x281, "unrecovered read error"},
    {0x282, "end-to-end guard check error"},
    {0x283, "end-to-end application tag check error"},
    {0x284, "end-to-end reference tag check error"},
    {0x285, "compare failure"},
    {0x286, "access denied"},
    {0x287, "deallocated or unwritten logical block"},
    {0x288, "end-to-end storage tag check error"},
    {0x300, "internal path error"},
    {0x301, "asymmetric access persistent loss"},
    {0x302, "asymmetric access inaccessible"},
    {0x303, "asymmetric access transition"},
    {0x360, "controller pathing error"},
    {0x370, "host pathing error"},
    {0x371, "aborted by the host"},
};

const char* type_of(unsigned type) {
    constexpr std::array<const char*, 8> kTypes = {"unknown generic status", "unknown command-specific status",
                                                   "unknown media error",    "unknown path error",
                                                   "reserved status type",   "reserved status type",
                                                   "reserved status type",   "vendor-specific status"};
    return kTypes[type];
}

}  // namespace

std::string nvme_status_words(uint16_t status) {
    const auto code = static_cast<uint16_t>(status & 0x7ffU);
    const char* words = type_of(code >> 8);
    for (const KnownStatus& known : kKnown) {
        if (known.status == code) words = known.words;
    }
    char number[16];
    std::snprintf(number, sizeof number, " (0x%02x)", static_cast<unsigned>(code));
    return std::string(words) + number;
}

}  // namespace fastio
