// Interface of the elementwise, normalisation and copy kernels, which run between gemms and attention.
//
// All operands are packed (contiguous). Sizes may be 0. Results in float16 are clamped to its range.
#pragma once
#include "dtype.h"
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// y [rows, channels] of `dtype` = (x - mean) / sqrt(variance + eps) * weight + bias: x float32, weight and bias
// [channels].
cudaError_t periplus_layer_norm(void *y, DType dtype, const float *x, const float *weight, const float *bias, uint64_t rows,
                       uint32_t channels, float eps, cudaStream_t stream);

// Which channels of a head RoPE rotates together: j and j + dim / 4 within each half, or 2 j and 2 j + 1.
typedef enum { PAIRING_SPLIT_HALVES = 0, PAIRING_INTERLEAVED = 1 } Pairing;

// LayerNorm of the queries and keys of each head, then RoPE. Queries are changed in place.
typedef struct {
    void *qkv;                       // [tokens, 3, heads, head_dim]
    const float *norms[4];           // weight and bias of queries, of keys: [head_dim]
    const float *cosines, *sines;    // [period, head_dim / 2]; token t uses row t % period
    // [tokens / period, 2, time_pairs]: cosines and sines that replace the first `time_pairs` columns of the tables.
    const float *times;
    uint32_t time_pairs;
    Pairing pairing;
    // Target of keys: rows of heads * head_dim; values go `value_offset` elements further. Null: keys are changed in
    // place.
    void *keys;
    int64_t value_offset;
    uint32_t tokens, period, heads, head_dim;
    float eps;
    DType dtype;
} NormRotate;
cudaError_t periplus_norm_rotate(const NormRotate *operation, cudaStream_t stream);

// Copies keys of qkv [tokens, 3, width] to rows of `width` elements at `keys`, and values `value_offset` elements
// further. An element has `size` bytes.
cudaError_t periplus_append_rows(void *keys, int64_t value_offset, const void *qkv, uint32_t size, uint32_t tokens, uint32_t width,
                        cudaStream_t stream);

// y [frames, rows, columns, patch, patch, 3] of `dtype` = x [frames, rows * patch, columns * patch, 3] bytes * scale -
// shift, with scale and shift per colour.
cudaError_t periplus_patches(void *y, DType dtype, const uint8_t *x, const float *scale, const float *shift, uint32_t frames,
                    uint32_t rows, uint32_t columns, uint32_t patch, cudaStream_t stream);

// y [rows, a_channels + b_channels] = concat(a, b); an element has 4 bytes.
cudaError_t periplus_join_channels(uint32_t *y, const uint32_t *a, const uint32_t *b, uint64_t rows, uint32_t a_channels,
                          uint32_t b_channels, cudaStream_t stream);

// y [rows, channels] = x + gate * (normed * (1 + scale) + shift), modulation [rows, 3, channels] = shift, scale, gate.
cudaError_t periplus_modulate(float *y, const float *x, const float *normed, const float *modulation, uint64_t rows,
                     uint32_t channels, cudaStream_t stream);

// x [rows, channels] = max(x, 0) in columns `first`..; NaN stays NaN.
cudaError_t periplus_relu(void *x, DType dtype, uint64_t rows, uint32_t channels, uint32_t first, cudaStream_t stream);

// Bilinear resampling of pictures [frames, height, width, channels] with aligned corners: y = or, with `add`, += x at
// y's size.
typedef struct {
    void *y;
    const void *x;
    uint32_t frames, height, width, x_height, x_width, channels;
    DType dtype;
    uint32_t add;
} Bilinear;
cudaError_t periplus_bilinear(const Bilinear *operation, cudaStream_t stream);

// y [frames, height * k, width * k, channels] from x [frames, height, width, k, k, channels], elements of `size` bytes.
cudaError_t periplus_depth_to_space(void *y, const void *x, uint32_t size, uint32_t frames, uint32_t height, uint32_t width,
                           uint32_t k, uint32_t channels, cudaStream_t stream);

// x [frames, height, width, channels] += concat(u [width, channels / 2], v [height, channels / 2]).
cudaError_t periplus_add_plane(void *x, DType dtype, const float *u, const float *v, uint32_t frames, uint32_t height,
                      uint32_t width, uint32_t channels, cudaStream_t stream);

// The last layer of a dense head: z = x [pixels, channels] weightᵀ + bias, weight [outputs, channels]. The last output
// becomes a confidence, 1 + exp(z); the others become values: exp(z), or sign(z) (exp(|z|) - 1). y: values [pixels,
// outputs - 1], then confidences [pixels], then the count of those that are NaN or infinite.
typedef enum { VALUE_EXP = 0, VALUE_INVERSE_LOG = 1 } ValueActivation;
cudaError_t periplus_predict_pixels(float *y, const void *x, DType dtype, const float *weight, const float *bias, uint64_t pixels,
                    uint32_t channels, uint32_t outputs, ValueActivation activation, cudaStream_t stream);

// Sizes and field offsets of the structs here, in paged_attention.h and in gemm.h, by index; UINT64_MAX past the last.
uint64_t periplus_layouts(uint64_t index);

#ifdef __cplusplus
}
#endif
