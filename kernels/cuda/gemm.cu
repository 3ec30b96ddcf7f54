// Gemm for compute capability 8.0 and newer. Linear layers and convolutions are one matrix product, whose left operand
// is gathered from the picture tile by tile and never stored (implicit GEMM, Chetlur et al. 2014). 16-bit dtypes use
// tensor cores (mma.sync), float32 uses FMA instructions.
//
// A block computes a tile of rows (pixels of y) by outputs. The terms of a sum are indexed [kernel, kernel, inputs],
// like the weights of an output, and are processed in steps of 128 bytes. Shared memory has several stages, each with
// one step of both operands: one stage is used while the others are copied.
#include "instructions.cuh"
#include "gemm_epilogue.cuh"
#include "gemv.h"
#include "shared_memory.cuh"

namespace {
constexpr int THREADS = 128;
constexpr int STEP_BYTES = 128, CHUNK_BYTES = 16, CHUNKS = STEP_BYTES / CHUNK_BYTES;
template <typename T> constexpr int STEP = STEP_BYTES / sizeof(T);    // terms per step
template <typename T> constexpr int CHUNK = CHUNK_BYTES / sizeof(T);  // terms per chunk

// A gemm and the sizes of y, computed on the host because they take divisions.
struct Job {
    Gemm p;
    uint32_t rows, height, width;
};

// The position of the convolution kernel's first pixel for a row of the tile. It may be outside of the picture.
struct alignas(16) Pixel {
    int64_t offset;  // elements from x
    int y, x;
};

template <typename T, int ROWS, int OUTPUTS> struct Shared {
    // After the last step, this memory has the sums of the tile. The 8 extra floats per row avoid bank conflicts.
    static constexpr int SUMS_STRIDE = OUTPUTS + 8;
    // 96 KiB in all: one block fits on a multiprocessor of compute capability 8.6, two fit on 9.0.
    static constexpr int STAGES = (96 << 10) / ((ROWS + OUTPUTS) * STEP_BYTES);
    Pixel pixels[ROWS];
    union {
        struct {
            T x[STAGES][ROWS * STEP<T>], weights[STAGES][OUTPUTS * STEP<T>];
        };
        float sums[ROWS * SUMS_STRIDE];
    };
};

// 16-byte chunk `chunk` of row `row` of a step. Rows are 128 bytes apart, so without the XOR the eight rows that are
// read together would be in the same banks.
template <typename T> __device__ __forceinline__ T *chunk_of(T *step, int row, int chunk) {
    return step + row * STEP<T> + (chunk ^ row % 8) * CHUNK<T>;
}

template <int BYTES> __device__ __forceinline__ void copy_piece(void *to, const void *from, bool there) {
    if constexpr (BYTES == 16)
        copy_16_bytes(to, from, there);
    else if constexpr (BYTES == 2)  // cp.async copies at least 4 bytes
        *(uint16_t *)to = there ? *(const uint16_t *)from : (uint16_t)0;
    else
        copy_bytes<BYTES>(to, from, there);
}

// The tile of a block, and the copies of its steps in pieces of PIECE bytes. A pixel's inputs are a whole number of
// pieces.
//
// Example with 20 inputs of 2 bytes: a piece is 8 bytes or 4 terms, a step 64 terms, a chunk 8 terms. The thread that
// owns chunk 2 copies terms 16 to 19 (the last ones of the kernel's first pixel) and terms 20 to 23 (the first ones of
// its second pixel). Its next chunk, in the next step, begins at term 80: 64 - 8 + 4 terms after the start of the last
// piece.
template <typename T, int ROWS, int OUTPUTS, int PIECE> struct Tile {
    static constexpr int STAGES = Shared<T, ROWS, OUTPUTS>::STAGES;
    // A thread copies one chunk of every sixteenth row of a step.
    static constexpr int APART = THREADS / CHUNKS, OWN_ROWS = ROWS / APART, OWN_OUTPUTS = OUTPUTS / APART;
    static_assert(APART % 8 == 0, "the chunks of a thread are in one column");
    const Gemm &p;
    const uint32_t rows;
    Shared<T, ROWS, OUTPUTS> &shared;
    uint32_t first_row, first_output;
    int terms;

    // What this thread copies next: the index of the term, its input and its pixel (right, down) of the kernel, and the
    // addresses of both operands. Bit i of x_there and weights_there says whether the i-th row or weight exists.
    int term = 0, input = 0, right = 0, down = 0;
    const char *x, *weight;
    int64_t offsets[OWN_ROWS], weight_stride;
    uint32_t x_there, weights_there = 0;

    __device__ __forceinline__ Tile(const Job &job, Shared<T, ROWS, OUTPUTS> &shared)
        : p(job.p), rows(job.rows), shared(shared) {
        // Adjacent blocks share rows of x: for large sizes, x is larger than the weights.
        const uint32_t across = (p.outputs - 1) / OUTPUTS + 1;
        first_row = blockIdx.x / across * ROWS;
        first_output = blockIdx.x % across * OUTPUTS;
        terms = (int)terms_of(p);
        for (int i = threadIdx.x; i < ROWS; i += THREADS) {
            const uint32_t row = first_row + i;
            Pixel pixel = {0, -(1 << 30), 0};  // outside for every pixel of the kernel
            if (row < rows) {
                const uint32_t line = row / job.width, frame = line / job.height;
                pixel.y = (int)(line % job.height * p.stride - p.padding);
                pixel.x = (int)(row % job.width * p.stride - p.padding);
                pixel.offset = (((int64_t)frame * p.height + pixel.y) * p.width + pixel.x) * p.inputs;
            }
            shared.pixels[i] = pixel;
        }
        __syncthreads();
        const int first = threadIdx.x / CHUNKS;
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) offsets[i] = shared.pixels[first + i * APART].offset * (int64_t)sizeof(T);
#pragma unroll
        for (int i = 0; i < OWN_OUTPUTS; i++)
            weights_there |= (uint32_t)(first_output + first + i * APART < p.outputs) << i;
        weight = (const char *)p.weight + (uint64_t)(first_output + first) * terms * sizeof(T);
        weight_stride = (int64_t)APART * terms * sizeof(T);
        find_pixels();
        advance(threadIdx.x % CHUNKS * CHUNK<T>);
    }

