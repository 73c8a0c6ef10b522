// NOT SPDK: declares the few names of <spdk/nvme.h> that fastio uses. See env.h in this folder.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

enum spdk_nvme_transport_type { SPDK_NVME_TRANSPORT_PCIE = 256, SPDK_NVME_TRANSPORT_TCP = 3 };

struct spdk_nvme_transport_id {
    enum spdk_nvme_transport_type trtype;
    char traddr[257];
};

struct spdk_nvme_ctrlr_opts {
    uint32_t keep_alive_timeout_ms;
};

struct spdk_nvme_io_qpair_opts {
    uint32_t io_queue_requests;
    bool delay_cmd_submit;
};

struct spdk_nvme_ctrlr_data {
    int8_t sn[20];
    int8_t mn[40];
};

#define SPDK_NVME_IO_FLAGS_FORCE_UNIT_ACCESS (1U << 30)
#define SPDK_NVME_SCT_GENERIC 0x0
#define SPDK_NVME_SC_ABORTED_SQ_DELETION 0x08

struct spdk_nvme_status {
    uint16_t p : 1;
    uint16_t sc : 8;
    uint16_t sct : 3;
    uint16_t crd : 2;
    uint16_t m : 1;
    uint16_t dnr : 1;
};

struct spdk_nvme_cpl {
    union {
        uint16_t status_raw;
        struct spdk_nvme_status status;
    };
};

inline bool spdk_nvme_cpl_is_error(const struct spdk_nvme_cpl* cpl) {
    return cpl->status.sct != 0 || cpl->status.sc != 0;
}

struct spdk_nvme_ctrlr;
struct spdk_nvme_ns;
struct spdk_nvme_qpair;
typedef void (*spdk_nvme_cmd_cb)(void* argument, const struct spdk_nvme_cpl* cpl);
typedef void (*spdk_nvme_timeout_cb)(void* argument, struct spdk_nvme_ctrlr* ctrlr, struct spdk_nvme_qpair* qpair,
                                     uint16_t cid);

int spdk_nvme_transport_id_parse(struct spdk_nvme_transport_id* trid, const char* str);
int spdk_nvme_transport_id_compare(const struct spdk_nvme_transport_id* one, const struct spdk_nvme_transport_id* two);
void spdk_nvme_ctrlr_get_default_ctrlr_opts(struct spdk_nvme_ctrlr_opts* opts, size_t opts_size);
struct spdk_nvme_ctrlr* spdk_nvme_connect(const struct spdk_nvme_transport_id* trid,
                                          const struct spdk_nvme_ctrlr_opts* opts, size_t opts_size);
int spdk_nvme_detach(struct spdk_nvme_ctrlr* ctrlr);
const struct spdk_nvme_ctrlr_data* spdk_nvme_ctrlr_get_data(struct spdk_nvme_ctrlr* ctrlr);
uint32_t spdk_nvme_ctrlr_get_first_active_ns(struct spdk_nvme_ctrlr* ctrlr);
struct spdk_nvme_ns* spdk_nvme_ctrlr_get_ns(struct spdk_nvme_ctrlr* ctrlr, uint32_t nsid);
void spdk_nvme_ctrlr_register_timeout_callback(struct spdk_nvme_ctrlr* ctrlr, uint64_t io_us, uint64_t admin_us,
                                               spdk_nvme_timeout_cb callback, void* argument);
int32_t spdk_nvme_ctrlr_process_admin_completions(struct spdk_nvme_ctrlr* ctrlr);
bool spdk_nvme_ctrlr_is_failed(struct spdk_nvme_ctrlr* ctrlr);
int spdk_nvme_ctrlr_reset(struct spdk_nvme_ctrlr* ctrlr);
void spdk_nvme_ctrlr_get_default_io_qpair_opts(struct spdk_nvme_ctrlr* ctrlr, struct spdk_nvme_io_qpair_opts* opts,
                                               size_t opts_size);
struct spdk_nvme_qpair* spdk_nvme_ctrlr_alloc_io_qpair(struct spdk_nvme_ctrlr* ctrlr,
                                                       const struct spdk_nvme_io_qpair_opts* opts, size_t opts_size);
int spdk_nvme_ctrlr_free_io_qpair(struct spdk_nvme_qpair* qpair);
int spdk_nvme_ctrlr_reconnect_io_qpair(struct spdk_nvme_qpair* qpair);
int32_t spdk_nvme_qpair_process_completions(struct spdk_nvme_qpair* qpair, uint32_t most);
bool spdk_nvme_ns_is_active(struct spdk_nvme_ns* ns);
uint32_t spdk_nvme_ns_get_sector_size(struct spdk_nvme_ns* ns);
uint64_t spdk_nvme_ns_get_num_sectors(struct spdk_nvme_ns* ns);
uint64_t spdk_nvme_ns_get_size(struct spdk_nvme_ns* ns);
uint32_t spdk_nvme_ns_get_md_size(struct spdk_nvme_ns* ns);
uint32_t spdk_nvme_ns_get_max_io_xfer_size(struct spdk_nvme_ns* ns);
int spdk_nvme_ns_cmd_read(struct spdk_nvme_ns* ns, struct spdk_nvme_qpair* qpair, void* payload, uint64_t lba,
                          uint32_t lba_count, spdk_nvme_cmd_cb callback, void* argument, uint32_t io_flags);
int spdk_nvme_ns_cmd_write(struct spdk_nvme_ns* ns, struct spdk_nvme_qpair* qpair, void* payload, uint64_t lba,
                           uint32_t lba_count, spdk_nvme_cmd_cb callback, void* argument, uint32_t io_flags);
}
