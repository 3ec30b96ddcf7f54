// Products for compute capability 9.0: linear layers and convolutions of stride 1 by wgmma, their operands by bulk tensor
// copies.
//
// A block makes tiles of 128 rows (pixels of y, whatever the lines and frames they lie in) by `OUTPUTS` sums. Two
// warpgroups own 64 rows each, and one more warp starts the copies. A step is one pixel of the kernel and 64 inputs:
// the copy engine gathers the rows of x from wherever that pixel lies for each (its im2col mode) and writes zeros for what
// is outside of the picture, so that padding costs nothing and x is never copied in device memory.
#include "hopper.cuh"
#include "product_epilogue.cuh"

namespace {
constexpr int ROWS = 128, DEPTH = 64;  // of a tile, and terms of a step
constexpr int CONSUMERS = 2, WARPS = CONSUMERS * WARPGROUP / 32, THREADS = (WARPS + 1) * 32;

// OUTPUTS of a tile; BLOCKS that share a multiprocessor, so that one may store while another multiplies. A cluster is
// SHARERS blocks that work on the same rows, each of which fetches a part of x for all of them, times SPLITS blocks that
// work on the same tile, each on a part of the steps.
template <int OUTPUTS_, int STAGES_, int BLOCKS_, int SHARERS_, int SPLITS_> struct Plan {
    static constexpr int OUTPUTS = OUTPUTS_, STAGES = STAGES_, BLOCKS = BLOCKS_, SHARERS = SHARERS_, SPLITS = SPLITS_;
    static constexpr int CLUSTER = SHARERS * SPLITS;
    static constexpr uint32_t STEP_BYTES = (ROWS + OUTPUTS) * DEPTH * 2;
};

// Every tile is a multiple of 1024 bytes, the period of the 128-byte swizzle.
template <typename T, typename P> struct alignas(1024) Shared {
    union {
        struct {
            T x[P::STAGES][ROWS * DEPTH];
            T weights[P::STAGES][P::OUTPUTS * DEPTH];
        };
        // After the last step: what each of the splits makes of the rows that this one stores.
        float4 sums[P::SPLITS][ROWS / P::SPLITS * P::OUTPUTS / 4];
    };
    uint64_t full[P::STAGES], free[P::STAGES];
};

template <int SHARERS>
__device__ __forceinline__ void copy_x(const CUtensorMap *map, void *to, uint64_t *full, int input, int x, int y, int frame,
                                       uint16_t kernel_x, uint16_t kernel_y, uint16_t blocks) {
    if constexpr (SHARERS == 1)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared_address(to)), "l"(map),
                     "r"(shared_address(full)), "r"(input), "r"(x), "r"(y), "r"(frame), "h"(kernel_x), "h"(kernel_y)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(shared_address(to)), "l"(map),
                     "r"(shared_address(full)), "r"(input), "r"(x), "r"(y), "r"(frame), "h"(kernel_x), "h"(kernel_y),
                     "h"(blocks)
                     : "memory");
}
__device__ __forceinline__ void copy_weights(const CUtensorMap *map, void *to, uint64_t *full, int input, int pixel, int output) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
                     shared_address(to)), "l"(map), "r"(shared_address(full)), "r"(input), "r"(pixel), "r"(output)
                 : "memory");
}

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Writes where block `rank` of the cluster has what is at `p` here.
__device__ __forceinline__ void store_at(float *p, uint32_t rank, float x, float y) {
    asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "st.shared::cluster.v2.f32 [there], {%2, %3}; }" ::"r"(shared_address(p)), "r"(rank), "f"(x), "f"(y)
                 : "memory");
}
// Arrives at the barrier of block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_at(uint64_t *barrier, uint32_t rank) {
    asm volatile("{ .reg .u32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(barrier)), "r"(rank)
                 : "memory");
}

