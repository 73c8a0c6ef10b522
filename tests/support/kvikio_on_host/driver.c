/* A fake of NVIDIA's driver library (libcuda.so.1), for machines without a GPU: the memory of its one device is the
 * process's own, so kvikio's code for device memory runs, including its bounce buffers and copies.
 *
 * It has only the functions that kvikio looks up. Results are CUresult: 0 is success. Attribute numbers are the real
 * driver's.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef uint64_t Pointer;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801 };
enum { CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, DEVICE_ORDINAL = 9 };
enum { DEVICE_MEMORY = 2 };

static int context; /* its address stands for the one context, and for every stream */

Result cuPointerGetAttribute(void* value, int name, Pointer pointer) {
    switch (name) {
        case CONTEXT:
            *(void**)value = &context;
            return SUCCESS;
        case MEMORY_TYPE:
            *(unsigned*)value = DEVICE_MEMORY;
            return SUCCESS;
        case DEVICE_POINTER:
            *(Pointer*)value = pointer;
            return SUCCESS;
        case DEVICE_ORDINAL:
            *(int*)value = 0;
            return SUCCESS;
        default:
            return INVALID_VALUE;
    }
}

Result cuPointerGetAttributes(unsigned count, int* names, void** values, Pointer pointer) {
    Result result = SUCCESS;
    for (unsigned i = 0; i < count && result == SUCCESS; ++i)
        result = cuPointerGetAttribute(values[i], names[i], pointer);
    return result;
}

Result cuMemGetAddressRange_v2(Pointer* base, size_t* nbytes, Pointer pointer) {
    *base = pointer;
    *nbytes = (size_t)1 << 40;
    return SUCCESS;
}

Result cuMemHostAlloc(void** memory, size_t nbytes, unsigned flags) {
    (void)flags;
    return posix_memalign(memory, 4096, nbytes) == 0 ? SUCCESS : OUT_OF_MEMORY;
}

Result cuMemFreeHost(void* memory) {
    free(memory);
    return SUCCESS;
}

Result cuMemcpyAsync(Pointer target, Pointer source, size_t nbytes, void* stream) {
    (void)stream;
    memcpy((void*)target, (const void*)source, nbytes);
    return SUCCESS;
}

Result cuMemcpyHtoDAsync_v2(Pointer target, const void* source, size_t nbytes, void* stream) {
    return cuMemcpyAsync(target, (Pointer)source, nbytes, stream);
}

Result cuMemcpyDtoHAsync_v2(void* target, Pointer source, size_t nbytes, void* stream) {
    return cuMemcpyAsync((Pointer)target, source, nbytes, stream);
}

Result cuCtxPopCurrent_v2(void** popped) {
    *popped = &context;
    return SUCCESS;
}

Result cuCtxGetCurrent(void** current) { return cuCtxPopCurrent_v2(current); }

Result cuDevicePrimaryCtxRetain(void** retained, int device) {
    (void)device;
    return cuCtxPopCurrent_v2(retained);
}

Result cuStreamCreate(void** stream, unsigned flags) {
    (void)flags;
    return cuCtxPopCurrent_v2(stream);
}

Result cuEventCreate(void** event, unsigned flags) { return cuStreamCreate(event, flags); }

Result cuGetErrorName(Result error, const char** name) {
    *name = error == SUCCESS ? "SUCCESS" : "ERROR";
    return SUCCESS;
}

Result cuGetErrorString(Result error, const char** text) { return cuGetErrorName(error, text); }

Result cuCtxGetDevice(int* device) {
    *device = 0;
    return SUCCESS;
}

Result cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return SUCCESS;
}

Result cuDeviceGetCount(int* count) {
    *count = 1;
    return SUCCESS;
}

Result cuDriverGetVersion(int* version) {
    *version = 12000; /* a driver without batched copies */
    return SUCCESS;
}

/* Nothing to do: copies are synchronous. */
#define DONE(name) \
    Result name(void) { return SUCCESS; }
DONE(cuInit)
DONE(cuMemHostRegister_v2)
DONE(cuMemHostUnregister)
DONE(cuCtxPushCurrent_v2)
DONE(cuDevicePrimaryCtxRelease_v2)
DONE(cuStreamSynchronize)
DONE(cuStreamDestroy_v2)
DONE(cuEventSynchronize)
DONE(cuEventDestroy_v2)
DONE(cuEventRecord)
DONE(cuEventQuery)

/* Looked up but not used. */
#define ABSENT(name) \
    Result name(void) { return NOT_SUPPORTED; }
ABSENT(cuCtxCreate_v2)
ABSENT(cuCtxCreate_v4)
ABSENT(cuCtxDestroy_v2)
ABSENT(cuDeviceGetAttribute)
ABSENT(cuLaunchHostFunc)
