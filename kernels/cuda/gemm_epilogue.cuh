// The epilogue that all gemm kernels share (bias, activation, store or add), and the sizes of a gemm.
#pragma once
#include "instructions.cuh"
#include "elements.cuh"
#include "gemm.h"

__host__ __device__ inline uint64_t out_size(uint64_t in, const Gemm &p) {
    const uint64_t padded = in + 2 * (uint64_t)p.padding;
    return padded < p.kernel ? 0 : (padded - p.kernel) / p.stride + 1;
}
// Rows of y: its pixels, each with `outputs` sums.
__host__ __device__ inline uint64_t rows_of(const Gemm &p) {
    return p.frames * out_size(p.height, p) * out_size(p.width, p);
}
// Terms of a sum.
__host__ __device__ inline uint64_t terms_of(const Gemm &p) { return (uint64_t)p.kernel * p.kernel * p.inputs; }

// Whether the kernels support the struct; sizes may be 0. The limits keep pixels and terms within int, and rows,
// rounded up to whole tiles, within 32 bits.
inline bool valid(const Gemm &p) {
    constexpr uint64_t LIMIT = 1u << 30, MOST_ROWS = UINT32_MAX - 1024;
    return p.kernel > 0 && p.stride > 0 && p.kernel < 1u << 15 && p.padding < LIMIT && p.stride < LIMIT &&
           p.height < LIMIT && p.width < LIMIT && terms_of(p) < LIMIT && p.dtype <= DTYPE_BF16 &&
           (p.output == p.dtype || p.output == DTYPE_F32) && p.activation <= ACTIVATION_SILU &&
           (!p.add || p.activation == ACTIVATION_IDENTITY) && out_size(p.height, p) * out_size(p.width, p) <= MOST_ROWS &&
           rows_of(p) <= MOST_ROWS;
}

// GELU, x Phi(x) with the normal distribution function Phi, computed as max(x, 0) - m Phi(-m) with m = |x|. The
// polynomial is log2 Phi(-m), fitted on [0, 6] for the least error of m Phi(-m): 6e-8 absolute, 8e-6 relative. From 6
// on, m Phi(-m) is below 6e-9. This takes half the instructions of erff and does not cancel for negative x. NaN stays
// NaN.
__device__ __forceinline__ float gelu(float x) {
    const float m = fminf(fabsf(x), 6.f);
    float power = 9.37419955e-8f;
    power = fmaf(power, m, -2.46924287e-6f);
    power = fmaf(power, m, 2.51134952e-5f);
    power = fmaf(power, m, -9.5917494e-5f);
    power = fmaf(power, m, -3.98301199e-4f);
    power = fmaf(power, m, 7.46147474e-3f);
    power = fmaf(power, m, -5.2816242e-2f);
    power = fmaf(power, m, -.459084213f);
    power = fmaf(power, m, -1.15112257f);
    power = fmaf(power, m, -1.f);
    return fmaf(-m, exp2_approximate(power), x < 0.f ? 0.f : x);
}

// Applies the activation to all values at once, so that their computations are independent.
template <int ROWS, int COUNT> __device__ __forceinline__ void activate(float (&x)[ROWS][COUNT], Activation activation) {
    const auto all = [&](auto f) {
#pragma unroll
        for (int i = 0; i < ROWS * COUNT; i++) x[i / COUNT][i % COUNT] = f(x[i / COUNT][i % COUNT]);
    };
    switch (activation) {
    case ACTIVATION_GELU: return all([](float x) { return gelu(x); });
    case ACTIVATION_RELU: return all([](float x) { return x < 0.f ? 0.f : x; });
    case ACTIVATION_SILU: return all([](float x) { return x / (1.f + expf(-x)); });
    default: return;
    }
}

