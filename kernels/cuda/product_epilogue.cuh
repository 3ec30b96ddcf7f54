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

// Whether the struct says what there is a product for; sizes may be zero. The limit keeps pixels and terms within int.
inline bool valid(const Product &p) {
    constexpr uint64_t LIMIT = 1u << 30;
    return p.kernel > 0 && p.stride > 0 && p.kernel < 1u << 15 && p.padding < LIMIT && p.stride < LIMIT &&
           p.height < LIMIT && p.width < LIMIT && terms_of(p) < LIMIT && p.type <= ELEMENT_BF16 &&
           (p.output == p.type || p.output == ELEMENT_F32) && p.activation <= ACTIVATION_SILU &&
           (!p.add || p.activation == ACTIVATION_IDENTITY);
}

__device__ __forceinline__ float activate(float x, Activation activation) {
    switch (activation) {
    case ACTIVATION_GELU: return .5f * x * (1.f + erff(x * .70710678118654752f));
    case ACTIVATION_RELU: return x < 0.f ? 0.f : x;
    case ACTIVATION_SILU: return x / (1.f + expf(-x));
    default: return x;
    }
}

// Stores or adds `COUNT` neighbours at `y`, all at once where they may be.
template <int COUNT, typename T> __device__ __forceinline__ void put(T *y, const float (&values)[COUNT], bool add, int there) {
    struct alignas(COUNT * sizeof(T) <= 16 ? COUNT * sizeof(T) : 16) Together {
        T values[COUNT];
    } both;
    if (there == COUNT && (uintptr_t)y % alignof(Together) == 0) {
        if (add) both = *(const Together *)y;
#pragma unroll
        for (int i = 0; i < COUNT; i++) both.values[i] = from_float<T>(add ? to_float(both.values[i]) + values[i] : values[i]);
        *(Together *)y = both;
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (i < there) y[i] = from_float<T>(add ? to_float(y[i]) + values[i] : values[i]);
    }
}

// From sums to y: bias, activation, what y was. `COUNT` (a power of two) neighbours of row `row` from `output` on; those
// past the last output are left out.
template <int COUNT>
__device__ __forceinline__ void finish(const Product &p, uint64_t row, uint32_t output, const float (&sums)[COUNT]) {
    const int there = (int)min(p.outputs - min(output, p.outputs), (uint32_t)COUNT);
    float values[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        values[i] = activate(sums[i] + (p.bias && i < there ? __ldg(p.bias + output + i) : 0.f), p.activation);
    const uint64_t at = row * p.outputs + output;
    switch (p.output) {
    case ELEMENT_F32: return put((float *)p.y + at, values, p.add, there);
    case ELEMENT_F16: return put((__half *)p.y + at, values, p.add, there);
    case ELEMENT_BF16: return put((__nv_bfloat16 *)p.y + at, values, p.add, there);
    }
}
