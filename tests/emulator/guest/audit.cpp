#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "extents.hpp"
#include "faults.hpp"
#include "host.hpp"
#include "memory/memory.hpp"
#include "model.hpp"
#include "tests/support/check.hpp"

namespace rig {

using fastio::kStoreBlock;

void test_audit(const Places& places) {
    Model model(kModelFile);
    CHECK(model.devices() == places.size(), "the model has these devices, not %zu", model.devices());
    fastio::Mapping mapping(kStoreBlock);
    uint64_t judged = 0;
    for (unsigned device = 0; device < places.size(); ++device) {
        const std::string path = kernel_device(places[device]);
        const Faults faults = faults_of(places[device]);
        const int fd = open(path.c_str(), O_RDONLY | O_DIRECT);
        CHECK(fd >= 0, "open %s: %s", path.c_str(), std::strerror(errno));
        for (uint64_t block = 0; block < model.blocks(device); ++block) {
            if (faults.reads.count(block) != 0) continue;
            const auto offset = static_cast<off_t>(block * kStoreBlock);
            CHECK(pread(fd, mapping.data(), kStoreBlock, offset) == static_cast<ssize_t>(kStoreBlock),
                  "pread of %s: %s", path.c_str(), std::strerror(errno));
            const std::string wrong = model.judge_read(device, block, 1, mapping.data());
            CHECK(wrong.empty(), "%s", wrong.c_str());
            ++judged;
        }
        close(fd);
    }
    note(std::to_string(judged) + " blocks as the kernel reads them");
}

}  // namespace rig
