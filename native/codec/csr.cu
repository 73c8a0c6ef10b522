// CSR-128 on a GPU, with exactly the payload of csr.hpp. Compiled at run time through CuPy
// (fastio/offload/codecs/csr_cuda.py).
//
// A warp processes a row. Packing has two kernels with a running sum between them: csr_find_* finds the bits and the
// number of non-zeros of each row; the inclusive sum `ends` gives the place of each row's values; csr_pack_* writes the
// payload. It packs by the bits of the first kernel, so it writes in bounds even if the source has changed.
// csr_unpack_* validates: if a row's pointer and popcount do not lead exactly to the next row's pointer (the first row
// starts at 0, the last ends at the number of values), it fills the row with ones (floats: NaN) and sets `damaged`.
//
// In each of four passes, the 32 lanes take 32 consecutive elements of the row. All accesses are contiguous, and all
// but those to the values are aligned.

typedef unsigned int u32;
typedef unsigned long long u64;

__device__ inline u64 row_of_warp() { return (u64(blockIdx.x) * blockDim.x + threadIdx.x) / 32; }

__device__ inline u64 values_at(u64 rows) { return (rows * 20 + 7) / 8 * 8; }

template <typename Element>
__device__ void find(const Element* source, u64 elements, u32* bits, long long* counts) {
    const u64 row = row_of_warp();
    if (row >= (elements + 127) / 128) return;
    const u32 lane = threadIdx.x % 32;
    u32 count = 0;
    for (u32 word = 0; word < 4; ++word) {
        const u64 i = row * 128 + word * 32 + lane;
        const u32 mask = __ballot_sync(0xFFFFFFFFu, i < elements && source[i] != 0);
        if (lane == word) bits[row * 4 + word] = mask;
        count += __popc(mask);
    }
    if (lane == 0) counts[row] = count;
}

template <typename Element>
__device__ void pack(const Element* source, u64 elements, const u32* bits, const long long* ends,
                     unsigned char* payload) {
    const u64 row = row_of_warp();
    const u64 rows = (elements + 127) / 128;
    if (row >= rows) return;
    const u32 lane = threadIdx.x % 32;
    u64 first = row == 0 ? 0 : ends[row - 1];
    if (lane < 4) reinterpret_cast<u32*>(payload)[row * 4 + lane] = bits[row * 4 + lane];
    u32* pointers = reinterpret_cast<u32*>(payload + rows * 16);
    if (lane == 0) pointers[row] = u32(first);
    if (lane == 0 && row == rows - 1 && rows % 2 == 1) pointers[rows] = 0;  // the padding
    Element* values = reinterpret_cast<Element*>(payload + values_at(rows));
    for (u32 word = 0; word < 4; ++word) {
        const u32 mask = bits[row * 4 + word];
        const u64 i = row * 128 + word * 32 + lane;
        if ((mask >> lane) & 1u) values[first + __popc(mask & ((1u << lane) - 1u))] = source[i];
        first += __popc(mask);
    }
}

template <typename Element>
__device__ void unpack(const unsigned char* payload, u64 nonzeros, u64 elements, Element* destination, int* damaged) {
    const u64 row = row_of_warp();
    const u64 rows = (elements + 127) / 128;
    if (row >= rows) return;
    const u32 lane = threadIdx.x % 32;
    const u32* pointers = reinterpret_cast<const u32*>(payload + rows * 16);
    const Element* values = reinterpret_cast<const Element*>(payload + values_at(rows));
    const u64 here = elements - row * 128 < 128 ? elements - row * 128 : 128;
    u32 masks[4];
    u64 count = 0;
    bool good = row + 1 < rows || rows % 2 == 0 || pointers[rows] == 0;
    for (u32 word = 0; word < 4; ++word) {
        masks[word] = reinterpret_cast<const u32*>(payload)[row * 4 + word];
        count += __popc(masks[word]);
        const u64 left = here > word * 32 ? here - word * 32 : 0;  // elements from this word on
        if (left < 32 && (masks[word] >> left) != 0) good = false;
    }
    u64 first = pointers[row];
    const u64 next = row + 1 < rows ? pointers[row + 1] : nonzeros;
    if (first + count != next || next > nonzeros || (row == 0 && first != 0)) good = false;
    if (!good) *damaged = 1;
    for (u32 word = 0; word < 4; ++word) {
        const u64 i = row * 128 + word * 32 + lane;
        const bool kept = (masks[word] >> lane) & 1u;
        if (i < elements && !good)
            destination[i] = Element(~u64(0));
        else if (i < elements)
            destination[i] = kept ? values[first + __popc(masks[word] & ((1u << lane) - 1u))] : Element(0);
        first += __popc(masks[word]);
    }
}

#define FASTIO_CSR(ITEMSIZE, Element)                                                                          \
    extern "C" __global__ void csr_find_##ITEMSIZE(const Element* source, u64 elements, u32* bits,             \
                                                   long long* counts) {                                        \
        find(source, elements, bits, counts);                                                                  \
    }                                                                                                          \
    extern "C" __global__ void csr_pack_##ITEMSIZE(const Element* source, u64 elements, const u32* bits,       \
                                                   const long long* ends, unsigned char* payload) {            \
        pack(source, elements, bits, ends, payload);                                                           \
    }                                                                                                          \
    extern "C" __global__ void csr_unpack_##ITEMSIZE(const unsigned char* payload, u64 nonzeros, u64 elements, \
                                                     Element* destination, int* damaged) {                     \
        unpack(payload, nonzeros, elements, destination, damaged);                                             \
    }

FASTIO_CSR(2, unsigned short)
FASTIO_CSR(4, u32)
FASTIO_CSR(8, u64)
