// Functions of the driver that the runtime library has no words for.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

// Looked up so that nothing links against the driver; null if it has none of that name.
template <typename Function> Function *driver_function(const char *name) {
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &result);
    return (Function *)entry;
}
