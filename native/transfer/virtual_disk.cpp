#include "transfer/virtual_disk.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace fastio {

bool is_on_virtual_disk(int fd) {
    struct stat file;
    if (fstat(fd, &file) != 0) return false;
    const std::string device = std::to_string(major(file.st_dev)) + ":" + std::to_string(minor(file.st_dev));
    const std::string link = "/sys/dev/block/" + device;
    char target[4096];
    const ssize_t length = readlink(link.c_str(), target, sizeof target);
    return length > 0 &&
           std::string_view(target, static_cast<size_t>(length)).find("/virtio") != std::string_view::npos;
}

}  // namespace fastio
