// Shared memory of more than the 48 KiB that every block may use.
#pragma once
#include "driver.cuh"
#include <atomic>

// Allows blocks of `kernel` to use `bytes` of shared memory in the current context.
//
// This calls the driver once per GPU and not at every launch, because the call locks the context, and launches of other
// threads wait.
template <auto kernel> cudaError_t allow_shared_memory(size_t bytes) {
    static const auto id_of = driver_function<decltype(cuCtxGetId)>("cuCtxGetId");
    // For each GPU, 1 + the id of the context in which it has been allowed; ids are never reused. GPUs that share a
    // place call the driver more often.
    constexpr int PLACES = 64;
    static std::atomic<unsigned long long> allowed_in[PLACES];
    unsigned long long context = 0;
    int gpu = 0;
    if (!id_of || id_of(nullptr, &context) != CUDA_SUCCESS) return cudaErrorInvalidDevice;
    cudaError_t error = cudaGetDevice(&gpu);
    if (error != cudaSuccess) return error;
    std::atomic<unsigned long long> &allowed = allowed_in[gpu % PLACES];
    if (allowed.load(std::memory_order_relaxed) == context + 1) return cudaSuccess;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error == cudaSuccess) allowed.store(context + 1, std::memory_order_relaxed);
    return error;
}
