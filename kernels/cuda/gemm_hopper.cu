// Gemm for compute capability 9.0: linear layers and convolutions of stride 1, with wgmma and bulk tensor copies (TMA).
//
// A block computes a tile of `ROWS` rows (pixels of y; they may cross lines and frames) by `OUTPUTS` sums. Each
// warpgroup owns 64 rows, and one extra warp starts the copies. A step is one pixel of the convolution kernel and 64
// inputs. The TMA unit gathers that pixel for all rows (im2col mode) and writes zeros for pixels outside of the
// picture, so padding costs nothing and x is never copied in device memory.
#include "early_launch.cuh"
#include "hopper.cuh"
#include "gemm_epilogue.cuh"
#include "shared_memory.cuh"

namespace {
constexpr int DEPTH = 64;  // terms per step

// A way to split the work among thread blocks.
//
// - ROWS x OUTPUTS: the shape of a tile. There are several, because a few more tiles than multiprocessors take as long
//   as twice as many would.
// - BLOCKS: blocks per multiprocessor; one stores while another multiplies.
// - SPLITS: blocks per cluster. They share a tile: each sums a part of the steps, then stores a part of the rows.
// - STEP: nanoseconds per step on an H200. With narrow tiles, writing and reading shared memory (128 bytes per cycle)
//   is the bottleneck.
// - REST: nanoseconds of the rest of a tile, which overlaps between the BLOCKS of a multiprocessor.
template <int ROWS_, int OUTPUTS_, int STAGES_, int BLOCKS_, int SPLITS_, int STEP_, int REST_> struct Plan {
    static constexpr int ROWS = ROWS_, OUTPUTS = OUTPUTS_, STAGES = STAGES_, BLOCKS = BLOCKS_, SPLITS = SPLITS_;
    static constexpr int STEP = STEP_, REST = REST_;
    static constexpr int WARPS = ROWS / 16, THREADS = (WARPS + 1) * 32;
    static constexpr uint32_t STEP_BYTES = (ROWS + OUTPUTS) * DEPTH * 2;
};

// The size of every tile is a multiple of 1024 bytes, the period of the 128-byte swizzle.
template <typename T, typename P> struct alignas(1024) Shared {
    union {
        struct {
            T x[P::STAGES][P::ROWS * DEPTH];
            T weights[P::STAGES][P::OUTPUTS * DEPTH];
        };
        // After the last step: the partial sums of each split, for the rows that this block stores.
        float4 sums[P::SPLITS][P::ROWS / P::SPLITS * P::OUTPUTS / 4];
    };
    float4 bias[P::OUTPUTS / 4];
    uint64_t full[P::STAGES], free[P::STAGES];
};

__device__ __forceinline__ void copy_x(const CUtensorMap *map, void *to, uint64_t *full, int input, int x, int y,
                                       int frame, uint16_t kernel_x, uint16_t kernel_y) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared_address(to)), "l"(map),
                 "r"(shared_address(full)), "r"(input), "r"(x), "r"(y), "r"(frame), "h"(kernel_x), "h"(kernel_y)
                 : "memory");
}
__device__ __forceinline__ void copy_weights(const CUtensorMap *map, void *to, uint64_t *full, int input, int pixel,
                                             int output) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)), "l"(map), "r"(shared_address(full)),
                 "r"(input), "r"(pixel), "r"(output)
                 : "memory");
}
__device__ __forceinline__ void prefetch(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Waits until all threads of the cluster are here. With RELEASE, what they wrote before is then visible to all.
template <bool RELEASE> __device__ __forceinline__ void cluster_sync() {
    if constexpr (RELEASE) asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    else asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The shared::cluster address of `p` in block `rank` of the cluster.
__device__ __forceinline__ uint32_t address_at(const void *p, uint32_t rank) {
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
    return address;
}
__device__ __forceinline__ void store_pair(uint32_t address, float x, float y) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}

// d[64, outputs] += a[64, 16] b[outputs, 16]ᵀ, with a and b in shared memory.
#define WGMMA(Element, type, outputs, list, registers, a_at, b_at)                                                        \
    __device__ __forceinline__ void wgmma(Element, float (&d)[outputs / 2], uint64_t a, uint64_t b) {                     \
        asm volatile("{ .reg .pred add; setp.eq.b32 add, 0, 0;\n"                                                        \
                     "wgmma.mma_async.sync.aligned.m64n" #outputs "k16.f32." type "." type " {" list "}, " a_at ", "     \
                     b_at ", add, 1, 1, 0, 0; }"                                                                         \
                     : registers                                                                                         \
                     : "l"(a), "l"(b));                                                                                  \
    }
#define WGMMA_OF(Element, type)                                                  \
    WGMMA(Element, type, 32, LIST_32, REGISTERS_32, "%16", "%17")                \
    WGMMA(Element, type, 64, LIST_64, REGISTERS_64, "%32", "%33")                \
    WGMMA(Element, type, 128, LIST_128, REGISTERS_128, "%64", "%65")             \
    WGMMA(Element, type, 192, LIST_192, REGISTERS_192, "%96", "%97")             \
    WGMMA(Element, type, 256, LIST_256, REGISTERS_256, "%128", "%129")
WGMMA_OF(__nv_bfloat16, "bf16")
WGMMA_OF(__half, "f16")

// Number of steps: pixels of the kernel times groups of DEPTH inputs.
__host__ __device__ inline uint32_t steps_of(const Gemm &p) {
    return p.kernel * p.kernel * ((p.inputs + DEPTH - 1) / DEPTH);
}

// The work of a block. Adjacent blocks share rows of x, so blocks that run at the same time find x, and also the
// weights, in the L2 cache.
template <typename P> struct Work {
    uint32_t split;   // rank in the cluster
    uint64_t row;     // first row of the tile
    uint32_t output;  // first output of the tile
    uint32_t first_step, steps;

    // `across`: number of tiles with the same rows.
    __device__ __forceinline__ Work(const Gemm &p, uint32_t across) {
        const uint32_t tile = blockIdx.x / P::SPLITS, all = steps_of(p);
        split = blockIdx.x % P::SPLITS;
        row = (uint64_t)(tile / across) * P::ROWS;
        output = tile % across * P::OUTPUTS;
        first_step = (uint32_t)((uint64_t)all * split / P::SPLITS);
        steps = (uint32_t)((uint64_t)all * (split + 1) / P::SPLITS) - first_step;
    }
};

template <typename T, typename P>
__device__ __forceinline__ void produce(Shared<T, P> &shared, const CUtensorMap *x_map, const CUtensorMap *weight_map,
                                        const Gemm &p, const Work<P> &work) {
    const uint64_t width = out_size(p.width, p), height = out_size(p.height, p);
    const int x = (int)(work.row % width) - (int)p.padding, y = (int)(work.row / width % height) - (int)p.padding;
    const int frame = (int)(work.row / width / height);
    const uint32_t pixels = p.kernel * p.kernel;
    uint32_t input = work.first_step / pixels * DEPTH, kernel_y = work.first_step % pixels / p.kernel,
             kernel_x = work.first_step % p.kernel;
    Ring<P::STAGES> ring;
    for (uint32_t step = 0; step < work.steps; step++) {
        uint64_t *full = &shared.full[ring.stage];
        barrier_wait(&shared.free[ring.stage], ring.phase ^ 1);
        barrier_expect(full, P::STEP_BYTES);
        copy_x(x_map, shared.x[ring.stage], full, input, x, y, frame, kernel_x, kernel_y);
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

// Layout of a wgmma accumulator: element 4 j + 2 i + c of a thread is column 8 j + 2 (lane % 4) + c of row lane / 4 + 8
// i.
template <typename T, typename P>
__device__ __forceinline__ void consume(Shared<T, P> &shared, const Work<P> &work, int consumer,
                                        float (&sums)[P::OUTPUTS / 2]) {
    const int lane = threadIdx.x % 32;
    const uint64_t first_x = descriptor(&shared.x[0][consumer * 64 * DEPTH]);
    const uint64_t first_weights = descriptor(shared.weights[0]);
#pragma unroll
    for (int i = 0; i < P::OUTPUTS / 2; i++) sums[i] = 0.f;
    Ring<P::STAGES> ring;
    int before = -1;  // stage of the previous step
    for (uint32_t step = 0; step < work.steps; step++) {
        barrier_wait(&shared.full[ring.stage], ring.phase);
        const uint64_t x = first_x + (uint32_t)(ring.stage * (P::ROWS * DEPTH * 2 / 16));
        const uint64_t weights = first_weights + (uint32_t)(ring.stage * (P::OUTPUTS * DEPTH * 2 / 16));
        pin(sums);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++) wgmma(T(), sums, x + 2 * i, weights + 2 * i);
        wgmma_commit();
        wgmma_wait<1>();
        if (before >= 0 && lane == 0) barrier_arrive(&shared.free[before]);
        before = ring.stage;
        ring.advance();
    }
    wgmma_wait<0>();
    pin(sums);
}

// Index of 16-byte chunk `chunk` of a row of sums in shared memory. The XOR avoids bank conflicts between rows that are
// written together.
template <typename P> __device__ __forceinline__ int chunk_of_sums(int row, int chunk) {
    return row * (P::OUTPUTS / 4) + (chunk ^ row % 4 * 2);
}

// Stores sums from shared memory to y. A thread has four of up to 64 adjacent columns and loops over the rows of its
// warp.
template <typename Y, typename T, typename P>
__device__ __forceinline__ void store(const Shared<T, P> &shared, const Gemm &p, const Work<P> &work) {
    constexpr int MINE = P::ROWS / P::SPLITS / P::WARPS, ACROSS = (P::OUTPUTS < 64 ? P::OUTPUTS : 64) / 4, DOWN = 32 / ACROSS;
    constexpr int ITEMS = MINE / DOWN, AT_ONCE = ITEMS < 8 / P::BLOCKS ? ITEMS : 8 / P::BLOCKS;
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * MINE + lane / ACROSS;
    const uint64_t rows = rows_of(p), first_row = work.row + work.split * (P::ROWS / P::SPLITS);
#pragma unroll 1
    for (int column = lane % ACROSS; column < P::OUTPUTS / 4; column += ACROSS) {
        const Outputs<Y, 4> outputs(p, work.output + column * 4);
        const float4 bias = shared.bias[column];
#pragma unroll 1
        for (int i = 0; i < ITEMS; i += AT_ONCE)
            outputs.template put<AT_ONCE>(p, first_row + row + i * DOWN, DOWN, rows, [&](int j, float (&values)[4]) {
                const int at = chunk_of_sums<P>(row + (i + j) * DOWN, column);
                values[0] = bias.x, values[1] = bias.y, values[2] = bias.z, values[3] = bias.w;
#pragma unroll
                for (int split = 0; split < P::SPLITS; split++) {
                    const float4 part = shared.sums[split][at];
                    values[0] += part.x, values[1] += part.y, values[2] += part.z, values[3] += part.w;
                }
            });
    }
}

template <typename P, bool RELEASE> __device__ __forceinline__ void synchronize() {
    if constexpr (P::SPLITS == 1) __syncthreads();
    else cluster_sync<RELEASE>();
}

template <typename T, typename P>
__global__ void __cluster_dims__(P::SPLITS, 1, 1) __launch_bounds__(P::THREADS, P::BLOCKS)
gemm_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map,
               const __grid_constant__ Gemm p, uint32_t across) {
    extern __shared__ __align__(1024) unsigned char raw[];
    Shared<T, P> &shared = *reinterpret_cast<Shared<T, P> *>(raw);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < P::STAGES; stage++) {
            barrier_init(&shared.full[stage], 1);
            barrier_init(&shared.free[stage], P::WARPS);
        }
        barrier_init_done();
        prefetch(&x_map);
        prefetch(&weight_map);
    }
    synchronize<P, false>();
    wait_for_kernel_before();

    const Work<P> work(p, across);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool producer = warp == P::WARPS;
    float sums[P::OUTPUTS / 2];
    if (producer) {
        if (lane == 0) produce(shared, &x_map, &weight_map, p, work);
        __syncwarp();
    } else {
        if (threadIdx.x < P::OUTPUTS / 4) {
            float bias[4];
            load_bias(p, work.output + threadIdx.x * 4, bias);
            shared.bias[threadIdx.x] = make_float4(bias[0], bias[1], bias[2], bias[3]);
        }
        consume(shared, work, threadIdx.x / WARPGROUP, sums);
    }

    // Sums go through shared memory, to the block of the cluster that stores the row. So a thread stores four adjacent
    // outputs, and a warp stores whole lines. Chunks that are eight apart differ by a constant, because the XOR only
    // changes the lowest bits.
    synchronize<P, false>();
    if (!producer) {
        constexpr int PART = P::ROWS / P::SPLITS;
        const int row = warp * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float4 *chunk = &shared.sums[work.split][chunk_of_sums<P>(row % PART, i * 2 + lane % 4 / 2)];
            const uint32_t to = (P::SPLITS == 1 ? shared_address(chunk) : address_at(chunk, row / PART)) + lane % 2 * 8;
#pragma unroll
            for (int j = i; j < P::OUTPUTS / 8; j += 4) {
                store_pair(to + j / 4 * 128, sums[j * 4], sums[j * 4 + 1]);
                store_pair(to + j / 4 * 128 + 8 * P::OUTPUTS * 4, sums[j * 4 + 2], sums[j * 4 + 3]);
            }
        }
    }
    synchronize<P, true>();
    if (producer) return;

    if (p.output == DTYPE_F32) store<float>(shared, p, work);
    else store<T>(shared, p, work);
}

