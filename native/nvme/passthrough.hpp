// Identifies a namespace through the kernel's passthrough device /dev/ngXnY, and finds its limits for one command.
#pragma once

#include <cstdint>
#include <string>

namespace fastio {

// struct nvme_passthru_cmd of <linux/nvme_ioctl.h>; also nvme_uring_cmd, in which the last field is reserved.
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
    uint64_t largest_transfer;  // bytes: a power of two within the limits of controller and kernel
    uint64_t memory_alignment;  // of memory that the device accesses directly; the kernel copies other memory
    std::string name, model, serial;
};

// Uses Identify, and /sys if it is readable. Throws Refused, with the cure, if the descriptor is not a namespace, or
// not one that a block store can use.
PassthroughNamespace identify_passthrough(int fd);

}  // namespace fastio
