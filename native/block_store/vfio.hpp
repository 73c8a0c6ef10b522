// The driver "vfio": NVMe controllers driven from this process, with no kernel in the way (FlashNeuron, section 3.4).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "block_store/driver.hpp"

namespace fastio {

// make_vfio_driver with a limit on what a command may take (the other's is Linux's own, 30 s).
std::unique_ptr<StoreDriver> make_vfio_driver(const std::vector<std::string>& devices, uint32_t timeout_ms);

}  // namespace fastio
