// Tests NVMe data structures: statuses in words, Identify data, LBAs of Read and Write.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "nvme/status.hpp"
#include "nvme/wire.hpp"
#include "tests/support/check.hpp"

namespace {

using namespace fastio;

void test_statuses_in_words() {
    const std::vector<std::pair<uint16_t, std::string>> expected = {
        {0x000, "success (0x00)"},
        {0x004, "data transfer error (0x04)"},
        {0x006, "internal error (0x06)"},
        {0x007, "abort requested (0x07)"},
        {0x020, "namespace is write protected (0x20)"},
        {0x080, "LBA out of range (0x80)"},
        {0x4080, "LBA out of range (0x80)"},  // with Do Not Retry
        {0x081, "capacity exceeded (0x81)"},
        {0x182, "attempted write to a read-only range (0x182)"},
        {0x280, "write fault (0x280)"},
        {0x281, "unrecovered read error (0x281)"},
        {0x6281, "unrecovered read error (0x281)"},  // with Do Not Retry and More
        {0x370, "host pathing error (0x370)"},
        {0x371, "aborted by the host (0x371)"},
        {0x07f, "unknown generic status (0x7f)"},
        {0x1ff, "unknown command-specific status (0x1ff)"},
        {0x2ff, "unknown media error (0x2ff)"},
        {0x3ff, "unknown path error (0x3ff)"},
        {0x4ff, "reserved status type (0x4ff)"},
        {0x7c1, "vendor-specific status (0x7c1)"},
    };
    for (const auto& [status, words] : expected) {
        CHECK(nvme_status_words(status) == words, "0x%x: %s", status, nvme_status_words(status).c_str());
    }
    CHECK(nvme_may_retry(0x281) && nvme_may_retry(0x2281) && !nvme_may_retry(0x4281),
          "only Do Not Retry forbids a retry");
}

void test_identify_controller() {
    std::vector<uint8_t> page(nvme::kPage, 0xff);
    std::memcpy(page.data() + 4, "S4XANX0R123456      ", 20);
    std::memcpy(page.data() + 24, "A drive of 2026\0                        ", 40);
    page[77] = 5;
    const uint32_t namespaces = 300;
    std::memcpy(page.data() + 516, &namespaces, sizeof namespaces);
    const nvme::ControllerData data = nvme::parse_controller(page.data());
    CHECK(data.serial == "S4XANX0R123456" && data.model == "A drive of 2026", "%s|%s", data.serial.c_str(),
          data.model.c_str());
    CHECK(data.mdts == 5 && data.namespaces == 300, "%u %u", data.mdts, data.namespaces);
    CHECK(data.largest_transfer(0, 1 << 20) == 128 << 10, "MDTS 5 is 32 pages of 4 KiB");
    CHECK(data.largest_transfer(2, 1 << 20) == 512 << 10, "MDTS 5 is 32 pages of 16 KiB");
    CHECK(data.largest_transfer(0, 64 << 10) == 64 << 10, "the caller's maximum is not exceeded");
    nvme::ControllerData other = data;
    other.mdts = 0;
    CHECK(other.largest_transfer(0, 1 << 20) == 1 << 20, "MDTS 0 is no limit");
    other.mdts = 255;
    CHECK(other.largest_transfer(15, 1 << 20) == 1 << 20, "a shift beyond 63 bits is no limit");
    std::memset(page.data() + 4, ' ', 20);
    CHECK(nvme::parse_controller(page.data()).serial.empty(), "a blank serial number is empty");
}

nvme::NamespaceData namespace_of(uint64_t lbas, unsigned format, uint8_t lba_shift, uint16_t metadata) {
    std::vector<uint8_t> page(nvme::kPage, 0);
    std::memcpy(page.data(), &lbas, sizeof lbas);
    page[26] = static_cast<uint8_t>((format & 15U) | (format & 48U) << 1);
    uint8_t* where = page.data() + 128 + 4 * format;
    std::memcpy(where, &metadata, sizeof metadata);
    where[2] = lba_shift;
    return nvme::parse_namespace(page.data());
}

void test_identify_namespace() {
    const nvme::NamespaceData small = namespace_of(1'000'000, 0, 9, 0), large = namespace_of(5, 37, 12, 0);
    CHECK(small.lbas == 1'000'000 && small.lba_bytes == 512 && small.metadata_bytes == 0, "the LBAs have 512 bytes");
    CHECK(large.lbas == 5 && large.lba_bytes == 4096, "format 37 has 4096 bytes, not %u", large.lba_bytes);
    CHECK(nvme::unusable_reason(small, 4096).empty() && nvme::unusable_reason(large, 4096).empty(), "both are usable");
    auto refused = [](const nvme::NamespaceData& data, const char* words) {
        const std::string reason = nvme::unusable_reason(data, 4096);
        CHECK(reason.find(words) != std::string::npos, "%s", reason.c_str());
    };
    refused(namespace_of(0, 0, 9, 0), "not attached");
    refused(namespace_of(100, 1, 12, 8),
            "8 bytes of metadata in each block, which a block store does not write: format it without");
    refused(namespace_of(100, 0, 14, 0), "blocks of 16384 bytes");
    refused(namespace_of(100, 0, 0, 0), "blocks of 0 bytes");
    refused(namespace_of(100, 0, 200, 0), "blocks of 0 bytes");
    refused(namespace_of(7, 0, 9, 0), "no room for a block");
    CHECK(nvme::unusable_reason(namespace_of(8, 0, 9, 0), 4096).empty(), "8 LBAs of 512 bytes hold a block");
}

void test_lbas_of_a_command() {
    nvme::Command command{};
    nvme::set_lbas(command, 0x123456789aULL, 65536);
    CHECK(command.cdw10 == 0x3456789a && command.cdw11 == 0x12 && command.cdw12 == 0xffff, "%x %x %x", command.cdw10,
          command.cdw11, command.cdw12);
    nvme::set_lbas(command, 7, 1);
    CHECK(command.cdw10 == 7 && command.cdw11 == 0 && command.cdw12 == 0, "one LBA");
}

}  // namespace

int main() {
    test_statuses_in_words();
    test_identify_controller();
    test_identify_namespace();
    test_lbas_of_a_command();
    std::puts("nvme: ok");
}
