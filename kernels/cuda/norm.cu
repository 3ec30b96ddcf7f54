// LayerNorm over the last dimension: one block per row, in registers if the row fits.
#include "early_launch.cuh"
#include "elements.cuh"
#include "operations.h"

namespace {
constexpr int THREADS = 128, LANES = 32;
constexpr uint32_t MOST_THREADS = 1024; // per block; each thread has four channels

template <typename T> __device__ __forceinline__ void store_four(T *to, const float (&x)[4]) {
    struct alignas(4 * sizeof(T)) { T values[4]; } four;
#pragma unroll
    for (int i = 0; i < 4; i++) four.values[i] = from_float<T>(x[i]);
    *(decltype(four) *)to = four;
}

// Sum over the threads of a block; `sums` has one element per warp.
__device__ __forceinline__ float block_sum(float x, float *sums) {
    x = warp_sum(x);
    if (threadIdx.x % LANES == 0) sums[threadIdx.x / LANES] = x;
    __syncthreads();
    float sum = 0.f;
    for (uint32_t warp = 0; warp < blockDim.x / LANES; warp++) sum += sums[warp];
    return sum;
}

// `channels` is a multiple of 4, and at most four per thread. Weight and bias are loaded while the sums are computed.
template <typename T>
__global__ void norm_in_registers(T *y, const float *x, const float *weight, const float *bias, uint32_t channels,
                                  float eps) {
    __shared__ float sums[2][MOST_THREADS / LANES];
    wait_for_kernel_before();
    const uint32_t channel = threadIdx.x * 4;
    const bool there = channel < channels;
    const uint64_t at = (uint64_t)blockIdx.x * channels + channel;
    const float4 zero{};
    const float4 value = there ? *(const float4 *)(x + at) : zero;
    const float4 w = there ? *(const float4 *)(weight + channel) : zero;
    const float4 b = there ? *(const float4 *)(bias + channel) : zero;
    const float mean = block_sum((value.x + value.y) + (value.z + value.w), sums[0]) / channels;
    const float d[4] = {value.x - mean, value.y - mean, value.z - mean, value.w - mean};
    const float squares = there ? (d[0] * d[0] + d[1] * d[1]) + (d[2] * d[2] + d[3] * d[3]) : 0.f;
    const float scale = 1.f / sqrtf(block_sum(squares, sums[1]) / channels + eps);
    if (!there) return;
    const float result[4] = {d[0] * scale * w.x + b.x, d[1] * scale * w.y + b.y, d[2] * scale * w.z + b.z,
                             d[3] * scale * w.w + b.w};
    store_four(y + at, result);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) norm_of_any_size(T *y, const float *x, const float *weight, const float *bias,
                                                            uint64_t rows, uint32_t channels, float eps) {
    const uint32_t lane = threadIdx.x % LANES;
    for (uint64_t row = first_thread() / LANES; row < rows; row += all_threads() / LANES) {
        const float *from = x + row * channels;
        float sum = 0.f, squares = 0.f;
        for (uint32_t i = lane; i < channels; i += LANES) sum += from[i];
        const float mean = warp_sum(sum) / channels;
        for (uint32_t i = lane; i < channels; i += LANES) squares += (from[i] - mean) * (from[i] - mean);
        const float scale = 1.f / sqrtf(warp_sum(squares) / channels + eps);
        for (uint32_t i = lane; i < channels; i += LANES)
            y[row * channels + i] = from_float<T>((from[i] - mean) * scale * weight[i] + bias[i]);
    }
}
} // namespace

cudaError_t periplus_layer_norm(void *y, DType dtype, const float *x, const float *weight, const float *bias, uint64_t rows,
                       uint32_t channels, float eps, cudaStream_t stream) {
    if (rows == 0 || channels == 0) return cudaSuccess;
    return with_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        const bool vectors = channels % 4 == 0 && aligned(x) && aligned(y) && aligned(weight) && aligned(bias);
        const uint32_t warps = (channels + 4 * LANES - 1) / (4 * LANES);
        if (vectors && warps * LANES <= MOST_THREADS && rows <= 0x7FFFFFFF)
            return launch_early(norm_in_registers<T>, dim3((unsigned)rows), warps * LANES, 0, stream, (T *)y, x, weight, bias,
                                channels, eps);
        norm_of_any_size<<<blocks_for(rows * LANES, THREADS), THREADS, 0, stream>>>((T *)y, x, weight, bias, rows, channels,
                                                                                  eps);
        return cudaGetLastError();
    });
}
