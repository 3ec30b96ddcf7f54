// Picture kernels, on [frames, height, width, channels]: patches, resampling and the other operations around
// convolutions.
#include "early_launch.cuh"
#include "elements.cuh"
#include "operations.h"

namespace {
constexpr int THREADS = 256;

template <typename T>
__global__ void cut_patches(T *y, const uint8_t *x, const float *scale, const float *shift, uint64_t count, uint32_t rows,
                            uint32_t columns, uint32_t patch) {
    for (uint64_t i = first_thread(); i < count; i += all_threads()) {
        const uint32_t line = 3 * patch; // bytes of one line of a patch
        const uint32_t within = i % line, colour = within % 3;
        const uint64_t lines = i / line;
        const uint32_t down = lines % patch, column = lines / patch % columns;
        const uint64_t row = lines / patch / columns; // index over frames and their rows of patches
        const uint8_t byte = x[((row * patch + down) * columns + column) * line + within];
        y[i] = from_float<T>(byte * scale[colour] - shift[colour]);
    }
}

// Channels are in units of 4 or 16 bytes.
template <typename Unit>
__global__ void join(Unit *y, const Unit *a, const Unit *b, uint64_t count, uint32_t a_channels, uint32_t b_channels) {
    const uint32_t channels = a_channels + b_channels;
    for (uint64_t i = first_thread(); i < count; i += all_threads()) {
        const uint64_t row = i / channels;
        const uint32_t channel = i % channels;
        y[i] = channel < a_channels ? a[row * a_channels + channel] : b[row * b_channels + channel - a_channels];
    }
}

__global__ void modulate_rows(float *y, const float *x, const float *normed, const float *modulation, uint64_t count,
                              uint32_t channels) {
    wait_for_kernel_before();
    for (uint64_t i = first_thread(); i < count; i += all_threads()) {
        const float *row = modulation + i / channels * 3 * channels + i % channels;
        const float shift = row[0], scale = row[channels], gate = row[2 * channels];
        y[i] = x[i] + gate * (normed[i] * (1.f + scale) + shift);
    }
}

template <typename T> __global__ void relu_columns(T *x, uint64_t count, uint32_t channels, uint32_t first) {
    for (uint64_t i = first_thread(); i < count; i += all_threads())
        if (i % channels >= first && to_float(x[i]) < 0.f) x[i] = from_float<T>(0.f);
}

template <typename T> __global__ void relu_all(T *x, uint64_t eights) {
    for (uint64_t i = first_thread(); i < eights; i += all_threads()) {
        Eight<T> eight = Eight<T>::load(x + 8 * i);
#pragma unroll
        for (T &value : eight.values)
            if (to_float(value) < 0.f) value = from_float<T>(0.f);
        eight.store(x + 8 * i);
    }
}

// The two source positions for an output position, and the weight of the second. Integers until the division, so
// corners and source pixels are hit exactly.
struct Taps {
    uint32_t low, high;
    float fraction;
    __device__ __forceinline__ Taps(uint32_t position, uint32_t from, uint32_t to) {
        const uint32_t numerator = position * (from - 1), steps = to > 1 ? to - 1 : 1;
        low = numerator / steps;
        high = low + 1 < from ? low + 1 : low;
        fraction = (float)(numerator % steps) / (float)steps;
    }
};

// A block has one row of the output; a thread has WIDTH channels of a pixel.
template <typename T, int WIDTH> __global__ void bilinear_rows(const Bilinear a) {
    const uint32_t groups = a.channels / WIDTH;
    const uint64_t rows = (uint64_t)a.frames * a.height, line = (uint64_t)a.x_width * a.channels;
    for (uint64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        const Taps down(row % a.height, a.x_height, a.height);
        const T *frame = (const T *)a.x + row / a.height * a.x_height * line;
        const T *above = frame + down.low * line, *below = frame + down.high * line;
        for (uint32_t i = first_thread(); i < a.width * groups; i += all_threads()) {
            const uint32_t column = i / groups, channel = i % groups * WIDTH;
            const Taps across(column, a.x_width, a.width);
            const uint64_t left = (uint64_t)across.low * a.channels + channel;
            const uint64_t right = (uint64_t)across.high * a.channels + channel;
            T *to = (T *)a.y + (row * a.width + column) * a.channels + channel;
            const auto mix = [&](float p, float q, float r, float s) {
                const float top = p + (q - p) * across.fraction, bottom = r + (s - r) * across.fraction;
                return top + (bottom - top) * down.fraction;
            };
            if constexpr (WIDTH == 8) {
                const Eight<T> p = Eight<T>::load(above + left), q = Eight<T>::load(above + right);
                const Eight<T> r = Eight<T>::load(below + left), s = Eight<T>::load(below + right);
                Eight<T> result;
                if (a.add) result = Eight<T>::load(to);
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const float value = mix(to_float(p.values[j]), to_float(q.values[j]), to_float(r.values[j]),
                                            to_float(s.values[j]));
                    result.values[j] = from_float<T>(a.add ? to_float(result.values[j]) + value : value);
                }
                result.store(to);
            } else {
                const float value = mix(to_float(above[left]), to_float(above[right]), to_float(below[left]),
                                        to_float(below[right]));
                *to = from_float<T>(a.add ? to_float(*to) + value : value);
            }
        }
    }
}

