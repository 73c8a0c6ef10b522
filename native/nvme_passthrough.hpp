// A namespace behind the kernel's passthrough device, /dev/ngXnY: who it is, and how large one command may be.
#pragma once

#include <cstdint>
#include <string>

namespace fastio {

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
