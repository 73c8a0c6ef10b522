#include "memory/host_memory.hpp"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "execution/streams.hpp"

namespace simulated {

namespace {

struct PinnedFree {
    uintptr_t begin;
    std::vector<std::pair<Stream*, uint64_t>> uses;
};

struct HostMemory {
    std::map<uintptr_t, std::shared_ptr<Registration>> registrations;  // by address
    std::multimap<size_t, uintptr_t> free;                             // of the allocator, by size
    std::vector<PinnedFree> pending;
};

HostMemory& host_memory() {
    static auto& instance = *new HostMemory;
    return instance;
}

std::string describe(uintptr_t address, size_t nbytes) {
    std::ostringstream text;
    text << nbytes << " bytes of host memory at 0x" << std::hex << address;
    return text.str();
}

void add_registration(uintptr_t address, size_t nbytes, bool of_allocator) {
    auto& all = host_memory().registrations;
    const auto after = all.lower_bound(address + nbytes);
    if (after != all.begin()) {
        const Registration& before = *std::prev(after)->second;
        TORCH_CHECK(before.begin + before.nbytes <= address, "register_host: ", describe(address, nbytes),
                    " are registered already, as part of ", describe(before.begin, before.nbytes));
    }
    all[address] = std::make_shared<Registration>(Registration{address, nbytes, of_allocator, true, {}});
}

size_t pinned_size(size_t nbytes) {
    size_t size = 4096;
    while (size < nbytes) size *= 2;
    return size;
}

void settle_pending() {
    HostMemory& memory = host_memory();
    auto ended = [&](const PinnedFree& pending) {
        for (const auto& [stream, sequence] : pending.uses)
            if (stream->completed < sequence) return false;
        for (const auto& [stream, sequence] : pending.uses) machine().host.advance(stream->number, sequence);
        memory.free.emplace(memory.registrations.at(pending.begin)->nbytes, pending.begin);
        return true;
    };
    memory.pending.erase(std::remove_if(memory.pending.begin(), memory.pending.end(), ended), memory.pending.end());
}

}  // namespace

void register_host(uintptr_t address, size_t nbytes) {
    Lock lock(machine().mutex);
    check("register_host");
    TORCH_CHECK(nbytes > 0, "register_host: 0 bytes at ", address);
    add_registration(address, nbytes, false);
}

void unregister_host(uintptr_t address) {
    Lock lock(machine().mutex);
    if (machine().forked) check("unregister_host");
    auto& all = host_memory().registrations;
    const auto found = all.find(address);
    TORCH_CHECK(found != all.end() && !found->second->of_allocator, "unregister_host: no memory is registered at ",
                address);
    const auto registration = found->second;
    registration->alive = false;
    all.erase(found);
    const auto used = registration->history.conflict(address, address + registration->nbytes, true, machine().host);
    if (used && machine().settings.check_order)
        set_error("unregister_host: " + describe(address, registration->nbytes) + ": " + used->work +
                  " uses them, and the host has not waited for it");
    check("unregister_host");
}

std::shared_ptr<Registration> find_registration(uintptr_t address) {
    auto& all = host_memory().registrations;
    const auto after = all.upper_bound(address);
    if (after == all.begin()) return nullptr;
    const auto& registration = std::prev(after)->second;
    return address < registration->begin + registration->nbytes ? registration : nullptr;
}

bool is_registered(uintptr_t address) {
    Lock lock(machine().mutex);
    return find_registration(address) != nullptr;
}

std::vector<std::pair<uintptr_t, size_t>> registrations() {
    Lock lock(machine().mutex);
    std::vector<std::pair<uintptr_t, size_t>> result;
    for (const auto& [address, registration] : host_memory().registrations)
        if (!registration->of_allocator) result.emplace_back(address, registration->nbytes);
    return result;
}

void* allocate_pinned(size_t nbytes) {
    if (nbytes == 0) return nullptr;
    const size_t size = pinned_size(nbytes);
    Lock lock(machine().mutex);
    check("pin_memory");
    settle_pending();
    auto& free = host_memory().free;
    if (const auto found = free.find(size); found != free.end()) {
        const uintptr_t begin = found->second;
        free.erase(found);
        return reinterpret_cast<void*>(begin);
    }
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(memory != MAP_FAILED, "pin_memory: cannot map ", size, " bytes");
    add_registration(reinterpret_cast<uintptr_t>(memory), size, true);
    return memory;
}

void free_pinned(void* memory) {
    if (!memory || machine().forked) return;
    Lock lock(machine().mutex);
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    PinnedFree pending{begin, {}};
    for (const Access& access : host_memory().registrations.at(begin)->history.accesses())
        pending.uses.emplace_back(machine().streams[access.stream], access.sequence);
    host_memory().pending.push_back(std::move(pending));
    settle_pending();
}

}  // namespace simulated
