// LayerNorm over the last dimension: a warp a row, which it holds in registers when it fits.
#include "numbers.cuh"
#include "operations.h"

namespace {
constexpr int THREADS = 128, LANES = 32;

template <typename T> __device__ __forceinline__ void store_four(T *to, const float (&x)[4]) {
    struct alignas(4 * sizeof(T)) { T values[4]; } four;
#pragma unroll
    for (int i = 0; i < 4; i++) four.values[i] = from_float<T>(x[i]);
    *(decltype(four) *)to = four;
}

// Rows of up to 128 VECTORS channels, a multiple of 4.
template <typename T, int VECTORS>
__global__ void __launch_bounds__(THREADS) norm_in_registers(T *y, const float *x, const float *weight, const float *bias,
                                                             uint64_t rows, uint32_t channels, float eps) {
    const uint32_t lane = threadIdx.x % LANES;
    for (uint64_t row = first_thread() / LANES; row < rows; row += all_threads() / LANES) {
        float values[VECTORS][4], sum = 0.f;
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const uint32_t channel = (i * LANES + lane) * 4;
            const float4 four = channel < channels ? *(const float4 *)(x + row * channels + channel) : float4{};
            values[i][0] = four.x, values[i][1] = four.y, values[i][2] = four.z, values[i][3] = four.w;
            sum += (four.x + four.y) + (four.z + four.w);
        }
        const float mean = warp_sum(sum) / channels;
        float squares = 0.f;
#pragma unroll
        for (int i = 0; i < VECTORS; i++)
            if ((i * LANES + lane) * 4 < channels)
#pragma unroll
                for (float value : values[i]) squares += (value - mean) * (value - mean);
        const float scale = 1.f / sqrtf(warp_sum(squares) / channels + eps);
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const uint32_t channel = (i * LANES + lane) * 4;
            if (channel >= channels) break;
            const float4 w = *(const float4 *)(weight + channel), b = *(const float4 *)(bias + channel);
            const float result[4] = {
                (values[i][0] - mean) * scale * w.x + b.x, (values[i][1] - mean) * scale * w.y + b.y,
                (values[i][2] - mean) * scale * w.z + b.z, (values[i][3] - mean) * scale * w.w + b.w};
            store_four(y + row * channels + channel, result);
        }
    }
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

cudaError_t layer_norm(void *y, ElementType type, const float *x, const float *weight, const float *bias, uint64_t rows,
                       uint32_t channels, float eps, cudaStream_t stream) {
    if (rows == 0 || channels == 0) return cudaSuccess;
    return with_element(type, [&](auto number) {
        using T = decltype(number);
        const unsigned blocks = blocks_for(rows * LANES, THREADS);
        const bool vectors = channels % 4 == 0 && aligned(x) && aligned(y) && aligned(weight) && aligned(bias);
        auto kernel = !vectors || channels > 2048 ? norm_of_any_size<T>
                      : channels <= 512           ? norm_in_registers<T, 4>
                      : channels <= 1024          ? norm_in_registers<T, 8>
                                                  : norm_in_registers<T, 16>;
        kernel<<<blocks, THREADS, 0, stream>>>((T *)y, x, weight, bias, rows, channels, eps);
        return cudaGetLastError();
    });
}