decltype(cuTensorMapEncodeIm2col) *im2col_encoder() {
    static const auto encode = driver_function<decltype(cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
    return encode;
}

// Tensor map of x, for copies of the rows of a tile.
bool encode_x(CUtensorMap *map, const Gemm &p, uint32_t rows) {
    const cuuint64_t dims[4] = {p.inputs, p.width, p.height, p.frames};
    const cuuint64_t line = (cuuint64_t)p.width * p.inputs * 2;
    const cuuint64_t bytes[3] = {(cuuint64_t)p.inputs * 2, line, p.height * line};
    const int padding = p.padding, last = padding - ((int)p.kernel - 1);
    const int lower[2] = {-padding, -padding}, upper[2] = {last, last};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    return im2col_encoder()(map, tensor_map_type(p.dtype), 4, const_cast<void *>(p.x), dims, bytes, lower, upper, DEPTH,
                            rows, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
bool encode_weights(CUtensorMap *map, const Gemm &p, uint32_t outputs) {
    const cuuint64_t dims[3] = {p.inputs, p.kernel * p.kernel, p.outputs};
    const int64_t strides[2] = {p.inputs, (int64_t)terms_of(p)};
    const cuuint32_t box[3] = {DEPTH, 1, outputs};
    return encode_tiled(map, p.dtype, p.weight, 3, dims, strides, box);
}

template <typename P> uint32_t tiles_across(const Gemm &p) {
    return (uint32_t)(((uint64_t)p.outputs + P::OUTPUTS - 1) / P::OUTPUTS);
}
template <typename P> uint64_t blocks_of(const Gemm &p) {
    return (rows_of(p) + P::ROWS - 1) / P::ROWS * tiles_across<P>(p) * P::SPLITS;
}

template <typename T, typename P> cudaError_t launch(const Gemm &p, cudaStream_t stream) {
    CUtensorMap x_map, weight_map;
    if (!encode_x(&x_map, p, P::ROWS) || !encode_weights(&weight_map, p, P::OUTPUTS)) return cudaErrorInvalidValue;
    const uint64_t blocks = blocks_of<P>(p);
    if (blocks >= 1u << 31) return cudaErrorInvalidValue;
    const int bytes = sizeof(Shared<T, P>);
    const cudaError_t error = allow_shared_memory<gemm_kernel<T, P>>(bytes);
    if (error != cudaSuccess) return error;
    return launch_early(gemm_kernel<T, P>, dim3((uint32_t)blocks), P::THREADS, bytes, stream, x_map, weight_map, p,
                        tiles_across<P>(p));
}

// Estimated nanoseconds of a plan on `multiprocessors` of an H200.
template <typename P> uint64_t cost(const Gemm &p, uint32_t multiprocessors) {
    // Clusters of four do not fit on all multiprocessors: 128 blocks took two rounds.
    const uint64_t places = P::SPLITS < 4 ? multiprocessors : (multiprocessors * 3 + 3) / 4;
    const uint64_t blocks = blocks_of<P>(p), slots = places * P::BLOCKS;
    const uint64_t steps = (steps_of(p) + P::SPLITS - 1) / P::SPLITS;
    // Blocks on the busiest multiprocessor. A block that is alone there sometimes waits for its copies.
    const uint64_t most = (blocks + places - 1) / places, alone = most % P::BLOCKS;
    return (most * P::STEP + alone * P::STEP * 2 / 5) * steps + (blocks + slots - 1) / slots * P::REST;
}

struct Choice {
    uint64_t (*cost)(const Gemm &, uint32_t multiprocessors);
    cudaError_t (*launch)(const Gemm &, cudaStream_t);
};
template <typename T, typename P> constexpr Choice choice{cost<P>, launch<T, P>};

template <typename T>
constexpr Choice choices[] = {
    choice<T, Plan<192, 192, 4, 1, 1, 740, 5100>>, choice<T, Plan<128, 256, 4, 1, 1, 680, 4800>>,
    choice<T, Plan<128, 192, 5, 1, 1, 500, 4500>>, choice<T, Plan<128, 128, 3, 2, 1, 360, 4200>>,
    choice<T, Plan<128, 128, 6, 1, 2, 355, 6100>>, choice<T, Plan<128, 64, 4, 2, 2, 243, 4400>>,
    choice<T, Plan<128, 64, 8, 1, 4, 243, 4400>>,  choice<T, Plan<128, 32, 5, 2, 1, 195, 3500>>,
    choice<T, Plan<64, 256, 5, 1, 1, 300, 5600>>,  choice<T, Plan<64, 256, 5, 1, 2, 345, 6000>>,
    choice<T, Plan<64, 128, 8, 1, 1, 235, 3300>>};
static_assert(sizeof choices<__half> == GEMM_HOPPER_PLANS * sizeof(Choice), "GEMM_HOPPER_PLANS in gemm.h is the count");

// Whether this file has a kernel for the gemm, on a GPU of compute capability 9.0.
bool possible(const Gemm &p) {
    // Limits of im2col tensor maps with four dimensions, and of coordinates.
    constexpr uint32_t MOST_PADDING = 127, MOST_KERNEL = 128, MOST = 1u << 31;
    return valid(p) && p.dtype != DTYPE_F32 && p.stride == 1 && p.inputs > 0 && p.inputs % 8 == 0 && aligned(p.x) &&
           aligned(p.weight) && aligned(p.y) && p.padding <= MOST_PADDING && p.kernel <= MOST_KERNEL && p.frames < MOST &&
           p.outputs < MOST && im2col_encoder() && tiled_encoder();
}
} // namespace

extern "C" int periplus_gemm_hopper_fits(const Gemm *p) {
    // Up to 8 rows are a gemv, for which periplus_gemm() has its own kernel.
    return possible(*p) && rows_of(*p) > 8;
}

extern "C" uint32_t periplus_gemm_hopper_plan(const Gemm *p, uint32_t multiprocessors) {
    uint32_t best = 0;
    uint64_t least = ~0ull;
    for (uint32_t plan = 0; plan < GEMM_HOPPER_PLANS; plan++) {
        const uint64_t cost = choices<__half>[plan].cost(*p, multiprocessors);  // the same for both dtypes
        if (cost < least) {
            least = cost;
            best = plan;
        }
    }
    return best;
}

extern "C" cudaError_t periplus_gemm_hopper(const Gemm *p, uint32_t plan, cudaStream_t stream) {
    if (!possible(*p) || plan >= GEMM_HOPPER_PLANS) return cudaErrorInvalidValue;
    if (rows_of(*p) == 0 || p->outputs == 0) return cudaSuccess;
    return (p->dtype == DTYPE_BF16 ? choices<__nv_bfloat16> : choices<__half>)[plan].launch(*p, stream);
}
