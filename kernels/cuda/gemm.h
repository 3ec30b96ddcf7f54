// Interface of the products: linear layers and convolutions, y = activation(x * weight + bias) or y += x * weight + bias.
//
// A linear layer over rows is the convolution of a picture one row high with a kernel of one pixel:
// frames 1, height 1, width rows, kernel 1, stride 1, padding 0.
#pragma once
#include "dtype.h"
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Gelu is x (1 + erf(x / sqrt 2)) / 2, Silu x / (1 + exp(-x)); Relu keeps NaN.
typedef enum { ACTIVATION_IDENTITY = 0, ACTIVATION_GELU = 1, ACTIVATION_RELU = 2, ACTIVATION_SILU = 3 } Activation;

// All packed. Sums are float32; what is stored as float16 is kept within its range (65504), NaN excepted.
typedef struct {
    const void *x;      // [frames, height, width, inputs]
    const void *weight; // [outputs, kernel, kernel, inputs]
    const float *bias;  // [outputs], or null
    void *y;            // [frames, out_height, out_width, outputs], out = (in + 2 padding - kernel) / stride + 1
    uint32_t frames, height, width, inputs, outputs, kernel, stride, padding;
    DType dtype;   // of x and weight
    DType output; // of y: `type`, or float32
    Activation activation;
    uint32_t add;       // y += ..; the activation is then Identity
} Gemm;

// Any compute capability from 8.0 on, any sizes and alignments; fastest where `inputs` is a multiple of 8 and pointers
// of 16 bytes. Products of up to 8 rows in all read the weights once, at the speed of memory.
cudaError_t periplus_gemm(const Gemm *gemm, cudaStream_t stream);

// For cards of compute capability 9.0 alone, which is not asked here: 16 bits, stride 1, `inputs` a multiple of 8, pointers multiples of 16 bytes.
// gemm_hopper_fits: whether that is so and it is worth it (nonzero); else use periplus_gemm().
// gemm_hopper_plan: of the ways to cut the work, 0 .. GEMM_HOPPER_PLANS, the one that `multiprocessors` need least time for.
enum { GEMM_HOPPER_PLANS = 11 };
int periplus_gemm_hopper_fits(const Gemm *gemm);
uint32_t periplus_gemm_hopper_plan(const Gemm *gemm, uint32_t multiprocessors);
cudaError_t periplus_gemm_hopper(const Gemm *gemm, uint32_t plan, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
