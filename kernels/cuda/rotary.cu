// LayerNorm and RoPE of queries and keys. If asked, the same kernel writes keys and values to their page.
#include "early_launch.cuh"
#include "elements.cuh"
#include "operations.h"

namespace {
constexpr int LANES = 32, WARPS = 4;
// The largest head_dim; a warp keeps one head in shared memory.
constexpr uint32_t MOST_CHANNELS = 256;

// Sum over GROUP adjacent lanes.
template <int GROUP> __device__ __forceinline__ float group_sum(float x) {
#pragma unroll
    for (int other = GROUP / 2; other; other /= 2) x += __shfl_xor_sync(~0u, x, other);
    return x;
}

// For heads of DIM channels: a lane has eight adjacent channels and loads 16 bytes at a time, DIM / 8 lanes have one
// head, and a warp has several heads.
template <typename T, int DIM>
__global__ void __launch_bounds__(WARPS *LANES) norm_rotate_eights(const NormRotate a) {
    wait_for_kernel_before();
    constexpr int GROUP = DIM / 8;
    const uint32_t lane = threadIdx.x % GROUP, parts = a.keys ? 3 : 2;
    const uint32_t all = a.tokens * parts * a.heads, heads_at_once = all_threads() / GROUP;
    const uint64_t width = (uint64_t)a.heads * DIM;
    // Lanes past the end take part in the warp shuffles with zeros.
    for (uint32_t i = first_thread() / GROUP; i / (LANES / GROUP) * (LANES / GROUP) < all; i += heads_at_once) {
        const bool there = i < all;
        const uint32_t head = i % a.heads, which = i / a.heads % parts, token = there ? i / a.heads / parts : 0;
        T *from = (T *)a.qkv + ((uint64_t)token * 3 + which) * width + head * DIM + lane * 8;
        T *keys = (T *)a.keys + token * width + head * DIM + lane * 8;
        Eight<T> eight = there ? Eight<T>::load(from) : Eight<T>{};
        if (which == 2 && there) eight.store(keys + a.value_offset);

        float x[8], sum = 0.f, squares = 0.f;
#pragma unroll
        for (int j = 0; j < 8; j++) sum += x[j] = to_float(eight.values[j]);
        const float mean = group_sum<GROUP>(sum) / DIM;
#pragma unroll
        for (int j = 0; j < 8; j++) squares += (x[j] - mean) * (x[j] - mean);
        const float scale = 1.f / sqrtf(group_sum<GROUP>(squares) / DIM + a.eps);
        const Eight<float> weight = Eight<float>::load((which == 1 ? a.norms[2] : a.norms[0]) + lane * 8);
        const Eight<float> bias = Eight<float>::load((which == 1 ? a.norms[3] : a.norms[1]) + lane * 8);
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = (x[j] - mean) * scale * weight.values[j] + bias.values[j];

        const uint64_t place = (uint64_t)(token % a.period) * (DIM / 2);
        const float *cosines = a.cosines + place, *sines = a.sines + place;
        if (a.pairing == PAIRING_INTERLEAVED) {
            const float *times = a.times + token / a.period * 2 * a.time_pairs;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t pair = lane * 4 + j;
                const bool by_time = pair < a.time_pairs;
                const float cosine = by_time ? times[pair] : cosines[pair];
                const float sine = by_time ? times[a.time_pairs + pair] : sines[pair];
                const float first = x[2 * j], second = x[2 * j + 1];
                x[2 * j] = first * cosine - second * sine;
                x[2 * j + 1] = second * cosine + first * sine;
            }
        } else {
            // A quarter of the head is GROUP / 4 lanes; its partner is the other quarter of the same half.
            constexpr int QUARTER = GROUP / 4;
            const bool second = lane / QUARTER % 2;
            const uint32_t pair = (lane / (2 * QUARTER) * QUARTER + lane % QUARTER) * 8;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float partner = __shfl_xor_sync(~0u, x[j], QUARTER);
                x[j] = x[j] * cosines[pair + j] + (second ? partner : -partner) * sines[pair + j];
            }
        }
        if (which == 2 || !there) continue;
#pragma unroll
        for (int j = 0; j < 8; j++) eight.values[j] = from_float<T>(x[j]);
        eight.store(which == 1 && a.keys ? keys : from);
    }
}

