// Gemv for up to 8 rows, at the speed of memory: every weight is read once, 16 bytes per lane, and used for all rows.
#include "early_launch.cuh"
#include "gemm_epilogue.cuh"
#include "gemv.h"

namespace {
constexpr int THREADS = 256, WARPS = THREADS / 32, MOST_ROWS = 8;

// 16 bytes of elements, read as float32.
template <typename T> struct Chunk {
    static constexpr int TERMS = 16 / sizeof(T);
    struct alignas(16) {
        T values[TERMS];
    } all;
    __device__ __forceinline__ float operator[](int i) const { return to_float(all.values[i]); }
};

// Weights are read once, so they should not evict x from the L1 cache.
template <typename T> __device__ __forceinline__ Chunk<T> load_once(const T *from) {
    uint4 raw;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w) : "l"(from));
    Chunk<T> chunk;
    memcpy(&chunk, &raw, 16);
    return chunk;
}

// `parts` warps share OUTPUTS adjacent outputs; each takes every parts-th round of 32 chunks. `whole`: rows are whole
// chunks aligned to 16 bytes; otherwise single elements are read. Past the last row or output, a warp computes the last
// one again and does not store it.
template <typename T, int ROWS, int OUTPUTS>
__global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Gemm p, uint32_t rows, int parts, bool whole) {
    // Loads of weights in flight: as many as fit in registers.
    constexpr int AHEAD = OUTPUTS >= 4 ? 2 : 8 / OUTPUTS, TERMS = Chunk<T>::TERMS;
    __shared__ float shared[WARPS][ROWS * OUTPUTS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % parts;
    const uint32_t first_output = (blockIdx.x * (WARPS / parts) + warp / parts) * OUTPUTS;
    const uint32_t inputs = p.inputs;
    const T *weights[OUTPUTS], *x[ROWS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++)
        weights[o] = (const T *)p.weight + (uint64_t)min(first_output + o, p.outputs - 1) * inputs;
#pragma unroll
    for (int r = 0; r < ROWS; r++) x[r] = (const T *)p.x + (uint64_t)min((uint32_t)r, rows - 1) * inputs;

    // No kernel writes weights, so their first rounds may be prefetched while the previous kernel still runs.
    const uint32_t chunks = inputs / TERMS, apart = 32 * parts;
    if (whole)
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++)
                if (const uint32_t chunk = part * 32 + lane + i * apart; chunk < chunks)
                    asm volatile("prefetch.global.L2 [%0];" ::"l"(weights[o] + chunk * TERMS));
    wait_for_kernel_before();

    float sums[ROWS][OUTPUTS] = {};
    if (whole) {
        uint32_t chunk = part * 32 + lane;
        const auto take = [&](auto count) {
            constexpr int COUNT = decltype(count)::value;
            Chunk<T> w[COUNT][OUTPUTS];
#pragma unroll
            for (int i = 0; i < COUNT; i++)
#pragma unroll
                for (int o = 0; o < OUTPUTS; o++) w[i][o] = load_once(weights[o] + (chunk + i * apart) * TERMS);
#pragma unroll
            for (int i = 0; i < COUNT; i++)
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const Chunk<T> v = *(const Chunk<T> *)(x[r] + (chunk + i * apart) * TERMS);
#pragma unroll
                    for (int o = 0; o < OUTPUTS; o++)
#pragma unroll
                        for (int t = 0; t < TERMS; t++) sums[r][o] = fmaf(v[t], w[i][o][t], sums[r][o]);
                }
            chunk += COUNT * apart;
        };
        while (chunk + (AHEAD - 1) * apart < chunks) take(std::integral_constant<int, AHEAD>());
        while (chunk < chunks) take(std::integral_constant<int, 1>());
    } else {
        for (uint32_t term = part * 32 + lane; term < inputs; term += 32 * parts)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int o = 0; o < OUTPUTS; o++)
                    sums[r][o] = fmaf(to_float(x[r][term]), to_float(weights[o][term]), sums[r][o]);
    }

#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            const float sum = warp_sum(sums[r][o]);
            if (lane == 0) shared[warp][r * OUTPUTS + o] = sum;
        }
    __syncthreads();
    const uint32_t row = lane / OUTPUTS, output = first_output + lane % OUTPUTS;
    if (part != 0 || row >= rows || row >= ROWS || output >= p.outputs) return;
    float sum[1] = {0.f};
    for (int i = 0; i < parts; i++) sum[0] += shared[warp + i][lane];
    finish(p, row, output, sum);
}

template <typename T, int ROWS, int OUTPUTS> cudaError_t launch(const Gemm &p, cudaStream_t stream) {
    static_assert(ROWS * OUTPUTS <= 32, "a lane stores one");
    const bool whole = p.inputs * sizeof(T) % 16 == 0 && aligned(p.x) && aligned(p.weight);
    // Enough warps to use the full memory bandwidth of a large GPU, but not more parts than rounds of chunks.
    constexpr uint64_t ENOUGH = 4096;
    const uint64_t groups = ((uint64_t)p.outputs + OUTPUTS - 1) / OUTPUTS;
    int parts = 1;
    while (parts < WARPS && groups * parts < ENOUGH && p.inputs * sizeof(T) > (uint64_t)parts * 32 * 16) parts *= 2;
    const uint64_t a_block = WARPS / parts;
    const unsigned blocks = (unsigned)((groups + a_block - 1) / a_block);
    return launch_early(kernel<T, ROWS, OUTPUTS>, dim3(blocks), THREADS, 0, stream, p, (uint32_t)rows_of(p), parts, whole);
}
} // namespace

bool gemv_fits(const Gemm &p) {
    return p.kernel == 1 && p.stride == 1 && p.padding == 0 && rows_of(p) <= MOST_ROWS;
}

cudaError_t gemv(const Gemm &p, cudaStream_t stream) {
    const uint64_t rows = rows_of(p);
    return with_dtype(p.dtype, [&](auto zero) {
        using T = decltype(zero);
        // Outputs of one warp share its reads of x.
        if (rows == 1) return launch<T, 1, 1>(p, stream);
        if (rows == 2) return launch<T, 2, 2>(p, stream);
        return rows <= 4 ? launch<T, 4, 4>(p, stream) : launch<T, MOST_ROWS, 4>(p, stream);
    });
}
