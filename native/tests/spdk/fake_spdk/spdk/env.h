// NOT SPDK: declares the few names of <spdk/env.h> that fastio uses, written from SPDK's public API documentation.
// ../fake_spdk.cpp models them in memory. It shows that fastio's driver keeps the documented contract, not how SPDK or a
// disk behaves.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

struct spdk_env_opts {
    const char* name;
    const char* core_mask;
    int mem_size;
    bool no_pci;
    bool no_huge;
    size_t opts_size;
};

void spdk_env_opts_init(struct spdk_env_opts* opts);
int spdk_env_init(const struct spdk_env_opts* opts);
bool spdk_iommu_is_enabled(void);
int spdk_mem_register(void* vaddr, size_t len);
int spdk_mem_unregister(void* vaddr, size_t len);
}
