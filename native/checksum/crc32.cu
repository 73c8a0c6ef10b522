// CRC-32 of memory on a GPU, modulo the polynomial of crc32.hpp. Compiled at run time through CuPy
// (fastio/devices/crc32_cuda.py).
//
// Ranges of memory are divided into pieces; a warp computes the remainder of a piece. In each step its 32 lanes load 32
// consecutive words, a row, after each lane multiplied its remainder by x^1024, the distance of a row. That takes four
// table lookups, as slicing-by-4 does for the distance of a word (Kounavis and Berry, 2005). All loads are aligned, and
// a warp's are contiguous.
//
// A remainder lacks the inversions of zlib's value, so zeros before a piece have no effect: they fill the first row.
// The host adds the inversions when it combines the pieces.

typedef unsigned int u32;
typedef unsigned long long u64;

// Polynomials modulo P, reflected as in crc32_polynomial.hpp. The native test checks the powers.
#define X_0 0x80000000u     // 1: bit 31 is the coefficient of x^0
#define X_32 0xEDB88320u    // the same as P without its own x^32
#define X_1024 0xD7BBFE6Au  // the distance of a row: 32 words

__device__ inline u32 multiply(u32 a, u32 b) {
    u32 product = 0;
    for (u32 bit = 0; bit < 32; ++bit) {
        product ^= b & (0u - (a >> 31));
        a <<= 1;
        b = (b >> 1) ^ (X_32 & (0u - (b & 1u)));
    }
    return product;
}

// Multiplies a remainder by the distance of a row.
__device__ inline u32 next_row(u32 state, const u32 (*slices)[256]) {
    return slices[0][state & 0xFFu] ^ slices[1][(state >> 8) & 0xFFu] ^ slices[2][(state >> 16) & 0xFFu] ^
           slices[3][state >> 24];
}

// Returns the word at `address`, with zeros in the place of bytes outside [begin, end).
__device__ inline u32 load(u64 address, u64 begin, u64 end) {
    if (begin <= address && address + 4 <= end) return *reinterpret_cast<const u32*>(address);
    u32 word = 0;
    for (u64 byte = address; byte < address + 4; ++byte) {
        const bool inside = begin <= byte && byte < end;
        if (inside) word |= u32(*reinterpret_cast<const unsigned char*>(byte)) << (8 * (byte - address));
    }
    return word;
}

// Returns the remainder of [begin, end), in lane 0; all lanes of a warp call it.
__device__ inline u32 remainder_of(u64 begin, u64 end, const u32 (*slices)[256]) {
    const u64 last = (end + 3) / 4 * 4;  // where the last row ends; the first one may begin before the piece
    const u64 rows = (last - begin + 127) / 128;
    u64 at = last - rows * 128 + threadIdx.x % 32 * 4;
    u32 state = load(at, begin, end);
    for (u64 row = 2; row < rows; ++row) {  // no test of bounds: the compiler can start several loads at once
        state = next_row(state, slices) ^ *reinterpret_cast<const u32*>(at += 128);
    }
    if (rows > 1) state = next_row(state, slices) ^ load(at + 128, begin, end);
    // Each lane adds the words of the lane `distance` further; in the end lane 0 has those of all.
    u32 power = X_32;
    for (u32 distance = 1; distance < 32; distance *= 2) {
        state = multiply(state, power) ^ __shfl_down_sync(0xFFFFFFFFu, state, distance);
        power = multiply(power, power);
    }
    // A remainder is that of the bytes times x^32. The zeros that fill the last word have multiplied it already.
    const u32 zeros = u32(last - end);
    return multiply(state, zeros == 0 ? X_32 : X_0 >> (32 - 8 * zeros));
}

// Computes the remainders of `pieces` pieces. Each of `ranges` ranges has three numbers: its address, its length in
// bytes, and the number of pieces before its first one; all its pieces but the last have `piece` bytes. Every warp of
// the grid has a number; those past the last piece return.
extern "C" __global__ void crc32_pieces(const u64* table, u64 ranges, u64 piece, u64 pieces, u32* remainders) {
    __shared__ u32 slices[4][256];
    for (u32 i = threadIdx.x; i < 1024; i += blockDim.x) {
        slices[i / 256][i % 256] = multiply((i % 256) << (i / 256 * 8), X_1024);
    }
    __syncthreads();
    const u64 number = (u64(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    if (number >= pieces) return;
    u64 range = 0;  // the last one that starts at or before this piece
    for (u64 end = ranges; end - range > 1;) {
        const u64 middle = (range + end) / 2;
        (table[middle * 3 + 2] <= number ? range : end) = middle;
    }
    const u64 skipped = (number - table[range * 3 + 2]) * piece;
    const u64 left = table[range * 3 + 1] - skipped;
    const u64 begin = table[range * 3] + skipped;
    const u32 remainder = remainder_of(begin, begin + (left < piece ? left : piece), slices);
    if (threadIdx.x % 32 == 0) remainders[number] = remainder;
}