// `COUNT` (a power of two) adjacent outputs of type Y from `output` on, for any row. Outputs past the last are left
// out.
template <typename Y, int COUNT> struct Outputs {
    static constexpr int BYTES = COUNT * sizeof(Y) < 16 ? COUNT * sizeof(Y) : 16;
    struct alignas(BYTES) Together {
        Y values[COUNT];
    };
    Y *const y;  // in row 0
    const uint32_t outputs;
    const int there;      // how many of the COUNT outputs exist
    const bool together;  // whether one access may move them all

    __device__ __forceinline__ Outputs(const Gemm &p, uint32_t output)
        : y((Y *)p.y + output), outputs(p.outputs),
          there((int)min(outputs - min(output, outputs), (uint32_t)COUNT)),
          together(there == COUNT && ((uintptr_t)y | outputs * sizeof(Y)) % BYTES == 0) {}

    __device__ __forceinline__ void load(uint64_t row, float (&values)[COUNT]) const {
        const Y *from = y + row * outputs;
        Together all;
        if (together) {
            all = *(const Together *)from;
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; i++) all.values[i] = i < there ? from[i] : from_float<Y>(0.f);
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) values[i] = to_float(all.values[i]);
    }
    __device__ __forceinline__ void store(uint64_t row, const float (&values)[COUNT]) const {
        Y *to = y + row * outputs;
        Together all;
#pragma unroll
        for (int i = 0; i < COUNT; i++) all.values[i] = from_float<Y>(values[i]);
        if (together) {
            *(Together *)to = all;
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                if (i < there) to[i] = all.values[i];
        }
    }
    // y += values, added in memory without waiting. Each element gets one addition from one thread, so the result does
    // not depend on their order.
    __device__ __forceinline__ void add(uint64_t row, const float (&values)[COUNT]) const {
        float *to = y + row * outputs;
#if __CUDA_ARCH__ >= 900
        if constexpr (COUNT == 4)
            if (together) {
                asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(values[0]), "f"(values[1]),
                             "f"(values[2]), "f"(values[3]) : "memory");
                return;
            }
#endif
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (i < there) atomicAdd(to + i, values[i]);
    }
    // Stores (or adds) ROWS rows of y: `row`, `row + step`, .., those below `rows`. `sums(i, values)` gives the sums of
    // the i-th of them, bias included.
    template <int ROWS, typename Sums>
    __device__ __forceinline__ void put(const Gemm &p, uint64_t row, uint64_t step, uint64_t rows, Sums sums) const {
        float values[ROWS][COUNT];
        if (p.add) {
            if constexpr (sizeof(Y) == sizeof(float)) {
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    sums(i, values[i]);
                    if (row + i * step < rows) add(row + i * step, values[i]);
                }
            } else {
                // Issue all loads before the first one is used.
#pragma unroll
                for (int i = 0; i < ROWS; i++)
                    if (row + i * step < rows) load(row + i * step, values[i]);
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    float more[COUNT];
                    sums(i, more);
#pragma unroll
                    for (int j = 0; j < COUNT; j++) values[i][j] += more[j];
                    if (row + i * step < rows) store(row + i * step, values[i]);
                }
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) sums(i, values[i]);
        activate(values, p.activation);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (row + i * step < rows) store(row + i * step, values[i]);
    }
};

template <int COUNT> __device__ __forceinline__ void load_bias(const Gemm &p, uint32_t output, float (&bias)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) bias[i] = p.bias && output + i < p.outputs ? __ldg(p.bias + output + i) : 0.f;
}

// Applies the epilogue to COUNT adjacent sums of row `row`, from `output` on.
template <int COUNT>
__device__ __forceinline__ void finish(const Gemm &p, uint64_t row, uint32_t output, const float (&sums)[COUNT]) {
    float bias[COUNT];
    load_bias(p, output, bias);
    const auto biased = [&](int, float (&values)[COUNT]) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) values[i] = sums[i] + bias[i];
    };
    const auto typed = [&](auto y) {
        Outputs<decltype(y), COUNT>(p, output).template put<1>(p, row, 0, row + 1, biased);
    };
    switch (p.output) {
    case DTYPE_F32: return typed(float());
    case DTYPE_F16: return typed(__half());
    case DTYPE_BF16: return typed(__nv_bfloat16());
    }
}