    // Updates x and x_there for another pixel of the kernel.
    __device__ __forceinline__ void find_pixels() {
        x = (const char *)p.x + (((int64_t)down * p.width + right) * p.inputs + input) * sizeof(T);
        x_there = 0;
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) {
            const Pixel pixel = shared.pixels[threadIdx.x / CHUNKS + i * APART];
            x_there |= (uint32_t)((uint32_t)(pixel.y + down) < p.height & (uint32_t)(pixel.x + right) < p.width) << i;
        }
    }
    __device__ __forceinline__ void advance(int by) {
        term += by;
        input += by;
        x += by * sizeof(T);
        weight += by * sizeof(T);
        if (input < (int)p.inputs) return;
        if (term >= terms) {
            x_there = weights_there = 0;
            return;
        }
        for (; input >= (int)p.inputs; input -= p.inputs)
            if (++right == (int)p.kernel) {
                right = 0;
                ++down;
            }
        find_pixels();
    }

    // Starts the copy of the next step.
    __device__ __forceinline__ void copy(int stage) {
        constexpr int PIECE_TERMS = PIECE / sizeof(T);
        const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS;
        T *to_x = chunk_of(shared.x[stage], first, chunk), *to_weights = chunk_of(shared.weights[stage], first, chunk);
#pragma unroll
        for (int piece = 0; piece < CHUNK<T>; piece += PIECE_TERMS) {
#pragma unroll
            for (int i = 0; i < OWN_ROWS; i++)
                copy_piece<PIECE>(to_x + i * APART * STEP<T> + piece, x + offsets[i], x_there >> i & 1);
            const char *from = weight;
#pragma unroll
            for (int i = 0; i < OWN_OUTPUTS; i++, from += weight_stride)
                copy_piece<PIECE>(to_weights + i * APART * STEP<T> + piece, from, weights_there >> i & 1);
            advance(piece + PIECE_TERMS < CHUNK<T> ? PIECE_TERMS : STEP<T> - CHUNK<T> + PIECE_TERMS);
        }
    }

    // Calls work(x, weights) for every step, while the other stages are copied.
    template <typename Work> __device__ __forceinline__ void stream(Work work) {
        const int steps = (terms + STEP<T> - 1) / STEP<T>;
        for (int step = 0; step < STAGES - 1; step++) {
            if (step < steps) copy(step);
            copy_commit();
        }
        int stage = 0, free = STAGES - 1;
        for (int step = 0; step < steps; step++) {
            copy_wait<STAGES - 2>();
            __syncthreads();
            if (step + STAGES - 1 < steps) copy(free);
            copy_commit();
            work(shared.x[stage], shared.weights[stage]);
            free = stage;
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        copy_wait<0>();
        __syncthreads();
    }

    // The place for the sum of a row and an output, both indices within the tile. store() reads it.
    __device__ __forceinline__ float *sum(int row, int output) {
        return shared.sums + row * Shared<T, ROWS, OUTPUTS>::SUMS_STRIDE + output;
    }
    __device__ __forceinline__ void store() {
        __syncthreads();
        constexpr int FOURS = OUTPUTS / 4;
        for (int i = threadIdx.x; i < ROWS * FOURS; i += THREADS) {
            const int row = i / FOURS, output = i % FOURS * 4;
            if (first_row + row >= rows) return;
            if (first_output + output >= p.outputs) continue;
            const float4 four = *(const float4 *)sum(row, output);
            finish(p, first_row + row, first_output + output, {four.x, four.y, four.z, four.w});
        }
    }
};