#define LIST_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define LIST_1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST_2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define LIST_3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LIST_4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define LIST_5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LIST_6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define LIST_7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define LIST_64 LIST_0 ", " LIST_1
#define LIST_128 LIST_64 ", " LIST_2 ", " LIST_3
#define LIST_192 LIST_128 ", " LIST_4 ", " LIST_5
#define LIST_256 LIST_192 ", " LIST_6 ", " LIST_7
#define REGISTERS_32 REGISTERS_8(d, 0), REGISTERS_8(d, 8)
#define REGISTERS_64 REGISTERS_32, REGISTERS_8(d, 16), REGISTERS_8(d, 24)
#define REGISTERS_128 REGISTERS_64, REGISTERS_8(d, 32), REGISTERS_8(d, 40), REGISTERS_8(d, 48), REGISTERS_8(d, 56)
#define REGISTERS_192 REGISTERS_128, REGISTERS_8(d, 64), REGISTERS_8(d, 72), REGISTERS_8(d, 80), REGISTERS_8(d, 88)
#define REGISTERS_256 REGISTERS_192, REGISTERS_8(d, 96), REGISTERS_8(d, 104), REGISTERS_8(d, 112), REGISTERS_8(d, 120)
// d[64, outputs] += a[64, 16] b[outputs, 16]ᵀ, both in shared memory.
#define WGMMA(Number, type, outputs, list, registers, a_at, b_at)                                                        \
    __device__ __forceinline__ void wgmma(Number, float (&d)[outputs / 2], uint64_t a, uint64_t b) {                     \
        asm volatile("{ .reg .pred add; setp.eq.b32 add, 0, 0;\n"                                                        \
                     "wgmma.mma_async.sync.aligned.m64n" #outputs "k16.f32." type "." type " {" list "}, " a_at ", "     \
                     b_at ", add, 1, 1, 0, 0; }"                                                                         \
                     : registers                                                                                         \
                     : "l"(a), "l"(b));                                                                                  \
    }
#define WGMMA_OF(Number, type)                                                  \
    WGMMA(Number, type, 32, LIST_0, REGISTERS_32, "%16", "%17")                 \
    WGMMA(Number, type, 64, LIST_64, REGISTERS_64, "%32", "%33")                \
    WGMMA(Number, type, 128, LIST_128, REGISTERS_128, "%64", "%65")             \
    WGMMA(Number, type, 192, LIST_192, REGISTERS_192, "%96", "%97")             \
    WGMMA(Number, type, 256, LIST_256, REGISTERS_256, "%128", "%129")
WGMMA_OF(__nv_bfloat16, "bf16")
WGMMA_OF(__half, "f16")

// What a block works on. Neighbouring blocks share rows of x, so those that run at once share it in the L2 cache, and the
// weights in any case.
template <typename P> struct Work {
    uint32_t sharer, split;   // place in the cluster
    uint64_t row;             // the first of the tile
    uint32_t output;          // likewise
    uint32_t first_step, steps;

    // `across`: tiles of the same rows.
    __device__ __forceinline__ Work(const Product &p, uint32_t across) {
        sharer = blockIdx.x % P::SHARERS;
        split = blockIdx.x / P::SHARERS % P::SPLITS;
        const uint32_t tile = blockIdx.x / P::CLUSTER * P::SHARERS + sharer;
        row = (uint64_t)(tile / across) * ROWS;
        output = tile % across * P::OUTPUTS;
        const uint32_t all = p.kernel * p.kernel * ((p.inputs + DEPTH - 1) / DEPTH);
        first_step = (uint32_t)((uint64_t)all * split / P::SPLITS);
        steps = (uint32_t)((uint64_t)all * (split + 1) / P::SPLITS) - first_step;
    }
};

template <typename T, typename P>
__device__ __forceinline__ void produce(Shared<T, P> &shared, const CUtensorMap *x_map, const CUtensorMap *weight_map,
                                        const Product &p, const Work<P> &work) {
    constexpr int PART = ROWS / P::SHARERS;
    const uint64_t width = out_size(p.width, p), height = out_size(p.height, p), row = work.row + work.sharer * PART;
    const int x = (int)(row % width) - (int)p.padding, y = (int)(row / width % height) - (int)p.padding;
    const int frame = (int)(row / width / height);
    const uint16_t sharers = ((1 << P::SHARERS) - 1) << work.split * P::SHARERS;
    const uint32_t pixels = p.kernel * p.kernel;
    uint32_t input = work.first_step / pixels * DEPTH, kernel_y = work.first_step % pixels / p.kernel,
             kernel_x = work.first_step % p.kernel;
    Ring<P::STAGES> ring;
    for (uint32_t step = 0; step < work.steps; step++) {
        uint64_t *full = &shared.full[ring.stage];
        barrier_wait(&shared.free[ring.stage], ring.phase ^ 1);
        barrier_expect(full, P::STEP_BYTES);
        copy_x<P::SHARERS>(x_map, shared.x[ring.stage] + work.sharer * PART * DEPTH, full, input, x, y, frame, kernel_x, kernel_y,
                           sharers);
        copy_weights(weight_map, shared.weights[ring.stage], full, input, kernel_y * p.kernel + kernel_x, work.output);
        ring.advance();
        if (++kernel_x == p.kernel) {
            kernel_x = 0;
            if (++kernel_y == p.kernel) {
                kernel_y = 0;
                input += DEPTH;
            }
        }
    }
}

