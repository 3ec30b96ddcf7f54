// Programmatic dependent launch (compute capability 9.0 and newer): the blocks of a kernel may start while the last
// blocks of the previous kernel in the stream still run. This hides the cost of starting; a frame has about 700
// kernels.
#pragma once
#include <cuda_runtime_api.h>

// A kernel calls this before it reads or writes memory that other kernels write or read. Afterwards, everything that
// the previous kernel wrote is visible, and so is what earlier kernels wrote, because each of them has waited as well.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Launches a kernel that begins with wait_for_kernel_before(). IN_TURN switches early launches off: tests define it for
// code of older GPUs, which does not wait.
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
