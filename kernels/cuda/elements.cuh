// Elements in memory and in registers: conversions, vector loads, sums over a warp.
#pragma once
#include "dtype.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float(float x) { return x; }
// Clamps to the range of float16, so that large values do not become infinite. Not with min and max, which would drop
// NaN.
template <> __device__ __forceinline__ __half from_float(float x) {
    return __float2half_rn(x > 65504.f ? 65504.f : x < -65504.f ? -65504.f : x);
}
template <> __device__ __forceinline__ __nv_bfloat16 from_float(float x) { return __float2bfloat16_rn(x); }

// Eight adjacent elements, loaded and stored 16 bytes at a time.
template <typename T> struct alignas(16) Eight {
    T values[8];
    __device__ __forceinline__ static Eight load(const T *from) {
        Eight eight;
        const uint4 *source = (const uint4 *)from;
        uint4 *target = (uint4 *)eight.values;
#pragma unroll
        for (int i = 0; i < (int)(sizeof(Eight) / 16); i++) target[i] = source[i];
        return eight;
    }
    __device__ __forceinline__ void store(T *to) const {
        uint4 *target = (uint4 *)to;
        const uint4 *source = (const uint4 *)values;
#pragma unroll
        for (int i = 0; i < (int)(sizeof(Eight) / 16); i++) target[i] = source[i];
    }
};

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int other = 16; other; other /= 2) x += __shfl_xor_sync(~0u, x, other);
    return x;
}

// Calls `body` with a value of the C++ type that `dtype` names.
template <typename Body> cudaError_t with_dtype(DType dtype, Body body) {
    switch (dtype) {
    case DTYPE_F32: return body(float());
    case DTYPE_F16: return body(__half());
    case DTYPE_BF16: return body(__nv_bfloat16());
    }
    return cudaErrorInvalidValue;
}

inline bool aligned(const void *p) { return (uintptr_t)p % 16 == 0; }

// Number of blocks of `threads` threads for `count` items. Kernels loop with a grid stride, since there may be fewer
// threads.
inline unsigned blocks_for(uint64_t count, unsigned threads) {
    const uint64_t blocks = (count + threads - 1) / threads;
    return (unsigned)(blocks < 1u << 30 ? blocks : 1u << 30);
}
__device__ __forceinline__ uint64_t first_thread() { return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ uint64_t all_threads() { return (uint64_t)gridDim.x * blockDim.x; }
