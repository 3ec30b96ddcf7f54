// Shared by the kernel tests: device memory, random values, element types.
#pragma once
#include "../dtype.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdio>
#include <cstdlib>
#include <cmath>
#include <vector>
#include <string>
#include <random>
#include <algorithm>
#include <functional>
#define CHECK(x)                                                                      \
    do {                                                                              \
        cudaError_t e_ = (x);                                                         \
        if (e_) {                                                                     \
            printf("%s:%d %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e_)); \
            fflush(stdout);                                                           \
            exit(3);                                                                  \
        }                                                                             \
    } while (0)

struct Device {
    std::vector<void *> owned;
    template <class T = char>
    T *get(size_t n) {
        void *p;
        CHECK(cudaMalloc(&p, n * sizeof(T) + 256));
        owned.push_back(p);
        return (T *)p;
    }
    template <class T>
    T *copy(const std::vector<T> &v) {
        T *p = get<T>(v.size());
        CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
        return p;
    }
    ~Device() {
        for (void *p : owned) cudaFree(p);
    }
};
inline size_t size_of(DType t) { return t == DTYPE_F32 ? 4 : 2; }
template <typename T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float(float x) {
    return x;
}
template <>
__device__ inline __half from_float(float x) {
    return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float(float x) {
    return __float2bfloat16_rn(x);
}
__device__ inline double to_double(float x) { return x; }
__device__ inline double to_double(__half x) { return __half2float(x); }
__device__ inline double to_double(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}
// Approximately normal: the sum of four uniform values.
__device__ inline float noise(uint64_t at) {
    uint64_t r = mix(at);
    float s = 0;
    for (int i = 0; i < 4; i++) s += (float)((r >> (16 * i)) & 0xFFFF) / 65535.f - .5f;
    return s * 1.732f;
}