template <typename Unit>
__global__ void spread_depth(Unit *y, const Unit *x, uint64_t count, uint32_t width, uint32_t k, uint32_t units) {
    for (uint64_t i = first_thread(); i < count; i += all_threads()) {
        const uint32_t unit = i % units;
        const uint64_t pixel = i / units;
        const uint32_t column = pixel % ((uint64_t)width * k);
        const uint64_t row = pixel / ((uint64_t)width * k); // index over frames and their rows
        y[i] = x[(((row / k * width + column / k) * k + row % k) * k + column % k) * units + unit];
    }
}

// A block has one row of pixels; a thread has WIDTH channels of a pixel.
template <typename T, int WIDTH>
__global__ void add_waves(T *x, const float *u, const float *v, uint64_t rows, uint32_t height, uint32_t width,
                          uint32_t channels) {
    const uint32_t half = channels / 2, groups = channels / WIDTH;
    for (uint64_t row = blockIdx.y; row < rows; row += gridDim.y)
        for (uint32_t i = first_thread(); i < width * groups; i += all_threads()) {
            const uint32_t column = i / groups, channel = i % groups * WIDTH;
            const float *wave = channel < half ? u + (uint64_t)column * half + channel
                                               : v + row % height * half + channel - half;
            T *at = x + (row * width + column) * channels + channel;
            if constexpr (WIDTH == 8) {
                const Eight<float> waves = Eight<float>::load(wave);
                Eight<T> eight = Eight<T>::load(at);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    eight.values[j] = from_float<T>(to_float(eight.values[j]) + waves.values[j]);
                eight.store(at);
            } else {
                *at = from_float<T>(to_float(*at) + *wave);
            }
        }
}

__device__ __forceinline__ float value_of(float raw, ValueActivation activation) {
    // expm1f, because exp(x) - 1 loses digits for small x.
    return activation == VALUE_EXP ? expf(raw) : copysignf(expm1f(fabsf(raw)), raw);
}

// Reads WIDTH channels at a time.
template <typename T, int WIDTH>
__global__ void __launch_bounds__(THREADS) predict_pixel(float *y, const T *x, const float *weight, const float *bias,
                                                         uint64_t pixels, uint32_t channels, uint32_t outputs,
                                                         ValueActivation activation) {
    for (uint64_t i = first_thread(); i < pixels; i += all_threads())
        for (uint32_t output = 0; output < outputs; output++) {
            float sum = 0.f;
            for (uint32_t channel = 0; channel < channels; channel += WIDTH) {
                if constexpr (WIDTH == 8) {
                    const Eight<T> eight = Eight<T>::load(x + i * channels + channel);
#pragma unroll
                    for (int j = 0; j < 8; j++)
                        sum += to_float(eight.values[j]) * weight[output * channels + channel + j];
                } else {
                    sum += to_float(x[i * channels + channel]) * weight[output * channels + channel];
                }
            }
            const float raw = sum + bias[output];
            const uint32_t values = outputs - 1;
            const float result = output == values ? 1.f + expf(raw) : value_of(raw, activation);
            y[output == values ? pixels * values + i : i * values + output] = result;
            if (!isfinite(result)) atomicAdd(y + pixels * outputs, 1.f);
        }
}
} // namespace

cudaError_t periplus_patches(void *y, DType dtype, const uint8_t *x, const float *scale, const float *shift, uint32_t frames,
                    uint32_t rows, uint32_t columns, uint32_t patch, cudaStream_t stream) {
    const uint64_t count = (uint64_t)frames * rows * columns * patch * patch * 3;
    if (count == 0) return cudaSuccess;
    return with_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        cut_patches<<<blocks_for(count, THREADS), THREADS, 0, stream>>>((T *)y, x, scale, shift, count, rows, columns,
                                                                         patch);
        return cudaGetLastError();
    });
}

cudaError_t periplus_join_channels(uint32_t *y, const uint32_t *a, const uint32_t *b, uint64_t rows, uint32_t a_channels,
                          uint32_t b_channels, cudaStream_t stream) {
    const uint64_t count = rows * ((uint64_t)a_channels + b_channels);
    if (count == 0) return cudaSuccess;
    if (a_channels % 4 == 0 && b_channels % 4 == 0 && aligned(y) && aligned(a) && aligned(b))
        join<<<blocks_for(count / 4, THREADS), THREADS, 0, stream>>>((uint4 *)y, (const uint4 *)a, (const uint4 *)b, count / 4,
                                                                     a_channels / 4, b_channels / 4);
    else
        join<<<blocks_for(count, THREADS), THREADS, 0, stream>>>(y, a, b, count, a_channels, b_channels);
    return cudaGetLastError();
}