// For heads of any width: a warp has one head of the queries, keys or values of one token.
template <typename T> __global__ void __launch_bounds__(WARPS *LANES) norm_rotate_heads(const NormRotate a) {
    wait_for_kernel_before();
    __shared__ float heads[WARPS][MOST_CHANNELS];
    const uint32_t lane = threadIdx.x % LANES, dim = a.head_dim, half = dim / 2;
    float *head = heads[threadIdx.x / LANES];
    const uint64_t width = (uint64_t)a.heads * dim;
    const uint32_t parts = a.keys ? 3 : 2;
    const uint32_t all = a.tokens * parts * a.heads, warps = all_threads() / LANES;
    for (uint32_t i = first_thread() / LANES; i < all; i += warps) {
        const uint32_t which = i / a.heads % parts, index = i % a.heads, token = i / a.heads / parts;
        T *from = (T *)a.qkv + ((uint64_t)token * 3 + which) * width + (uint64_t)index * dim;
        T *keys = (T *)a.keys + token * width + (uint64_t)index * dim;
        if (which == 2) {
            for (uint32_t c = lane; c < dim; c += LANES) keys[a.value_offset + c] = from[c];
            continue;
        }
        float sum = 0.f, squares = 0.f;
        for (uint32_t c = lane; c < dim; c += LANES) sum += head[c] = to_float(from[c]);
        const float mean = warp_sum(sum) / dim;
        for (uint32_t c = lane; c < dim; c += LANES) squares += (head[c] - mean) * (head[c] - mean);
        const float scale = 1.f / sqrtf(warp_sum(squares) / dim + a.eps);
        const float *weight = which == 1 ? a.norms[2] : a.norms[0], *bias = which == 1 ? a.norms[3] : a.norms[1];
        for (uint32_t c = lane; c < dim; c += LANES) head[c] = (head[c] - mean) * scale * weight[c] + bias[c];
        __syncwarp();

        const uint64_t place = (uint64_t)(token % a.period) * half;
        const float *times = a.times + token / a.period * 2 * a.time_pairs;
        for (uint32_t pair = lane; pair < half; pair += LANES) {
            const uint32_t quarter = half / 2;
            const bool interleaved = a.pairing == PAIRING_INTERLEAVED;
            const uint32_t first = interleaved ? 2 * pair : pair / quarter * half + pair % quarter;
            const uint32_t second = interleaved ? first + 1 : first + quarter;
            const bool by_time = pair < a.time_pairs;
            const float cosine = by_time ? times[pair] : a.cosines[place + pair];
            const float sine = by_time ? times[a.time_pairs + pair] : a.sines[place + pair];
            const float x = head[first], y = head[second];
            head[first] = x * cosine - y * sine;
            head[second] = y * cosine + x * sine;
        }
        __syncwarp();
        T *to = which == 1 && a.keys ? keys : from;
        for (uint32_t c = lane; c < dim; c += LANES) to[c] = from_float<T>(head[c]);
        __syncwarp();
    }
}
} // namespace

cudaError_t periplus_norm_rotate(const NormRotate *a, cudaStream_t stream) {
    if (a->head_dim > MOST_CHANNELS || a->head_dim % (a->pairing == PAIRING_INTERLEAVED ? 2 : 4) != 0 ||
        a->time_pairs > a->head_dim / 2)
        return cudaErrorInvalidValue;
    const uint64_t heads = (uint64_t)a->tokens * (a->keys ? 3 : 2) * a->heads;
    if (heads == 0 || a->head_dim == 0) return cudaSuccess;
    // Kernels count heads in 32 bits, and a grid stride past the end must not overflow.
    if (a->period == 0 || a->tokens % a->period != 0 || heads >= 1u << 31) return cudaErrorInvalidValue;
    bool eights = aligned(a->qkv) && aligned(a->keys) && aligned(a->cosines) && aligned(a->sines);
    for (const float *norm : a->norms) eights &= aligned(norm);
    // With these widths, rows of all dtypes are multiples of 16 bytes.
    const uint32_t group = eights && (a->head_dim == 64 || a->head_dim == 128) ? a->head_dim / 8 : LANES;
    const unsigned blocks = blocks_for(heads * group, WARPS * LANES);
    return with_dtype(a->dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto kernel = group == 8    ? norm_rotate_eights<T, 64>
                            : group == 16 ? norm_rotate_eights<T, 128>
                                          : norm_rotate_heads<T>;
        return launch_early(kernel, dim3(blocks), WARPS * LANES, 0, stream, *a);
    });
}
