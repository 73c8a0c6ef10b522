#include "vfio/sysfs.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace fastio::sysfs {

std::string read(const std::string& path) {
    int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return {};
    std::string text;
    char piece[4096];
    for (ssize_t count; (count = ::read(fd, piece, sizeof piece)) > 0;) text.append(piece, static_cast<size_t>(count));
    close(fd);
    if (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
}

int write(const std::string& path, const std::string& text) {
    int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    ssize_t count = ::write(fd, text.data(), text.size());
    int error = count < 0 ? errno : 0;
    close(fd);
    return error;
}

std::string link(const std::string& path) {
    char target[PATH_MAX];
    ssize_t nbytes = readlink(path.c_str(), target, sizeof target);
    if (nbytes < 0) return {};
    const std::string found(target, static_cast<size_t>(nbytes));
    return found.substr(found.rfind('/') + 1);
}

std::vector<std::string> names(const std::string& folder) {
    std::vector<std::string> found;
    DIR* opened = opendir(folder.c_str());
    if (opened == nullptr) return found;
    while (const dirent* entry = readdir(opened)) {
        if (entry->d_name[0] != '.') found.emplace_back(entry->d_name);
    }
    closedir(opened);
    std::sort(found.begin(), found.end());
    return found;
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

}  // namespace fastio::sysfs
