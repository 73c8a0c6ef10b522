// The memory that a container's devices reach.
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "memory/memory.hpp"
#include "support/errors.hpp"
#include "vfio/container.hpp"
#include "vfio/sysfs.hpp"

namespace fastio {

// Every group may know fewer addresses than those before it.
void VfioContainer::learn_ranges() {
    std::vector<uint8_t> answer(sizeof(vfio_iommu_type1_info));
    for (;;) {
        auto* info = reinterpret_cast<vfio_iommu_type1_info*>(answer.data());
        info->argsz = static_cast<uint32_t>(answer.size());
        if (ioctl(fd_, VFIO_IOMMU_GET_INFO, info) < 0) {
            throw Refused(std::string("VFIO_IOMMU_GET_INFO: ") + std::strerror(errno));
        }
        if (info->argsz <= answer.size()) break;
        answer.assign(info->argsz, 0);
    }
    const auto* info = reinterpret_cast<const vfio_iommu_type1_info*>(answer.data());
    const uint64_t smallest = info->iova_pgsizes & -info->iova_pgsizes;
    page_bytes_ = std::max<uint64_t>(smallest, static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
    std::vector<IovaAllocator::Range> ranges;
    uint32_t at = (info->flags & VFIO_IOMMU_INFO_CAPS) != 0 ? info->cap_offset : 0;
    while (at != 0) {
        const auto* header = reinterpret_cast<const vfio_info_cap_header*>(answer.data() + at);
        if (header->id == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE) {
            const auto* told = reinterpret_cast<const vfio_iommu_type1_info_cap_iova_range*>(header);
            for (uint32_t number = 0; number < told->nr_iovas; ++number) {
                ranges.push_back({told->iova_ranges[number].start, told->iova_ranges[number].end});
            }
        }
        at = header->next;
    }
    // A kernel before 5.4 does not say: below the interrupts' addresses everything translates.
    if (ranges.empty()) ranges.push_back({0, 0xfedfffff});
    addresses_.set_ranges(ranges);
}

uint64_t VfioContainer::page_bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return page_bytes_;
}

uint64_t VfioContainer::map(uint8_t* memory, uint64_t nbytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    // What lies alike in huge pages on both sides is translated by huge pages.
    const uint64_t alignment = nbytes >= kHugePage ? kHugePage : page_bytes_;
    const std::optional<uint64_t> address = addresses_.allocate(nbytes, alignment, begin % alignment);
    if (!address) throw Refused("the IOMMU has no " + std::to_string(nbytes) + " contiguous addresses left");
    vfio_iommu_type1_dma_map request{};
    request.argsz = sizeof request;
    request.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE;
    request.vaddr = begin;
    request.iova = *address;
    request.size = nbytes;
    if (ioctl(fd_, VFIO_IOMMU_MAP_DMA, &request) < 0) {
        const int error = errno;
        addresses_.free(*address);
        throw Refused(refusal_to_map(error, nbytes));
    }
    return *address;
}

void VfioContainer::unmap(uint64_t address, uint64_t nbytes) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    vfio_iommu_type1_dma_unmap request{};
    request.argsz = sizeof request;
    request.iova = address;
    request.size = nbytes;
    // It fails only where the container is gone, and the mapping with it. An address that is mapped is not used again.
    if (fd_ < 0 || ioctl(fd_, VFIO_IOMMU_UNMAP_DMA, &request) == 0) addresses_.free(address);
}

std::string VfioContainer::refusal_to_map(int error, uint64_t nbytes) const {
    std::string text = "VFIO cannot map " + std::to_string(nbytes) + " bytes: " + std::strerror(error);
    if (error == ENOMEM) {
        rlimit limit{};
        getrlimit(RLIMIT_MEMLOCK, &limit);
        const bool endless = limit.rlim_cur == RLIM_INFINITY;
        text += "; this process may lock " + (endless ? "any number of" : std::to_string(limit.rlim_cur)) +
                " bytes (RLIMIT_MEMLOCK): ulimit -l unlimited, LimitMEMLOCK=infinity with systemd, or --ulimit "
                "memlock=-1 with docker";
    } else if (error == EFAULT || error == EINVAL) {
        text +=
            "; the memory is not mapped for reading and writing, or is of a kind that this kernel's IOMMU does not "
            "take (of other devices' memory: mappings by VFIO or GDRCopy, and not where iommufd stands in for VFIO's "
            "container, CONFIG_IOMMUFD_VFIO_CONTAINER)";
    } else if (error == ENOSPC) {
        text += "; too many pieces: raise /sys/module/vfio_iommu_type1/parameters/dma_entry_limit";
    }
    return text;
}

// VFIO's type 1 maps what has a virtual address, nothing else. iommufd takes a dma-buf since Linux 6.19, but VFIO is
// the only exporter that it accepts ("iommufd: Allow a DMABUF to be revoked"): a GPU driver's is refused by every
// kernel.
std::string dma_buf_refusal() {
    return "by its descriptor a dma-buf can be mapped for a disk only where vfio-pci exported it, through iommufd and "
           "since Linux 6.19 (this is " +
           sysfs::read("/proc/sys/kernel/osrelease") + "); a GPU's is exported by its own driver";
}

}  // namespace fastio
