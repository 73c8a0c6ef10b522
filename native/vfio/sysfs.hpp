// Reads and writes small files of /sys and /proc.
#pragma once

#include <string>
#include <vector>

namespace fastio::sysfs {

// Returns the text of a file without its last newline; "" if it cannot be read.
std::string read(const std::string& path);
// Writes a file in one call, as sysfs requires. Returns 0 or an errno.
int write(const std::string& path, const std::string& text);
// Returns the last component of a link's target: the driver of a device, the number of its IOMMU group. "" if there is
// no link.
std::string link(const std::string& path);
// Returns the names in a folder, sorted; none if it does not exist.
std::vector<std::string> names(const std::string& folder);
bool exists(const std::string& path);

inline std::string pci_folder(const std::string& pci) { return "/sys/bus/pci/devices/" + pci; }
inline std::string driver_folder(const std::string& driver) { return "/sys/bus/pci/drivers/" + driver; }

}  // namespace fastio::sysfs
