// Instructions of compute capability 9.0 that CUDA C++ does not offer: barriers in shared memory that count copied
// bytes (mbarrier), and matrix products of a warpgroup (wgmma).
#pragma once
#include "driver.cuh"
#include "dtype.h"
#include "instructions.cuh"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "wgmma needs -gencode=arch=compute_90a,code=sm_90a and no other target"
#endif

constexpr int WARPGROUP = 128;

__device__ __forceinline__ void barrier_init(uint64_t *barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
// Call this after all barriers are initialised, before they are used: it makes them visible to copies and to the other
// blocks of the cluster.
__device__ __forceinline__ void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t phase) {
    asm volatile(
        "{ .reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra finished;\n"
        "bra again;\n"
        "finished: }" ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Stops the compiler from moving uses of registers that a wgmma reads or writes across this point.
template <int N> __device__ __forceinline__ void pin(float (&registers)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int N> __device__ __forceinline__ void pin(uint32_t (&registers)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(registers[i])::"memory");
}
// Matrix descriptor for rows of 128 bytes with the 128-byte swizzle; groups of eight rows are 1024 bytes apart. Its
// lowest bits are an address in units of 16 bytes, so descriptors of other addresses are made by addition.
__device__ __forceinline__ uint64_t descriptor(const void *p) {
    const uint64_t address = (shared_address(p) & 0x3FFFF) >> 4, group_stride = 1024 >> 4, swizzle_128_bytes = 1;
    return address | (uint64_t)1 << 16 | group_stride << 32 | swizzle_128_bytes << 62;
}
// The accumulator `d` of a wgmma with 32 to 256 columns, which takes half as many registers: LIST_* is their list in
// the instruction, where they come first, REGISTERS_* the list of asm operands.
#define LIST_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define LIST_64 LIST_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST_96 LIST_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define LIST_112 LIST_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define LIST_128 LIST_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define LIST_192 LIST_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
                          "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LIST_256 LIST_192 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
                          "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define REGISTERS_8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
                          "+f"(d[i + 6]), "+f"(d[i + 7])
#define REGISTERS_16(d, i) REGISTERS_8(d, i), REGISTERS_8(d, i + 8)
#define REGISTERS_32 REGISTERS_16(d, 0)
#define REGISTERS_64 REGISTERS_32, REGISTERS_16(d, 16)
#define REGISTERS_96 REGISTERS_64, REGISTERS_16(d, 32)
#define REGISTERS_112 REGISTERS_96, REGISTERS_8(d, 48)
#define REGISTERS_128 REGISTERS_112, REGISTERS_8(d, 56)
#define REGISTERS_192 REGISTERS_128, REGISTERS_16(d, 64), REGISTERS_16(d, 80)
#define REGISTERS_256 REGISTERS_192, REGISTERS_16(d, 96), REGISTERS_16(d, 112)

// Position in a ring of tiles in shared memory.
template <int STAGES> struct Ring {
    int stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

inline decltype(cuTensorMapEncodeTiled) *tiled_encoder() {
    static const auto encode = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
    return encode;
}

inline CUtensorMapDataType tensor_map_type(DType dtype) {
    return dtype == DTYPE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}
// Tensor map of 16-bit elements for copies of `box`, whose rows are 128 bytes. Strides are in elements and start with
// the second dimension.
inline bool encode_tiled(CUtensorMap *map, DType dtype, const void *data, int rank, const cuuint64_t *dims,
                         const int64_t *strides, const cuuint32_t *box) {
    cuuint64_t bytes[4];
    for (int i = 0; i < rank - 1; i++) bytes[i] = (cuuint64_t)strides[i] * 2;
    const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    return tiled_encoder()(map, tensor_map_type(dtype), rank, const_cast<void *>(data), dims, bytes, box, steps,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
