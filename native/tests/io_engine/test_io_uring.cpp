// Tests the ring with both entry sizes, and registered memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "io_engine/io_uring.hpp"
#include "memory/memory.hpp"
#include "support/errors.hpp"
#include "tests/support/check.hpp"
#include "tests/support/unnamed_file.hpp"

namespace {

using fastio::Mapping;
using fastio::Ring;

constexpr size_t kBytes = 1 << 20;

int32_t complete_one(Ring& ring) {
    ring.submit(1);
    Ring::Completion completion{};
    while (!ring.reap(completion)) ring.wait();
    return completion.result;
}

void test_reads_and_writes(Ring::Entries size) {
    Ring ring(8, Ring::Issuers::kAnyThread, size);
    Mapping source(kBytes), target(kBytes);
    std::memset(source.data(), 7, kBytes);
    int fd = unnamed_file();
    for (uint64_t turn = 0; turn < 20; ++turn) {  // more than the ring has entries
        for (uint64_t tag = 0; tag < 8; ++tag) {
            ring.queue(true, fd, source.data() + tag * 4096, 4096, (turn * 8 + tag) * 4096, turn * 100 + tag);
        }
        ring.submit(8);
        uint64_t seen = 0;
        for (Ring::Completion completion; seen < 8;) {
            if (!ring.reap(completion)) continue;
            CHECK(completion.tag / 100 == turn && completion.result == 4096, "tag %lu gave %d",
                  (unsigned long)completion.tag, completion.result);
            ++seen;
        }
    }
    ring.queue(false, fd, target.data(), 160 * 4096, 0, 1);
    CHECK(complete_one(ring) == 160 * 4096 && std::memcmp(source.data(), target.data(), 160 * 4096) == 0,
          "reads back unchanged");
    CHECK(ring.calls() >= 21, "%lu calls", (unsigned long)ring.calls());
    close(fd);
}

// A file takes no device command. The kernel's refusal shows that it parsed the entry.
void test_command_reaches_the_kernel() {
    Ring ring(4, Ring::Issuers::kAnyThread, Ring::Entries::kLarge);
    int fd = unnamed_file();
    const uint8_t command[Ring::kCommandBytes] = {};
    for (uint64_t turn = 0; turn < 10; ++turn) {
        ring.queue_command(fd, 1, command, sizeof command, -1, turn);
        const int32_t result = complete_one(ring);
        CHECK(result == -EOPNOTSUPP || result == -EINVAL, "%s", std::strerror(-result));
    }
    close(fd);
}

void test_memory_registration() {
    Ring ring(4);
    Mapping memory(70 * kBytes);
    auto piece = [&](size_t number) { return memory.data() + number * kBytes; };
    CHECK(ring.registered(piece(0), 1) == -1, "nothing is registered");
    std::string refusal = ring.register_memory(piece(0), kBytes);
    if (!refusal.empty()) {
        std::printf("memory cannot be registered here: %s\n", refusal.c_str());
        return;
    }
    if (!ring.register_memory(piece(1), kBytes).empty()) {
        std::puts("this kernel takes one buffer only");
        return;
    }
    const int first = ring.registered(piece(0), kBytes), second = ring.registered(piece(1) + 4096, 4096);
    CHECK(first >= 0 && second >= 0 && first != second, "%d and %d", first, second);
    CHECK(ring.registered(piece(0) + 1, kBytes) == -1, "a range across two pieces is not registered");

    int fd = unnamed_file();
    std::memset(piece(0), 1, 2 * kBytes);
    for (size_t number : {0, 1, 2}) {  // the third is not registered
        ring.queue(true, fd, piece(number), kBytes, number * kBytes, number);
        CHECK(complete_one(ring) == kBytes, "piece %zu", number);
    }
    ring.unregister_memory(piece(0));
    ring.unregister_memory(piece(0));
    CHECK(ring.registered(piece(0), 1) == -1 && ring.registered(piece(1), 1) == second,
          "only the first piece is unregistered");
    ring.queue(false, fd, piece(0), kBytes, kBytes, 0);
    CHECK(complete_one(ring) == kBytes && piece(0)[kBytes - 1] == 1, "unregistered memory is usable");
    CHECK(ring.register_memory(piece(3), kBytes).empty() && ring.registered(piece(3), 1) == first,
          "the freed index is reused");
    size_t registered = 2;
    while (registered < 70 && ring.register_memory(piece(registered + 2), 4096).empty()) ++registered;
    CHECK(registered == 64, "%zu pieces", registered);
    ring.unregister_memory(piece(1));
    CHECK(ring.register_memory(piece(0), kBytes).empty(), "a freed index makes room");
    close(fd);
}

void test_unmapped_memory() {
    Ring ring(4);
    auto* hole = static_cast<uint8_t*>(mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    CHECK(hole != MAP_FAILED, "mmap");
    munmap(hole, kBytes);
    CHECK(!ring.register_memory(hole, kBytes).empty() && ring.registered(hole, 1) == -1, "unmapped memory is refused");
}

}  // namespace

int main() {
    try {
        test_reads_and_writes(Ring::Entries::kPlain);
        test_memory_registration();
        test_unmapped_memory();
        test_reads_and_writes(Ring::Entries::kLarge);
        test_command_reaches_the_kernel();
    } catch (const fastio::Refused& error) {
        std::printf("skipped: %s\n", error.what());
    }
    std::puts("ring: ok");
}
