#pragma once

#include "execution/machine.hpp"

namespace simulated {

/// Lets the device access [address, address + nbytes) of host memory. Raises if part of it is registered already.
void register_host(uintptr_t address, size_t nbytes);

/// Ends a registration. Raises if there is none at the address, or if queued works still use the memory.
void unregister_host(uintptr_t address);

/// The registration that holds an address, or nullptr. Needs the lock.
std::shared_ptr<Registration> find_registration(uintptr_t address);

bool is_registered(uintptr_t address);

/// Registrations that nothing has ended: address and bytes.
std::vector<std::pair<uintptr_t, size_t>> registrations();

/// Registered host memory for tensors, reused once the works that use it have ended.
void* allocate_pinned(size_t nbytes);
void free_pinned(void* memory);

}  // namespace simulated
