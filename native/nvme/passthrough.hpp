// A namespace behind the kernel's passthrough device, /dev/ngXnY: who it is, and how large one command may be.
#pragma once

#include <cstdint>
#include <string>

namespace fastio {

// struct nvme_passthru_cmd of <linux/nvme_ioctl.h>, and nvme_uring_cmd, whose last field is reserved.
struct PassthroughCommand {
    uint8_t opcode, flags;
    uint16_t reserved;
    uint32_t nsid, cdw2, cdw3;
    uint64_t metadata, memory;
    uint32_t metadata_bytes, nbytes;
    uint32_t cdw10, cdw11, cdw12, cdw13, cdw14, cdw15;
    uint32_t timeout_ms, result;
};
static_assert(sizeof(PassthroughCommand) == 72);

struct PassthroughNamespace {
    int fd;
    uint32_t nsid;
    uint64_t nbytes;
    uint32_t lba_bytes;
    uint64_t largest_transfer;  // bytes: a power of two, and the least of what controller and kernel take
    uint64_t memory_alignment;  // of addresses that the device reaches; the kernel would copy others
    std::string name, model, serial;
};

// By Identify, and by /sys where that can be read. Throws Refused, with what would help, for what is no namespace, or
// none that a block store can use.
PassthroughNamespace identify_passthrough(int fd);

}  // namespace fastio
