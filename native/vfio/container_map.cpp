// Maps memory for the devices of the container.
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

// Reads the valid address ranges and the page size. Each further group may narrow the ranges.
void VfioContainer::read_iova_ranges() {
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
            const auto* iovas = reinterpret_cast<const vfio_iommu_type1_info_cap_iova_range*>(header);
            for (uint32_t number = 0; number < iovas->nr_iovas; ++number) {
                ranges.push_back({iovas->iova_ranges[number].start, iovas->iova_ranges[number].end});
            }
        }
        at = header->next;
    }
    // Kernels before 5.4 do not report the ranges: everything below the interrupt addresses is valid.
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
    // The same offset within a huge page on both sides lets the IOMMU translate by huge pages.
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
    // Unmapping fails only if the container is gone, and the mapping with it. An address that stays mapped is not
    // reused.
    if (fd_ < 0 || ioctl(fd_, VFIO_IOMMU_UNMAP_DMA, &request) == 0) addresses_.free(address);
}

std::string VfioContainer::refusal_to_map(int error, uint64_t nbytes) const {
    std::string text = "VFIO cannot map " + std::to_string(nbytes) + " bytes: " + std::strerror(error);
    if (error == ENOMEM) {
        rlimit limit{};
        getrlimit(RLIMIT_MEMLOCK, &limit);
        const bool unlimited = limit.rlim_cur == RLIM_INFINITY;
        text += "; this process may lock " + (unlimited ? "any number of" : std::to_string(limit.rlim_cur)) +
                " bytes (RLIMIT_MEMLOCK): ulimit -l unlimited, LimitMEMLOCK=infinity with systemd, or --ulimit "
                "memlock=-1 with docker";
    } else if (error == EFAULT || error == EINVAL) {
        text +=
            "; the memory is not mapped for reading and writing, or this kernel's IOMMU does not take its kind (of "
            "other devices' memory it takes mappings by VFIO or GDRCopy, but not if iommufd replaces VFIO's container, "
            "CONFIG_IOMMUFD_VFIO_CONTAINER)";
    } else if (error == ENOSPC) {
        text += "; there are too many mappings: raise /sys/module/vfio_iommu_type1/parameters/dma_entry_limit";
    }
    return text;
}

// VFIO type 1 maps only memory with a virtual address. iommufd takes a dma-buf since Linux 6.19, but accepts VFIO as
// the only exporter ("iommufd: Allow a DMABUF to be revoked"), so every kernel refuses that of a GPU driver.
std::string dma_buf_refusal() {
    return "a dma-buf can be mapped for a disk only if vfio-pci exported it, through iommufd and since Linux 6.19 "
           "(this "
           "is " +
           sysfs::read("/proc/sys/kernel/osrelease") + "); a GPU's dma-buf is exported by its own driver";
}

}  // namespace fastio
