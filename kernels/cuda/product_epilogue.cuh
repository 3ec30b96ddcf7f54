// What every kernel of products does with its sums, and the sizes they share.
#pragma once
#include "numbers.cuh"
#include "product.h"

__host__ __device__ inline uint64_t out_size(uint64_t in, const Product &p) {
    const uint64_t padded = in + 2 * (uint64_t)p.padding;
    return padded < p.kernel ? 0 : (padded - p.kernel) / p.stride + 1;
}
// Pixels of y, each a row of `outputs` sums.
__host__ __device__ inline uint64_t rows_of(const Product &p) {
    return p.frames * out_size(p.height, p) * out_size(p.width, p);
}
// Terms of a sum.
__host__ __device__ inline uint64_t terms_of(const Product &p) { return (uint64_t)p.kernel * p.kernel * p.inputs; }

// Whether the struct says what there is a product for; sizes may be zero. The limits keep pixels and terms within int, and
// rows, with those that a last tile lacks, within 32 bits.
inline bool valid(const Product &p) {
    constexpr uint64_t LIMIT = 1u << 30, MOST_ROWS = UINT32_MAX - 1024;
    return p.kernel > 0 && p.stride > 0 && p.kernel < 1u << 15 && p.padding < LIMIT && p.stride < LIMIT &&
           p.height < LIMIT && p.width < LIMIT && terms_of(p) < LIMIT && p.type <= ELEMENT_BF16 &&
           (p.output == p.type || p.output == ELEMENT_F32) && p.activation <= ACTIVATION_SILU &&
           (!p.add || p.activation == ACTIVATION_IDENTITY) && out_size(p.height, p) * out_size(p.width, p) <= MOST_ROWS &&
           rows_of(p) <= MOST_ROWS;
}

__device__ __forceinline__ float activate(float x, Activation activation) {
    switch (activation) {
    case ACTIVATION_GELU: return .5f * x * (1.f + erff(x * .70710678118654752f));
    case ACTIVATION_RELU: return x < 0.f ? 0.f : x;
    case ACTIVATION_SILU: return x / (1.f + expf(-x));
    default: return x;
    }
}

// `COUNT` (a power of two) neighbours of y, of which `there` exist, moved all at once where they may be.
template <int COUNT, typename T> struct alignas(COUNT * sizeof(T) <= 16 ? COUNT * sizeof(T) : 16) Neighbours {
    T values[COUNT];
    __device__ __forceinline__ static bool together(const T *y, int there) {
        return there == COUNT && (uintptr_t)y % alignof(Neighbours) == 0;
    }
    __device__ __forceinline__ static void load(const T *y, int there, float (&values)[COUNT]) {
        Neighbours all;
        if (together(y, there)) {
            all = *(const Neighbours *)y;
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; i++) all.values[i] = i < there ? y[i] : from_float<T>(0.f);
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) values[i] = to_float(all.values[i]);
    }
    __device__ __forceinline__ static void store(T *y, int there, const float (&values)[COUNT]) {
        Neighbours all;
#pragma unroll
        for (int i = 0; i < COUNT; i++) all.values[i] = from_float<T>(values[i]);
        if (together(y, there)) {
            *(Neighbours *)y = all;
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                if (i < there) y[i] = all.values[i];
        }
    }
};

template <int COUNT> __device__ __forceinline__ int neighbours_there(const Product &p, uint32_t output) {
    return (int)min(p.outputs - min(output, p.outputs), (uint32_t)COUNT);
}

// What is added to: y so far, of `COUNT` neighbours of row `row` from `output` on. A step of its own so that several may be
// on their way at once.
template <int COUNT>
__device__ __forceinline__ void earlier(const Product &p, uint64_t row, uint32_t output, float (&before)[COUNT]) {
    if (!p.add) return;
    const int there = neighbours_there<COUNT>(p, output);
    const uint64_t at = row * p.outputs + output;
    switch (p.output) {
    case ELEMENT_F32: return Neighbours<COUNT, float>::load((const float *)p.y + at, there, before);
    case ELEMENT_F16: return Neighbours<COUNT, __half>::load((const __half *)p.y + at, there, before);
    case ELEMENT_BF16: return Neighbours<COUNT, __nv_bfloat16>::load((const __nv_bfloat16 *)p.y + at, there, before);
    }
}

// From sums to y: bias, activation, what y was. Neighbours past the last output are left out.
template <int COUNT>
__device__ __forceinline__ void finish(const Product &p, uint64_t row, uint32_t output, const float (&sums)[COUNT],
                                       const float (&before)[COUNT]) {
    const int there = neighbours_there<COUNT>(p, output);
    float values[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        values[i] = activate(sums[i] + (p.bias && i < there ? __ldg(p.bias + output + i) : 0.f), p.activation);
        if (p.add) values[i] += before[i];
    }
    const uint64_t at = row * p.outputs + output;
    switch (p.output) {
    case ELEMENT_F32: return Neighbours<COUNT, float>::store((float *)p.y + at, there, values);
    case ELEMENT_F16: return Neighbours<COUNT, __half>::store((__half *)p.y + at, there, values);
    case ELEMENT_BF16: return Neighbours<COUNT, __nv_bfloat16>::store((__nv_bfloat16 *)p.y + at, there, values);
    }
}
template <int COUNT>
__device__ __forceinline__ void finish(const Product &p, uint64_t row, uint32_t output, const float (&sums)[COUNT]) {
    float before[COUNT];
    earlier(p, row, output, before);
    finish(p, row, output, sums, before);
}
