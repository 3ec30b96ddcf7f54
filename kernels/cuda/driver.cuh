// Driver functions that the CUDA runtime does not offer.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

// Looked up at run time so that nothing links against the driver. Null if the driver has no such function.
template <typename Function> Function *driver_function(const char *name) {
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &result);
    return (Function *)entry;
}
