// Transfers between files and device memory that no stream orders, as those of GPUDirect Storage.

#include <sys/stat.h>
#include <torch/library.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "execution/engines.hpp"
#include "memory/allocator.hpp"

namespace simulated {

namespace {

constexpr int64_t kPage = 4096;

void check_memory(int64_t address, int64_t nbytes, const char* when) {
    Lock lock(machine().mutex);
    check("transfer_file");
    const Block* block = find_block(address);
    TORCH_CHECK(block && block->allocated && static_cast<uintptr_t>(address + nbytes) <= block->begin + block->nbytes,
                "transfer_file: ", nbytes, " bytes at ", address, " are not memory of one tensor on a device", when);
}

/// Does the system calls of a transfer as the only work of the bus between device and disk.
int64_t occupy_bus(int device, const char* name, int64_t nbytes, const std::function<int64_t()>& move) {
    Stream none{};  // no stream orders it
    none.device = device;
    none.id = -1;
    int64_t moved = 0;
    Work work;
    work.name = name;
    work.engine = Engine::peer;
    work.nbytes = nbytes;
    work.issued = now();
    work.run = [&] {
        moved = move();
        if (moved < 0) moved = -errno;
    };
    execute(none, work);
    return moved;
}

/// Writes part of a page by reading the pages, changing them, and writing them back, as cuFile does.
int64_t write_parts_of_pages(int device, int file, const char* memory, int64_t nbytes, int64_t offset) {
    struct stat status{};
    if (fstat(file, &status) != 0) return -errno;
    const int64_t begin = offset / kPage * kPage;
    const int64_t pages = (offset + nbytes + kPage - 1) / kPage * kPage;
    const int64_t end = std::min(pages, std::max<int64_t>(status.st_size, offset + nbytes));
    std::vector<char> bounce(end - begin);
    if (pread(file, bounce.data(), bounce.size(), begin) < 0) return -errno;
    const int64_t written = occupy_bus(device, "file write", nbytes, [&] {
        std::memcpy(bounce.data() + offset - begin, memory, nbytes);
        return pwrite(file, bounce.data(), bounce.size(), begin);
    });
    return written < 0 ? written : std::clamp<int64_t>(written - (offset - begin), 0, nbytes);
}

/// Moves bytes between a file and the device memory at `address`, whatever the streams do; returns their number, or
/// minus an errno. `direct` has O_DIRECT, and moves what is aligned; `file` is the same file, without it.
int64_t transfer_file(int64_t direct, int64_t file, int64_t address, int64_t nbytes, int64_t offset, bool write) {
    check_memory(address, nbytes, "");
    const int device = device_of(address);
    auto* memory = reinterpret_cast<char*>(machine().devices[device].arena.on_device(address));
    const bool is_aligned = address % kPage == 0 && nbytes % kPage == 0 && offset % kPage == 0;
    int64_t moved;
    if (write && (nbytes % kPage != 0 || offset % kPage != 0)) {
        moved = write_parts_of_pages(device, static_cast<int>(file), memory, nbytes, offset);
    } else {
        const int used = static_cast<int>(is_aligned ? direct : file);
        moved = occupy_bus(device, write ? "file write" : "file read", nbytes, [=] {
            return write ? pwrite(used, memory, nbytes, offset) : pread(used, memory, nbytes, offset);
        });
    }
    check_memory(address, nbytes, " any more, after they were transferred");
    return moved;
}

TORCH_LIBRARY_FRAGMENT(simulated, library) { library.def("transfer_file", transfer_file); }

}  // namespace

}  // namespace simulated