// Kernel for 16-bit dtypes. The warps form a grid over the tile, WARPS_DOWN high.
template <typename T, int ROWS, int OUTPUTS, int WARPS_DOWN, int PIECE>
__global__ void __launch_bounds__(THREADS, 2) kernel_16(const __grid_constant__ Job job) {
    extern __shared__ __align__(128) unsigned char raw[];
    Tile<T, ROWS, OUTPUTS, PIECE> tile(job, *reinterpret_cast<Shared<T, ROWS, OUTPUTS> *>(raw));
    constexpr int WARPS_ACROSS = THREADS / 32 / WARPS_DOWN, DOWN = ROWS / WARPS_DOWN, ACROSS = OUTPUTS / WARPS_ACROSS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp / WARPS_ACROSS * DOWN, warp_output = warp % WARPS_ACROSS * ACROSS;

    float sums[DOWN / 16][ACROSS / 8][4] = {};
    tile.stream([&](T *x, T *weights) {
        // The operands of 16 terms are loaded while the previous 16 are multiplied. The address of chunk_of(.., row,
        // chunk + 2 k) is that of chunk_of(.., row, chunk) XOR 2 k chunks, because rows are 128 bytes and aligned to
        // 128 bytes.
        uint32_t a[2][DOWN / 16][4], b[2][ACROSS / 16][4];
        const uint32_t from_x = shared_address(chunk_of(x, warp_row + lane % 16, lane / 16));
        const uint32_t from_weights =
            shared_address(chunk_of(weights, warp_output + lane / 16 * 8 + lane % 8, lane / 8 % 2));
        const auto load = [&](int k) {
            const uint32_t bits = k * 2 * CHUNK_BYTES;
#pragma unroll
            for (int m = 0; m < DOWN / 16; m++) load_matrices(a[k % 2][m], (from_x ^ bits) + m * 16 * STEP_BYTES);
#pragma unroll
            for (int n = 0; n < ACROSS / 16; n++) load_matrices(b[k % 2][n], (from_weights ^ bits) + n * 16 * STEP_BYTES);
        };
        load(0);
#pragma unroll
        for (int k = 0; k < CHUNKS / 2; k++) {
            if (k + 1 < CHUNKS / 2) load(k + 1);
#pragma unroll
            for (int m = 0; m < DOWN / 16; m++)
#pragma unroll
                for (int n = 0; n < ACROSS / 8; n++)
                    mma(sums[m][n], a[k % 2][m], b[k % 2][n / 2][n % 2 * 2], b[k % 2][n / 2][n % 2 * 2 + 1], T());
        }
    });
#pragma unroll
    for (int m = 0; m < DOWN / 16; m++)
#pragma unroll
        for (int n = 0; n < ACROSS / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(float2 *)tile.sum(warp_row + m * 16 + half * 8 + lane / 4, warp_output + n * 8 + lane % 4 * 2) =
                    make_float2(sums[m][n][half * 2], sums[m][n][half * 2 + 1]);
    tile.store();
}

// Kernel for float32. A thread computes 8 x 8 sums, of rows that are 8 apart and outputs that are 4 apart. The 32 terms
// of a step are summed first and then added to the sums, so a long sum rounds about as little as pairwise summation.
constexpr int ROWS_32 = 128, OUTPUTS_32 = 64;
template <int PIECE> __global__ void __launch_bounds__(THREADS) kernel_32(const __grid_constant__ Job job) {
    extern __shared__ __align__(128) unsigned char raw[];
    Tile<float, ROWS_32, OUTPUTS_32, PIECE> tile(job, *reinterpret_cast<Shared<float, ROWS_32, OUTPUTS_32> *>(raw));
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_row = warp / 2 * 64 + lane % 8, first_output = warp % 2 * 32 + lane / 8;

    float sums[8][8] = {};
    tile.stream([&](float *x, float *weights) {
        float part[8][8] = {};
#pragma unroll 2
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            float4 w[8];
#pragma unroll
            for (int n = 0; n < 8; n++) w[n] = *(const float4 *)chunk_of(weights, first_output + n * 4, chunk);
#pragma unroll
            for (int m = 0; m < 8; m++) {
                const float4 v = *(const float4 *)chunk_of(x, first_row + m * 8, chunk);
#pragma unroll
                for (int n = 0; n < 8; n++)
                    part[m][n] = fmaf(v.w, w[n].w, fmaf(v.z, w[n].z, fmaf(v.y, w[n].y, fmaf(v.x, w[n].x, part[m][n]))));
            }
        }
#pragma unroll
        for (int m = 0; m < 8; m++)
#pragma unroll
            for (int n = 0; n < 8; n++) sums[m][n] += part[m][n];
    });
#pragma unroll
    for (int m = 0; m < 8; m++)
#pragma unroll
        for (int n = 0; n < 8; n++) *tile.sum(first_row + m * 8, first_output + n * 4) = sums[m][n];
    tile.store();
}

