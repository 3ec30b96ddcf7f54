// Shared memory beyond the 48 KiB that every block may have.
#pragma once
#include "driver.cuh"
#include <atomic>

// Allows blocks of `kernel` that much of it in the current context.
//
// The driver is asked once a card and not at every launch: it takes the whole context for itself meanwhile, so that launches of
// other threads wait.
template <auto kernel> cudaError_t allow_shared_memory(size_t bytes) {
    static const auto id_of = driver_function<decltype(cuCtxGetId)>("cuCtxGetId");
    // The context of each card in which it has been allowed, one more than its number: no number comes twice. Cards that share a
    // place ask more often.
    constexpr int PLACES = 64;
    static std::atomic<unsigned long long> allowed_in[PLACES];
    unsigned long long context = 0;
    int card = 0;
    if (!id_of || id_of(nullptr, &context) != CUDA_SUCCESS) return cudaErrorInvalidDevice;
    cudaError_t error = cudaGetDevice(&card);
    if (error != cudaSuccess) return error;
    std::atomic<unsigned long long> &allowed = allowed_in[card % PLACES];
    if (allowed.load(std::memory_order_relaxed) == context + 1) return cudaSuccess;
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error == cudaSuccess) allowed.store(context + 1, std::memory_order_relaxed);
    return error;
}
