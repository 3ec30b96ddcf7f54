// Interface of the gemm kernels, for linear layers and convolutions: y = activation(x * weight + bias), or
// y += x * weight + bias.
//
// A linear layer is the convolution of a picture that is one row high with a kernel of one pixel: frames 1, height 1,
// width = rows, kernel 1, stride 1, padding 0.
#pragma once
#include "dtype.h"
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Gelu is x (1 + erf(x / sqrt 2)) / 2, Silu is x / (1 + exp(-x)); Relu keeps NaN.
typedef enum { ACTIVATION_IDENTITY = 0, ACTIVATION_GELU = 1, ACTIVATION_RELU = 2, ACTIVATION_SILU = 3 } Activation;

// All operands are packed. Sums are float32. Results in float16 are clamped to its range (65504); NaN stays NaN.
typedef struct {
    const void *x;      // [frames, height, width, inputs]
    const void *weight; // [outputs, kernel, kernel, inputs]
    const float *bias;  // [outputs], or null
    void *y;            // [frames, out_height, out_width, outputs], out = (in + 2 padding - kernel) / stride + 1
    uint32_t frames, height, width, inputs, outputs, kernel, stride, padding;
    DType dtype;        // of x and weight
    DType output;       // of y: `dtype` or float32
    Activation activation;
    uint32_t add;       // nonzero: y += x * weight + bias; the activation must be Identity
} Gemm;

// Compute capability 8.0 and newer; any sizes and alignments. Fastest if `inputs` is a multiple of 8 and pointers are
// aligned to 16 bytes. Up to 8 rows in all are a gemv, which reads the weights once, at the speed of memory.
cudaError_t periplus_gemm(const Gemm *gemm, cudaStream_t stream);

// Kernels for compute capability 9.0 only, which the caller checks. They need 16-bit dtypes, stride 1, `inputs` a
// multiple of 8, and pointers aligned to 16 bytes. periplus_gemm_hopper_fits: nonzero if these conditions hold and the
// kernel is worthwhile; else use periplus_gemm(). periplus_gemm_hopper_plan: the fastest plan on `multiprocessors`, in
// 0 .. GEMM_HOPPER_PLANS - 1. A plan is a way to split the work among thread blocks.
enum { GEMM_HOPPER_PLANS = 11 };
int periplus_gemm_hopper_fits(const Gemm *gemm);
uint32_t periplus_gemm_hopper_plan(const Gemm *gemm, uint32_t multiprocessors);
cudaError_t periplus_gemm_hopper(const Gemm *gemm, uint32_t plan, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
