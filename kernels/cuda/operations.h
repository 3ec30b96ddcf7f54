// Interface of the kernels that move and change numbers one by one, between products and attention.
//
// All operands are packed. Sizes may be anything that memory holds, zero too. float16 results are kept within range.
#pragma once
#include "dtype.h"
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// y [rows, channels] of `type` = (x - mean) / sqrt(variance + eps) * weight + bias: x float32, weight and bias [channels].
cudaError_t periplus_layer_norm(void *y, DType dtype, const float *x, const float *weight, const float *bias, uint64_t rows,
                       uint32_t channels, float eps, cudaStream_t stream);

// Which channels of a head turn together: j and j + dim / 4 within each half, or 2 j and 2 j + 1.
typedef enum { PAIRING_SPLIT_HALVES = 0, PAIRING_INTERLEAVED = 1 } Pairing;

// LayerNorm of the queries and keys of each head, then rotation; queries stay in place.
typedef struct {
    void *qkv;                       // [tokens, 3, heads, head_dim]
    const float *norms[4];           // weight and bias of queries, of keys: [head_dim]
    const float *cosines, *sines;    // [period, head_dim / 2]; token t has row t % period
    // Cosines and sines of the first `time_pairs` pairs instead of the table's: [tokens / period, 2, time_pairs].
    const float *times;
    uint32_t time_pairs;
    Pairing pairing;
    // Where keys and values go: rows of heads * head_dim, `value_offset` elements apart. Null: the keys stay in place.
    void *keys;
    int64_t value_offset;
    uint32_t tokens, period, heads, head_dim;
    float eps;
    DType dtype;
} NormRotate;
cudaError_t periplus_norm_rotate(const NormRotate *operation, cudaStream_t stream);

// Keys and values of qkv [tokens, 3, width] go to rows of `width` elements of `size` bytes, `value_offset` elements apart.
cudaError_t periplus_append_rows(void *keys, int64_t value_offset, const void *qkv, uint32_t size, uint32_t tokens, uint32_t width,
                        cudaStream_t stream);

// y [frames, rows, columns, patch, patch, 3] of `type` = x [frames, rows * patch, columns * patch, 3] bytes * scale - shift,
// both per colour.
cudaError_t periplus_patches(void *y, DType dtype, const uint8_t *x, const float *scale, const float *shift, uint32_t frames,
                    uint32_t rows, uint32_t columns, uint32_t patch, cudaStream_t stream);

// y [rows, a + b] = a | b, in units of 4 bytes.
cudaError_t periplus_join_channels(uint32_t *y, const uint32_t *a, const uint32_t *b, uint64_t rows, uint32_t a_channels,
                          uint32_t b_channels, cudaStream_t stream);

// y [rows, channels] = x + gate * (normed * (1 + scale) + shift), modulation [rows, 3, channels] = shift, scale, gate.
cudaError_t periplus_modulate(float *y, const float *x, const float *normed, const float *modulation, uint64_t rows,
                     uint32_t channels, cudaStream_t stream);

// x [rows, channels] = max(x, 0) in the columns from `first` on; NaN stays.
cudaError_t periplus_relu(void *x, DType dtype, uint64_t rows, uint32_t channels, uint32_t first, cudaStream_t stream);

// Pictures [frames, height, width, channels], corners on corners; y = or += what x gives at y's size.
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

// x [frames, height, width, channels] += u [width, channels / 2] | v [height, channels / 2].
cudaError_t periplus_add_plane(void *x, DType dtype, const float *u, const float *v, uint32_t frames, uint32_t height,
                      uint32_t width, uint32_t channels, cudaStream_t stream);

// What a dense head ends in: x [pixels, channels] weightᵀ + bias, weight [outputs, channels]; of the outputs the last is a
// confidence, 1 + exp(..), the others a value: exp(..), or sign(..) (exp(|..|) - 1).
// y: values [pixels, outputs - 1], then confidences [pixels], then one number: how many of them are NaN or infinite.
typedef enum { VALUE_EXP = 0, VALUE_INVERSE_LOG = 1 } ValueActivation;
cudaError_t periplus_predict_pixels(float *y, const void *x, DType dtype, const float *weight, const float *bias, uint64_t pixels,
                    uint32_t channels, uint32_t outputs, ValueActivation activation, cudaStream_t stream);

// Sizes and offsets of the descriptions here, in paged_attention.h and in gemm.h, one by one; all bits set past the last.
uint64_t periplus_layouts(uint64_t number);

#ifdef __cplusplus
}
#endif