// An accumulator of wgmma gives a thread, of every eight columns, two neighbouring ones in each of two rows, eight apart:
// element 4 j + 2 i + c is column 8 j + 2 (lane % 4) + c of row lane / 4 + 8 i.
template <typename T, typename P>
__device__ __forceinline__ void consume(Shared<T, P> &shared, const Work<P> &work, int consumer, float (&sums)[P::OUTPUTS / 2]) {
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t first_x = descriptor(&shared.x[0][consumer * 64 * DEPTH]), first_weights = descriptor(shared.weights[0]);
    auto release = [&](int stage) {
        if constexpr (P::SHARERS == 1) {
            if (lane == 0) barrier_arrive(&shared.free[stage]);
        } else {
            if (lane < P::SHARERS) barrier_arrive_at(&shared.free[stage], work.split * P::SHARERS + lane);
        }
    };
#pragma unroll
    for (int i = 0; i < P::OUTPUTS / 2; i++) sums[i] = 0.f;
    Ring<P::STAGES> ring;
    int before = -1;  // stage of the last step
    for (uint32_t step = 0; step < work.steps; step++) {
        barrier_wait(&shared.full[ring.stage], ring.phase);
        const uint64_t x = first_x + (uint32_t)(ring.stage * (ROWS * DEPTH * 2 / 16));
        const uint64_t weights = first_weights + (uint32_t)(ring.stage * (P::OUTPUTS * DEPTH * 2 / 16));
        pin(sums);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++) wgmma(T(), sums, x + 2 * i, weights + 2 * i);
        wgmma_commit();
        wgmma_wait<1>();
        if (before >= 0) release(before);
        before = ring.stage;
        ring.advance();
    }
    wgmma_wait<0>();
    pin(sums);
    // Nobody waits for the last stages to be free, but blocks must not end before all have arrived.
    if (before >= 0) release(before);
}

// 16-byte chunk `chunk` of a row of sums in shared memory; the exclusive or keeps rows that are written together out of
// each other's banks.
template <typename P> __device__ __forceinline__ int chunk_of_sums(int row, int chunk) {
    return row * (P::OUTPUTS / 4) + (chunk ^ row % 4 * 2);
}

template <typename P> __device__ __forceinline__ void synchronize() {
    if constexpr (P::CLUSTER == 1) __syncthreads();
    else cluster_sync();
}

template <typename T, typename P>
__global__ void __cluster_dims__(P::CLUSTER, 1, 1) __launch_bounds__(THREADS, P::BLOCKS)
product_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map,
               const __grid_constant__ Product p, uint32_t across) {
    extern __shared__ __align__(1024) unsigned char raw[];
    Shared<T, P> &shared = *reinterpret_cast<Shared<T, P> *>(raw);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < P::STAGES; stage++) {
            barrier_init(&shared.full[stage], 1);
            barrier_init(&shared.free[stage], WARPS * P::SHARERS);
        }
        barrier_init_done();
    }
    synchronize<P>();

    const Work<P> work(p, across);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == WARPS) {
        if (lane == 0) produce(shared, &x_map, &weight_map, p, work);
        __syncwarp();
        synchronize<P>();
        synchronize<P>();
        return;
    }
    const int consumer = threadIdx.x / WARPGROUP;
    float sums[P::OUTPUTS / 2];
    consume(shared, work, consumer, sums);

    // Through shared memory, so that a store is of four neighbours and a warp's of whole lines. Of two splits the first
    // stores the rows of the first consumers, the second those of the second.
    synchronize<P>();
    float4 *to = shared.sums[work.split];
    const int first = P::SPLITS == 1 ? consumer * 64 : 0;
