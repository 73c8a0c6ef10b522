// NVMe data structures (NVM Express Base and NVM Command Set specifications, 2.0), shared by the drivers. Numbers are
// little-endian, so this machine must be, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace fastio::nvme {

constexpr uint64_t kPage = 4096;  // the page size of PRPs, which the controller is set to, and of Identify data

// A submission queue entry.
struct Command {
    uint8_t opcode;
    uint8_t flags;  // 0: PRPs, not fused
    uint16_t id;
    uint32_t nsid;
    uint32_t cdw2, cdw3;
    uint64_t metadata;
    uint64_t prp1, prp2;
    uint32_t cdw10, cdw11, cdw12, cdw13, cdw14, cdw15;
};
static_assert(sizeof(Command) == 64);

// A completion queue entry.
struct Completion {
    uint32_t result;
    uint32_t reserved;
    uint16_t sq_head;
    uint16_t sq_id;
    uint16_t id;
    uint16_t status;  // bit 0 is the phase; see status.hpp for the rest
};
static_assert(sizeof(Completion) == 16);

enum AdminOpcode : uint8_t {
    kCreateIoSq = 0x01,
    kCreateIoCq = 0x05,
    kIdentify = 0x06,
    kSetFeatures = 0x09,
};

enum IoOpcode : uint8_t { kWrite = 0x01, kRead = 0x02 };

// The data structures that Identify returns (CNS).
enum IdentifyStructure : uint32_t { kNamespace = 0, kController = 1, kActiveNamespaces = 2 };

constexpr uint32_t kNumberOfQueues = 0x07;  // a feature id

// Read and Write have the first LBA in cdw10 and cdw11, and the count minus one in the low half of cdw12.
constexpr uint32_t kMaxLbas = 1 << 16;

// In CDW12 of a write: it completes when the data are on the medium.
constexpr uint32_t kForceUnitAccess = uint32_t{1} << 30;

template <typename AnyCommand>  // Command or PassthroughCommand
void set_lbas(AnyCommand& command, uint64_t first, uint32_t count) {
    command.cdw10 = static_cast<uint32_t>(first);
    command.cdw11 = static_cast<uint32_t>(first >> 32);
    command.cdw12 = count - 1;
}

// The controller data that the drivers use.
struct ControllerData {
    std::string serial, model;
    uint8_t mdts;  // the largest transfer is 2^mdts pages of the smallest size; 0: no limit
    uint32_t namespaces;

    // In bytes, for a smallest page of 2^(12 + mpsmin) bytes (CAP.MPSMIN); at most `most`.
    uint64_t largest_transfer(unsigned mpsmin, uint64_t most) const {
        const unsigned shift = 12 + mpsmin + mdts;
        return mdts == 0 || shift > 63 || (uint64_t{1} << shift) > most ? most : uint64_t{1} << shift;
    }
};

// The namespace data that the drivers use.
struct NamespaceData {
    uint64_t lbas;            // 0: the namespace is missing or not attached
    uint32_t lba_bytes;       // 0: an invalid size
    uint32_t metadata_bytes;  // per LBA
};

// Parses the 4096 bytes that Identify returns.
inline ControllerData parse_controller(const uint8_t* page) {
    auto text = [page](size_t offset, size_t nbytes) {
        std::string found(reinterpret_cast<const char*>(page + offset), nbytes);
        const size_t end = found.find_last_not_of(std::string(" \0", 2));
        return found.substr(0, end == std::string::npos ? 0 : end + 1);
    };
    ControllerData data{text(4, 20), text(24, 40), page[77], 0};
    std::memcpy(&data.namespaces, page + 516, sizeof data.namespaces);
    return data;
}

inline NamespaceData parse_namespace(const uint8_t* page) {
    NamespaceData data{};
    std::memcpy(&data.lbas, page, sizeof data.lbas);
    // Format indices above 15 use two more bits, above the metadata bit (NVM Command Set, figure 97).
    const unsigned index = (page[26] & 0x0fU) | (page[26] & 0x60U) >> 1;
    const uint8_t* format = page + 128 + size_t{4} * index;
    uint16_t metadata = 0;
    std::memcpy(&metadata, format, sizeof metadata);
    data.metadata_bytes = metadata;
    data.lba_bytes = format[2] >= 9 && format[2] < 32 ? uint32_t{1} << format[2] : 0;
    return data;
}

// Returns why a store with blocks of `block_bytes` cannot use a namespace, as the end of a sentence that begins with
// its name; empty if it can. Without metadata there is no protection information either.
inline std::string unusable_reason(const NamespaceData& data, uint64_t block_bytes) {
    if (data.lbas == 0) return " is not there, or not attached to this controller";
    const std::string cure = " (nvme format --lbaf, which erases it)";
    if (data.metadata_bytes != 0) {
        return " is formatted with " + std::to_string(data.metadata_bytes) +
               " bytes of metadata in each block, which a block store does not write: format it without" + cure;
    }
    if (data.lba_bytes == 0 || block_bytes % data.lba_bytes != 0) {
        return " has blocks of " + std::to_string(data.lba_bytes) + " bytes, which do not divide " +
               std::to_string(block_bytes) + ": format it with blocks of 512 or 4096" + cure;
    }
    if (data.lbas < block_bytes / data.lba_bytes) return " has no room for a block";
    return {};
}

}  // namespace fastio::nvme