cudaError_t periplus_modulate(float *y, const float *x, const float *normed, const float *modulation, uint64_t rows,
                     uint32_t channels, cudaStream_t stream) {
    const uint64_t count = rows * channels;
    if (count == 0) return cudaSuccess;
    return launch_early(modulate_rows, dim3(blocks_for(count, THREADS)), THREADS, 0, stream, y, x, normed, modulation, count,
                        channels);
}

cudaError_t periplus_relu(void *x, DType dtype, uint64_t rows, uint32_t channels, uint32_t first, cudaStream_t stream) {
    const uint64_t count = rows * channels;
    if (count == 0) return cudaSuccess;
    return with_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        if (first == 0 && count % 8 == 0 && aligned(x))
            relu_all<<<blocks_for(count / 8, THREADS), THREADS, 0, stream>>>((T *)x, count / 8);
        else
            relu_columns<<<blocks_for(count, THREADS), THREADS, 0, stream>>>((T *)x, count, channels, first);
        return cudaGetLastError();
    });
}

cudaError_t periplus_bilinear(const Bilinear *a, cudaStream_t stream) {
    const uint64_t rows = (uint64_t)a->frames * a->height;
    if (rows == 0 || a->width == 0 || a->channels == 0) return cudaSuccess;
    if (a->x_height == 0 || a->x_width == 0) return cudaErrorInvalidValue;
    // Kernels count positions and the elements of a row in 32 bits, with room for a grid stride past the end.
    const auto fits = [](uint64_t x, uint64_t y) { return x * y < 1u << 31; };
    if (!fits(a->width, a->x_width) || !fits(a->height, a->x_height) || !fits(a->width, a->channels))
        return cudaErrorInvalidValue;
    return with_dtype(a->dtype, [&](auto zero) {
        using T = decltype(zero);
        const bool eights = a->channels % 8 == 0 && aligned(a->x) && aligned(a->y);
        const uint64_t across = (uint64_t)a->width * (eights ? a->channels / 8 : a->channels);
        const dim3 blocks(blocks_for(across, THREADS), rows < 65535 ? (unsigned)rows : 65535);
        const auto kernel = eights ? bilinear_rows<T, 8> : bilinear_rows<T, 1>;
        kernel<<<blocks, THREADS, 0, stream>>>(*a);
        return cudaGetLastError();
    });
}

cudaError_t periplus_depth_to_space(void *y, const void *x, uint32_t size, uint32_t frames, uint32_t height, uint32_t width,
                           uint32_t k, uint32_t channels, cudaStream_t stream) {
    const uint64_t bytes = (uint64_t)channels * size;
    const uint64_t pixels = (uint64_t)frames * height * width * k * k;
    if (pixels * bytes == 0) return cudaSuccess;
    const auto launch = [&](auto unit) {
        using Unit = decltype(unit);
        const uint64_t units = bytes / sizeof(Unit);
        spread_depth<<<blocks_for(pixels * units, THREADS), THREADS, 0, stream>>>((Unit *)y, (const Unit *)x,
                                                                                  pixels * units, width, k, (uint32_t)units);
        return cudaGetLastError();
    };
    if (bytes % 16 == 0 && aligned(x) && aligned(y)) return launch(uint4());
    return size == 4 ? launch(uint32_t()) : size == 2 ? launch(uint16_t()) : cudaErrorInvalidValue;
}

cudaError_t periplus_add_plane(void *x, DType dtype, const float *u, const float *v, uint32_t frames, uint32_t height,
                      uint32_t width, uint32_t channels, cudaStream_t stream) {
    const uint64_t rows = (uint64_t)frames * height, across = (uint64_t)width * channels;
    if (channels % 2 != 0 || across >= 1u << 31) return cudaErrorInvalidValue;
    if (rows * across == 0) return cudaSuccess;
    return with_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        const bool eights = channels % 16 == 0 && aligned(x) && aligned(u) && aligned(v);
        const dim3 blocks(blocks_for(eights ? across / 8 : across, THREADS), rows < 65535 ? (unsigned)rows : 65535);
        const auto kernel = eights ? add_waves<T, 8> : add_waves<T, 1>;
        kernel<<<blocks, THREADS, 0, stream>>>((T *)x, u, v, rows, height, width, channels);
        return cudaGetLastError();
    });
}

cudaError_t periplus_predict_pixels(float *y, const void *x, DType dtype, const float *weight, const float *bias,
                           uint64_t pixels, uint32_t channels, uint32_t outputs, ValueActivation activation,
                           cudaStream_t stream) {
    if (outputs == 0) return cudaErrorInvalidValue;
    const cudaError_t cleared = cudaMemsetAsync(y + pixels * outputs, 0, sizeof(float), stream);
    if (cleared != cudaSuccess || pixels == 0) return cleared;
    return with_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        const bool eights = channels % 8 == 0 && aligned(x);
        const auto kernel = eights ? predict_pixel<T, 8> : predict_pixel<T, 1>;
        kernel<<<blocks_for(pixels, THREADS), THREADS, 0, stream>>>(y, (const T *)x, weight, bias, pixels, channels,
                                                                    outputs, activation);
        return cudaGetLastError();
    });
}
