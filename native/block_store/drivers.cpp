// Creates a driver by its name.
#include "block_store/driver.hpp"
#include "support/errors.hpp"

namespace fastio {

std::unique_ptr<StoreDriver> make_store_driver(const std::string& name, const std::vector<int>& fds) {
    if (name == "uring") return make_uring_driver();
    if (name == "threads") return make_threads_driver();
    if (name == "nvme") return make_nvme_driver(fds);
    throw Refused("there is no driver '" + name + "' for files and descriptors: expected uring, threads or nvme");
}

std::unique_ptr<StoreDriver> make_store_driver(const std::string& name, const std::vector<std::string>& devices) {
    if (name == "vfio") return make_vfio_driver(devices);
    if (name == "spdk") return make_spdk_driver(devices);
    throw Refused("there is no driver '" + name + "' that opens devices itself: expected vfio or spdk");
}

}  // namespace fastio
