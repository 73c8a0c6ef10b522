// The driver "vfio": drives NVMe controllers from this process, without the kernel (FlashNeuron, section 3.4).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "block_store/driver.hpp"

namespace fastio {

// make_vfio_driver() with a time limit for a command (the other overload uses that of Linux, 30 s).
std::unique_ptr<StoreDriver> make_vfio_driver(const std::vector<std::string>& devices, uint32_t timeout_ms);

}  // namespace fastio
