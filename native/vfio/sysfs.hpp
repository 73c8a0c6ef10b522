// Small reads and writes of /sys and /proc. `root` is "" but in tests.
#pragma once

#include <string>
#include <vector>

namespace fastio::sysfs {

// The text of a file without its last line break; "" where it cannot be read.
std::string read(const std::string& path);
// Write it in one call, as sysfs wants it; gives errno, 0 if that went well.
int write(const std::string& path, const std::string& text);
// What a link points to, without folders: the driver of a device, the number of its IOMMU group. "" if there is none.
std::string link(const std::string& path);
// Names in a folder, sorted; none if it is not there.
std::vector<std::string> names(const std::string& folder);
bool exists(const std::string& path);

inline std::string pci_folder(const std::string& pci) { return "/sys/bus/pci/devices/" + pci; }
inline std::string driver_folder(const std::string& driver) { return "/sys/bus/pci/drivers/" + driver; }

}  // namespace fastio::sysfs
