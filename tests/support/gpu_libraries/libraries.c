/* Fakes of the few functions of libcuda and libgdrapi that fastio.nvme.gpu_memory calls. "GPU memory" is a memfd of
   1 MiB, at the invented address GPU for both. Environment variables select failures. NOT the real libraries or GPU. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GPU 0x7f0000000000UL
#define SIZE (1UL << 20)

static int memory = -1;
static int pinned, mapped, open_sessions;

static int number(const char* name) {
    const char* text = getenv(name);
    return text ? atoi(text) : 0;
}

static int the_memory(void) {
    if (memory < 0) {
        memory = memfd_create("gpu", 0);
        if (ftruncate(memory, SIZE) != 0) abort();
    }
    return memory;
}

static int lies_inside(uint64_t address, uint64_t size, uint64_t page) {
    return address % page == 0 && size % page == 0 && address >= GPU && address + size <= GPU + SIZE;
}

/* For the test: read the memory, and count the pins, mappings and sessions that are still open. */
int gpu_read(uint64_t offset, void* to, uint64_t size) { return pread(the_memory(), to, size, offset) == (ssize_t)size; }
int gpu_held(void) { return pinned + mapped + open_sessions; }

int cuMemGetHandleForAddressRange(int* fd, uint64_t address, size_t size, int kind, unsigned long long flags) {
    int result = number("FAKE_CUDA_RESULT");
    if (result) return result;
    if (flags && number("FAKE_CUDA_OLD")) return 1;
    if (kind != 1 || address != GPU || size > SIZE || size % 4096 != 0) return 1;
    *fd = number("FAKE_CUDA_UNMAPPABLE") ? dup(0) : dup(the_memory());
    if (number("FAKE_CUDA_UNMAPPABLE")) {
        int ends[2];
        close(*fd);
        if (pipe(ends) != 0) abort();
        close(ends[1]);
        *fd = ends[0];
    }
    return 0;
}

void* gdr_open(void) {
    if (number("FAKE_GDR_NO_MODULE")) return NULL;
    ++open_sessions;
    return &open_sessions;
}

int gdr_close(void* session) {
    if (session != &open_sessions) abort();
    return --open_sessions, 0;
}

int gdr_pin_buffer(void* session, unsigned long address, size_t size, uint64_t token, uint32_t space, unsigned long* handle) {
    if (session != &open_sessions || token || space) abort();
    if (number("FAKE_GDR_PIN")) return number("FAKE_GDR_PIN");
    if (!lies_inside(address, size, 65536)) return EINVAL;
    *handle = address - GPU + 1;
    return ++pinned, 0;
}

int gdr_unpin_buffer(void* session, unsigned long handle) { return session && handle ? --pinned, 0 : EINVAL; }

int gdr_map(void* session, unsigned long handle, void** address, size_t size) {
    if (!session || number("FAKE_GDR_MAP")) return number("FAKE_GDR_MAP");
    *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, the_memory(), handle - 1);
    return *address == MAP_FAILED ? errno : (++mapped, 0);
}

int gdr_unmap(void* session, unsigned long handle, void* address, size_t size) {
    return session && handle ? --mapped, munmap(address, size) : EINVAL;
}