#pragma unroll
    for (int j = 0; j < P::OUTPUTS / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = first + warp % 4 * 16 + lane / 4 + i * 8, column = j * 8 + lane % 4 * 2;
            float *at = (float *)&to[chunk_of_sums<P>(row, column / 4)] + column % 4;
            if constexpr (P::SPLITS == 1) *(float2 *)at = make_float2(sums[j * 4 + i * 2], sums[j * 4 + i * 2 + 1]);
            else store_at(at, consumer * P::SHARERS + work.sharer, sums[j * 4 + i * 2], sums[j * 4 + i * 2 + 1]);
        }
    synchronize<P>();

    constexpr int MINE = ROWS / P::SPLITS / WARPS, ACROSS = P::OUTPUTS / 4, AT_ONCE = 4;
    const uint64_t rows = rows_of(p), first_row = work.row + (P::SPLITS == 1 ? 0 : work.split * 64);
#pragma unroll 1
    for (int i = lane; i < MINE * ACROSS; i += AT_ONCE * 32) {
        float before[AT_ONCE][4];
        // All are on their way before the first is waited for.
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int row = warp * MINE + (i + k * 32) / ACROSS, column = (i + k * 32) % ACROSS;
            if (first_row + row < rows) earlier(p, first_row + row, work.output + column * 4, before[k]);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int row = warp * MINE + (i + k * 32) / ACROSS, column = (i + k * 32) % ACROSS;
            float values[4] = {};
#pragma unroll
            for (int split = 0; split < P::SPLITS; split++) {
                const float4 part = shared.sums[split][chunk_of_sums<P>(row, column)];
                values[0] += part.x, values[1] += part.y, values[2] += part.z, values[3] += part.w;
            }
            if (first_row + row < rows) finish(p, first_row + row, work.output + column * 4, values, before[k]);
        }
    }
}

decltype(cuTensorMapEncodeIm2col) *im2col_encoder() {
    static const auto encode = driver_function<decltype(cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
    return encode;
}

// x for copies of `pixels` rows of y.
bool encode_x(CUtensorMap *map, const Product &p, uint32_t pixels) {
    const cuuint64_t dims[4] = {p.inputs, p.width, p.height, p.frames};
    const cuuint64_t line = (cuuint64_t)p.width * p.inputs * 2;
    const cuuint64_t bytes[3] = {(cuuint64_t)p.inputs * 2, line, p.height * line};
    const int padding = p.padding, last = padding - ((int)p.kernel - 1);
    const int lower[2] = {-padding, -padding}, upper[2] = {last, last};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    return im2col_encoder()(map, tensor_map_type(p.type), 4, const_cast<void *>(p.x), dims, bytes, lower, upper, DEPTH, pixels,
                            steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
bool encode_weights(CUtensorMap *map, const Product &p, uint32_t outputs) {
    const cuuint64_t dims[3] = {p.inputs, p.kernel * p.kernel, p.outputs};
    const int64_t strides[2] = {p.inputs, (int64_t)terms_of(p)};
    const cuuint32_t box[3] = {DEPTH, 1, outputs};
    return encode_tiled(map, p.type, p.weight, 3, dims, strides, box);
}

template <typename T, typename P> cudaError_t launch(const Product &p, cudaStream_t stream) {
    CUtensorMap x_map, weight_map;
    if (!encode_x(&x_map, p, ROWS / P::SHARERS) || !encode_weights(&weight_map, p, P::OUTPUTS)) return cudaErrorInvalidValue;
    const uint64_t across = (p.outputs + P::OUTPUTS - 1) / P::OUTPUTS, tiles = (rows_of(p) + ROWS - 1) / ROWS * across;
    if (tiles * P::SPLITS >= 1u << 31 || across % P::SHARERS) return cudaErrorInvalidValue;
    const int bytes = sizeof(Shared<T, P>);
    const auto kernel = product_kernel<T, P>;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
    kernel<<<(uint32_t)tiles * P::SPLITS, THREADS, bytes, stream>>>(x_map, weight_map, p, (uint32_t)across);
    return cudaGetLastError();
}
} // namespace
