// Programmatic dependent launch (compute capability 9.0 on): the blocks of a kernel may start while the last ones of the
// kernel before it on the stream are still at work, which hides what starting costs; a frame has some 700 kernels.
#pragma once
#include <cuda_runtime_api.h>

// To be called before anything is read or written that other kernels write or read: what the kernel before wrote is there
// after it, and so is what those before that one wrote, since each has waited in its turn.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Launches a kernel that begins with wait_for_kernel_before(). With IN_TURN, as tests of code for older cards have it, which does
// not wait, never early.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_early(void (*kernel)(Parameters...), dim3 blocks, unsigned threads, size_t shared_bytes,
                         cudaStream_t stream, const Arguments &...arguments) {
    int device = 0, major = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &early;
#ifdef IN_TURN
    config.numAttrs = 0;
#else
    config.numAttrs = major >= 9 ? 1 : 0;
#endif
    return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}
