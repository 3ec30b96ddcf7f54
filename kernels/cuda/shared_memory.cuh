// Shared memory beyond the 48 KiB that every block may have.
#pragma once
#include "driver.cuh"
#include <atomic>

// Allows blocks of `kernel` that much of it in the current context.
//
// The driver is asked once and not at every launch: it takes the whole context for itself meanwhile, so that launches of other
// threads wait.
template <auto kernel> cudaError_t allow_shared_memory(size_t bytes) {
    static const auto id_of = driver_function<decltype(cuCtxGetId)>("cuCtxGetId");
    static std::atomic<unsigned long long> allowed_in{~0ull};  // Contexts are numbered, and no number comes twice.
    unsigned long long context = 0;
    if (!id_of || id_of(nullptr, &context) != CUDA_SUCCESS) return cudaErrorInvalidDevice;
    if (allowed_in.load(std::memory_order_relaxed) == context) return cudaSuccess;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error == cudaSuccess) allowed_in.store(context, std::memory_order_relaxed);
    return error;
}