uint64_t blocks_of(const Gemm &p, int rows, int outputs) {
    return (rows_of(p) + rows - 1) / rows * ((p.outputs - 1) / outputs + 1);
}
template <auto kernel, typename T, int ROWS, int OUTPUTS>
cudaError_t launch(const Gemm &p, cudaStream_t stream) {
    const uint64_t blocks = blocks_of(p, ROWS, OUTPUTS);
    if (blocks > INT32_MAX) return cudaErrorInvalidValue;
    const Job job = {p, (uint32_t)rows_of(p), (uint32_t)out_size(p.height, p), (uint32_t)out_size(p.width, p)};
    constexpr int BYTES = sizeof(Shared<T, ROWS, OUTPUTS>);
    static_assert(BYTES <= 99 << 10, "the maximum of a block on compute capability 8.6");
    const cudaError_t error = allow_shared_memory<kernel>(BYTES);
    if (error != cudaSuccess) return error;
    kernel<<<(unsigned)blocks, THREADS, BYTES, stream>>>(job);
    return cudaGetLastError();
}
template <typename T, int ROWS, int OUTPUTS, int WARPS_DOWN, int PIECE = 16>
cudaError_t launch_16(const Gemm &p, cudaStream_t stream) {
    return launch<kernel_16<T, ROWS, OUTPUTS, WARPS_DOWN, PIECE>, T, ROWS, OUTPUTS>(p, stream);
}

// Whether pixels and weights can be copied `bytes` at a time.
bool copied_by(const Gemm &p, size_t bytes, size_t element) {
    return p.inputs * element % bytes == 0 && (uintptr_t)p.x % bytes == 0 && (uintptr_t)p.weight % bytes == 0;
}

template <typename T> cudaError_t launch_16(const Gemm &p, cudaStream_t stream) {
    if (!copied_by(p, 16, 2))
        return copied_by(p, 8, 2) ? launch_16<T, 128, 64, 2, 8>(p, stream) : launch_16<T, 128, 64, 2, 2>(p, stream);
    int device, multiprocessors;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    if (p.outputs <= 32) return launch_16<T, 128, 32, 4>(p, stream);
    // Large tiles read less; small tiles leave fewer multiprocessors idle. `each` is the cost of a block when two share
    // a multiprocessor (measured on an H200; a large tile is 100); a block that is alone costs a quarter more.
    const auto cost = [&](int rows, int outputs, uint64_t each) {
        const uint64_t rounds = (blocks_of(p, rows, outputs) + multiprocessors - 1) / multiprocessors;
        return rounds * each + rounds % 2 * each / 4;
    };
    const uint64_t large = cost(128, 128, 100), middle = cost(128, 64, 64), small = cost(64, 64, 36);
    if (large <= middle && large <= small) return launch_16<T, 128, 128, 2>(p, stream);
    return middle <= small ? launch_16<T, 128, 64, 2>(p, stream) : launch_16<T, 64, 64, 2>(p, stream);
}
cudaError_t launch_32(const Gemm &p, cudaStream_t stream) {
    return copied_by(p, 16, 4) ? launch<kernel_32<16>, float, ROWS_32, OUTPUTS_32>(p, stream)
                               : launch<kernel_32<4>, float, ROWS_32, OUTPUTS_32>(p, stream);
}
} // namespace

extern "C" cudaError_t periplus_gemm(const Gemm *gemm, cudaStream_t stream) {
    const Gemm &p = *gemm;
    if (!valid(p)) return cudaErrorInvalidValue;
    if (rows_of(p) == 0 || p.outputs == 0) return cudaSuccess;
    if (gemv_fits(p)) return gemv(p, stream);
    switch (p.dtype) {
    case DTYPE_F16: return launch_16<__half>(p, stream);
    case DTYPE_BF16: return launch_16<__nv_bfloat16>(p, stream);
    default: return launch_32(p, stream);
    }
}
