// Paged attention for compute capability 9.0, with wgmma and bulk tensor copies (TMA).
//
// A block has 128 queries of one head and loops over tiles of the keys and values of that head. The first warpgroup is
// the producer: one of its threads starts the copies. The two others are consumers with 64 queries each (warp
// specialisation as in FlashAttention-3, Shah et al. 2024). A consumer starts two products together, the scores of the
// next tile and the output of the current one, and computes softmax weights while the tensor cores run.
//
// A fixed reference replaces the running maximum. exp2(s - m) / sum exp2(s - m) is the same for every m as long as the
// powers stay in range, and float32 and bfloat16 reach 2^127. So m is the largest score of the *first* tile. The loop
// over the other tiles has no maximum, shuffle or rescaling, which with head_dim 64 would cost as much as the
// exponentials. If the sums of a block exceed 2^100 or are not finite, the block starts again with a running maximum
// (`exact`).
#include "early_launch.cuh"
#include "hopper.cuh"
#include "key_tiles.cuh"
#include "shared_memory.cuh"

namespace {
constexpr int DIM = 64;
// Rows of a tile of keys. Both sizes take the same time per row; the one that wastes fewer rows per page is used. For
// the 1005 tokens of 518 x 378 pixels, nine tiles of 112 have 1008 rows; for the 1041 tokens of 518 x 392, eleven of 96
// have 1056.
constexpr uint32_t TILES[2] = {112, 96};
constexpr int CONSUMERS = 2, STAGES = 7;
constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP, QUERIES = CONSUMERS * 64;  // of a block
template <int TILE> constexpr uint32_t TILE_BYTES = TILE * DIM * 2;

// The size of every tile is a multiple of 1024 bytes, the period of the 128-byte swizzle.
template <typename T, int TILE> struct alignas(1024) Shared {
    T queries[QUERIES * DIM];
    T keys[STAGES][TILE * DIM];
    T values[STAGES][TILE * DIM];
    uint64_t query_full, key_full[STAGES], value_full[STAGES], key_free[STAGES], value_free[STAGES];
    uint64_t decided;  // barrier: `again` is written
    bool again;        // the consumers need all tiles once more
};

__device__ __forceinline__ void copy_queries(const CUtensorMap *map, void *to, uint64_t *full, int head, int query, int group) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)), "l"(map), "r"(shared_address(full)),
                 "r"(0), "r"(head), "r"(query), "r"(group)
                 : "memory");
}
__device__ __forceinline__ void copy_tile(const CUtensorMap *map, void *to, uint64_t *full, int head, int row, int value,
                                          int page) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(to)), "l"(map), "r"(shared_address(full)),
                 "r"(0), "r"(head), "r"(row), "r"(value), "r"(page)
                 : "memory");
}

// scores[64, tile] = or, with `add`, += queries[64, 16] keys[tile, 16]ᵀ, with both operands in shared memory.
#define WGMMA_SCORES(Element, type, tile, list, registers, a_at, b_at, add_at)                                            \
    __device__ __forceinline__ void wgmma_scores(Element, float (&d)[tile / 2], uint64_t a, uint64_t b, int add) {        \
        asm volatile("{ .reg .pred add; setp.ne.b32 add, " add_at ", 0;\n"                                               \
                     "wgmma.mma_async.sync.aligned.m64n" #tile "k16.f32." type "." type " {" list "}, " a_at ", " b_at   \
                     ", add, 1, 1, 0, 0; }"                                                                              \
                     : registers                                                                                         \
                     : "l"(a), "l"(b), "r"(add));                                                                        \
    }
#define WGMMA_SCORES_OF(Element, type)                                                \
    WGMMA_SCORES(Element, type, 96, LIST_96, REGISTERS_96, "%48", "%49", "%50")       \
    WGMMA_SCORES(Element, type, 112, LIST_112, REGISTERS_112, "%56", "%57", "%58")
WGMMA_SCORES_OF(__nv_bfloat16, "bf16")
WGMMA_SCORES_OF(__half, "f16")

// output[64, 64] += weights[64, 16] values[16, 64], with the weights in registers.
#define WGMMA_OUTPUT(type)                                                                                               \
    asm volatile("{ .reg .pred add; setp.ne.b32 add, 1, 0;\n"                                                            \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " "                                         \
                 "{" LIST_64 "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1; }"                                             \
                 : REGISTERS_64                                                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
__device__ __forceinline__ void wgmma_output(__nv_bfloat16, float (&d)[DIM / 2], const uint32_t *a, uint64_t b) {
    WGMMA_OUTPUT("bf16");
}
__device__ __forceinline__ void wgmma_output(__half, float (&d)[DIM / 2], const uint32_t *a, uint64_t b) {
    WGMMA_OUTPUT("f16");
}

// Whether `mine` is true for any consumer thread of the block.
__device__ __forceinline__ bool any_consumer(bool mine) {
    uint32_t any;
    asm volatile("{ .reg .pred mine, any; setp.ne.u32 mine, %1, 0;\n"
                 "barrier.cta.red.or.pred.aligned any, 1, %2, mine;\n"
                 "selp.u32 %0, 1, 0, any; }" : "=r"(any) : "r"((uint32_t)mine), "n"(CONSUMERS * WARPGROUP) : "memory");
    return any;
}

template <typename T, int TILE>
__device__ __forceinline__ void produce(Shared<T, TILE> &shared, KeyTiles<TILE> tiles, const CUtensorMap *frame_map,
                                        const CUtensorMap *special_map, uint32_t head, Ring<STAGES> &ring) {
    uint32_t page = ~0u, index = 0;
    for (; tiles.count; tiles.next()) {
        if (page != tiles.page) {
            page = tiles.page;
            index = tiles.index();
        }
        const CUtensorMap *map = tiles.in_frames() ? frame_map : special_map;
        const int stage = ring.stage;
        barrier_wait(&shared.key_free[stage], ring.phase ^ 1);
        barrier_expect(&shared.key_full[stage], TILE_BYTES<TILE>);
        copy_tile(map, shared.keys[stage], &shared.key_full[stage], head, tiles.row, 0, index);
        barrier_wait(&shared.value_free[stage], ring.phase ^ 1);
        barrier_expect(&shared.value_full[stage], TILE_BYTES<TILE>);
        copy_tile(map, shared.values[stage], &shared.value_full[stage], head, tiles.row, 1, index);
        ring.advance();
    }
}

// The state of a consumer thread. Layout of a wgmma accumulator: element 4 j + 2 i + c of a thread is column 8 j + 2
// (lane % 4) + c of the thread's row i; its two rows are eight apart. Packed in pairs, this is the layout of the first
// operand of the next wgmma.
template <typename T, int TILE> struct Consumer {
    // float16 weights can only grow to 2^15, so the reference is 2^4 above the first maximum. More headroom would lose
    // precision: weights below 2^-21 of that maximum underflow, and with 2^8, rows whose weight is spread over many
    // keys had errors of 7e-3.
    static constexpr float HEADROOM = __is_same(T, __half) ? 4.f : 0.f;

    Shared<T, TILE> &shared;
    const float scale_log2;
    const int lane;
    const uint64_t queries, first_tile;
    Ring<STAGES> ring;
    float scores[TILE / 2], output[DIM / 2], reference[2], sum[2];

    __device__ __forceinline__ Consumer(Shared<T, TILE> &shared, float scale_log2, int consumer)
        : shared(shared), scale_log2(scale_log2), lane(threadIdx.x % 32),
          queries(descriptor(&shared.queries[consumer * 64 * DIM])), first_tile(descriptor(shared.keys[0])) {}

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < DIM / 2; i++) output[i] = 0.f;
        sum[0] = sum[1] = reference[0] = reference[1] = 0.f;
    }
    __device__ __forceinline__ void release(uint64_t *barrier) {
        if (lane == 0) barrier_arrive(barrier);
    }
    __device__ __forceinline__ void start_scores(int stage) {
        const uint64_t keys = first_tile + (uint32_t)(stage * (TILE_BYTES<TILE> / 16));
        pin(scores);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) wgmma_scores(T(), scores, queries + 2 * i, keys + 2 * i, i > 0);
        wgmma_commit();
    }
    __device__ __forceinline__ void start_output(uint32_t (&weights)[TILE / 4], int stage) {
        const uint64_t values = first_tile + (uint32_t)((STAGES + stage) * (TILE_BYTES<TILE> / 16));
        pin(output);
        pin(weights);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < TILE / 16; i++) wgmma_output(T(), output, weights + 4 * i, values + 128 * i);
        wgmma_commit();
    }
    // Masks the columns before row 0 of a page.
    __device__ __forceinline__ void mask(int row) {
        if (row >= 0) return;
        const int missing = -row - lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                if (j * 8 + c < missing) scores[j * 4 + c] = scores[j * 4 + 2 + c] = -INFINITY;
    }
    // The largest score of each row, rounded up to an integer exponent of 2, so that a change of the reference is
    // exact.
    __device__ __forceinline__ void largest(float (&top)[2]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            top[i] = fmaxf(scores[i * 2], scores[i * 2 + 1]);
#pragma unroll
            for (int j = 1; j < TILE / 8; j++)
                top[i] = fmaxf(top[i], fmaxf(scores[j * 4 + i * 2], scores[j * 4 + i * 2 + 1]));
            top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 1));
            top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 2));
            top[i] = ceilf(top[i] * scale_log2) + HEADROOM;
        }
    }
    // Computes the softmax weights. Their sum is of the rounded weights that the wgmma uses, so rounding cancels in the
    // quotient. (The largest weight need not be 1, so it may be rounded, too.)
    __device__ __forceinline__ void weigh(uint32_t (&weights)[TILE / 4]) {
        float part[2][2] = {{0.f, 0.f}, {0.f, 0.f}};
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float &x = scores[j * 4 + i * 2 + c];
                    x = exp2_approximate(fmaf(x, scale_log2, -reference[i]));
                }
                weights[j * 2 + i] = pack(scores[j * 4 + i * 2], scores[j * 4 + i * 2 + 1], T());
                const float2 rounded = unpack(weights[j * 2 + i], T());
                part[i][0] += rounded.x;
                part[i][1] += rounded.y;
            }
#pragma unroll
        for (int i = 0; i < 2; i++) sum[i] += part[i][0] + part[i][1];
    }
    // The usual path. There are two sets of weights, because a running wgmma still reads one of them. By tile:
    //
    //     first call of step    starts scores 1, output 0    waits for scores 1            releases keys 1
    //     second                starts scores 2, output 1    waits for scores 2, output 0  releases keys 2, values 0
    //     third                 starts scores 3, output 2    waits for scores 3, output 1  releases keys 3, values 1
    //
    // Products end in the order in which they were started, and step waits for all but the last one.
    __device__ __forceinline__ void fast(KeyTiles<TILE> tiles) {
        uint32_t even[TILE / 4], odd[TILE / 4];
        barrier_wait(&shared.key_full[ring.stage], ring.phase);
        start_scores(ring.stage);
        wgmma_wait<0>();
        pin(scores);
        release(&shared.key_free[ring.stage]);
        mask(tiles.row);
        largest(reference);
        weigh(even);
        int before = -1;  // stage of the values of the output that was started last
        auto step = [&](uint32_t (&last)[TILE / 4], uint32_t (&next)[TILE / 4]) {
            const Ring<STAGES> now = ring;
            ring.advance();
            tiles.next();
            barrier_wait(&shared.key_full[ring.stage], ring.phase);
            start_scores(ring.stage);
            barrier_wait(&shared.value_full[now.stage], now.phase);
            start_output(last, now.stage);
            wgmma_wait<1>();
            pin(scores);
            pin(next);
            release(&shared.key_free[ring.stage]);
            if (before >= 0) release(&shared.value_free[before]);
            before = now.stage;
            mask(tiles.row);
            weigh(next);
        };
        auto finish = [&](uint32_t (&last)[TILE / 4]) {
            barrier_wait(&shared.value_full[ring.stage], ring.phase);
            start_output(last, ring.stage);
            wgmma_wait<0>();
            pin(output);
            if (before >= 0) release(&shared.value_free[before]);
            release(&shared.value_free[ring.stage]);
            ring.advance();
        };
        while (tiles.count > 2) {
            step(even, odd);
            step(odd, even);
        }
        if (tiles.count == 2) {
            step(even, odd);
            finish(odd);
        } else {
            finish(even);
        }
    }
    // Whether powers of two left the range of their type.
    __device__ __forceinline__ bool overflowed() const {
        bool lost = !(sum[0] < 0x1p100f && sum[1] < 0x1p100f);
#pragma unroll
        for (int i = 0; i < DIM / 2; i++) lost |= !(fabsf(output[i]) < INFINITY);
        return lost;
    }
    __device__ __forceinline__ void exact(KeyTiles<TILE> tiles) {
        uint32_t weights[TILE / 4];
        clear();
        reference[0] = reference[1] = -1e30f;
        for (; tiles.count; tiles.next()) {
            barrier_wait(&shared.key_full[ring.stage], ring.phase);
            start_scores(ring.stage);
            wgmma_wait<0>();
            pin(scores);
            release(&shared.key_free[ring.stage]);
            mask(tiles.row);
            float top[2], factor[2];
            largest(top);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                top[i] = fmaxf(top[i], reference[i]);
                factor[i] = exp2_approximate(reference[i] - top[i]);
                reference[i] = top[i];
                sum[i] *= factor[i];
            }
#pragma unroll
            for (int i = 0; i < DIM / 2; i++) output[i] *= factor[i / 2 % 2];
            weigh(weights);
            barrier_wait(&shared.value_full[ring.stage], ring.phase);
            start_output(weights, ring.stage);
            wgmma_wait<0>();
            pin(output);
            release(&shared.value_free[ring.stage]);
            ring.advance();
        }
    }
    __device__ __forceinline__ void store(const PagedAttention &a, const Share &share, uint32_t first_query) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float total = sum[i] + __shfl_xor_sync(~0u, sum[i], 1);
            total += __shfl_xor_sync(~0u, total, 2);
            const uint32_t query = first_query + i * 8 + lane / 4;
            if (query >= a.tokens) continue;
            const uint64_t row = share.row(a, query);
            if (share.splits == 1) {
                const float inverse = total > 0.f ? 1.f / total : 0.f;
                T *to = (T *)a.output + row * DIM + lane % 4 * 2;
#pragma unroll
                for (int j = 0; j < DIM / 8; j++)
                    *(uint32_t *)(to + j * 8) = pack(output[j * 4 + i * 2] * inverse, output[j * 4 + i * 2 + 1] * inverse, T());
            } else {
                const Parts parts(a);
                const uint64_t at = Parts::at(a, share, query);
                float *to = parts.output + at * DIM + lane % 4 * 2;
#pragma unroll
                for (int j = 0; j < DIM / 8; j++)
                    *(float2 *)(to + j * 8) = make_float2(output[j * 4 + i * 2], output[j * 4 + i * 2 + 1]);
                if (lane % 4 == 0) parts.states[at] = make_float2(reference[i], total);
            }
        }
    }
};

template <typename T, int TILE>
__global__ void __launch_bounds__(THREADS, 1)
attention_kernel(const __grid_constant__ CUtensorMap query_map, const __grid_constant__ CUtensorMap frame_map,
                 const __grid_constant__ CUtensorMap special_map, const __grid_constant__ PagedAttention a) {
    extern __shared__ __align__(1024) unsigned char raw[];
    Shared<T, TILE> &shared = *reinterpret_cast<Shared<T, TILE> *>(raw);
    const Share share(a, blockIdx.x);
    // The last block of a head may have no queries for its second consumer, which then does not use the tensor cores.
    const uint32_t busy = min((a.tokens - share.first_query + 63) / 64, (uint32_t)CONSUMERS);

    if (threadIdx.x == 0) {
        barrier_init(&shared.query_full, 1);
        barrier_init(&shared.decided, 1);
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(&shared.key_full[stage], 1);
            barrier_init(&shared.value_full[stage], 1);
            barrier_init(&shared.key_free[stage], busy * 4);  // one arrival per warp
            barrier_init(&shared.value_free[stage], busy * 4);
        }
        barrier_init_done();
    }
    __syncthreads();
    wait_for_kernel_before();
    const KeyTiles<TILE> tiles(a, share);

    // 384 threads start with 168 registers each. Consumers need more, the producer needs few.
    if (threadIdx.x < WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            barrier_expect(&shared.query_full, sizeof shared.queries);
            for (int i = 0; i < CONSUMERS; i++)
                copy_queries(&query_map, &shared.queries[i * 64 * DIM], &shared.query_full, share.head, share.first_query + i * 64,
                             share.group);
            Ring<STAGES> ring;
            produce(shared, tiles, &frame_map, &special_map, share.head, ring);
            barrier_wait(&shared.decided, 0);
            if (shared.again) produce(shared, tiles, &frame_map, &special_map, share.head, ring);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int consumer = threadIdx.x / WARPGROUP - 1, warp = threadIdx.x / 32 % 4;
        Consumer<T, TILE> state(shared, a.scale * LOG2E, consumer);
        state.clear();
        barrier_wait(&shared.query_full, 0);
        const bool mine = consumer < (int)busy;
        if (tiles.count && mine) state.fast(tiles);
        const bool again = any_consumer(state.overflowed());
        if (threadIdx.x == WARPGROUP) {
            shared.again = again;
            barrier_arrive(&shared.decided);
        }
        if (again && mine) state.exact(tiles);
        state.store(a, share, share.first_query + consumer * 64 + warp * 16);
    }
}

// Tensor map of 16-bit elements in boxes of [1, .., rows, 1 head, 64]. Strides are in elements and start with the
// heads.
bool encode(CUtensorMap *map, DType dtype, const void *data, int rank, const cuuint64_t *dims, const int64_t *strides,
            uint32_t rows) {
    const cuuint32_t box[5] = {DIM, 1, rows, 1, 1};
    return encode_tiled(map, dtype, data, rank, dims, strides, box);
}
bool encode_pool(CUtensorMap *map, const PagedAttention *a, const PagePool &pool, uint32_t tile) {
    const cuuint64_t dims[5] = {DIM, a->heads, a->page_size, 2, pool.pages};
    const int64_t strides[4] = {DIM, pool.row_stride, pool.value_offset, pool.page_stride};
    return encode(map, a->dtype, pool.keys, 5, dims, strides, tile);
}

uint32_t tile_for(const PagedAttention *a) {
    const auto padded = [a](uint32_t tile) { return ((uint64_t)a->page_size + tile - 1) / tile * tile; };
    return padded(TILES[1]) < padded(TILES[0]) ? TILES[1] : TILES[0];
}

template <typename T, int TILE> cudaError_t launch(const PagedAttention *a, cudaStream_t stream) {
    CUtensorMap query_map, frame_map, special_map;
    const cuuint64_t dims[4] = {DIM, a->heads, a->tokens, a->batch};
    const int64_t strides[3] = {DIM, a->query_stride, a->group_stride};
    if (!encode(&query_map, a->dtype, a->queries, 4, dims, strides, 64)) return cudaErrorInvalidValue;
    // One of the pools may be empty; its map is then never used.
    const PagePool &frames = a->frames.pages ? a->frames : a->special;
    const PagePool &special = a->special.pages ? a->special : a->frames;
    if (!encode_pool(&frame_map, a, frames, TILE) || !encode_pool(&special_map, a, special, TILE)) return cudaErrorInvalidValue;

    const int bytes = sizeof(Shared<T, TILE>);
    cudaError_t error = allow_shared_memory<attention_kernel<T, TILE>>(bytes);
    if (error != cudaSuccess) return error;
    const uint32_t blocks = grid_of(a, QUERIES);
    if (blocks == 0) return cudaErrorInvalidValue;
    error = launch_early(attention_kernel<T, TILE>, dim3(blocks), THREADS, bytes, stream, query_map, frame_map, special_map, *a);
    return error != cudaSuccess || a->splits == 1 ? error : periplus_paged_attention_merge(a, stream);
}
template <typename T> cudaError_t launch(const PagedAttention *a, cudaStream_t stream) {
    return tile_for(a) == TILES[0] ? launch<T, TILES[0]>(a, stream) : launch<T, TILES[1]>(a, stream);
}
} // namespace

extern "C" void periplus_paged_attention_hopper_plan(PagedAttention *a, uint32_t multiprocessors) {
    // A tile takes 0.8 us. Start and end of a block cost about as much as three tiles, launching the merge as six.
    plan(a, QUERIES, tiles_of(a, tile_for(a)), multiprocessors, 3, 6);
}

extern "C" cudaError_t periplus_paged_attention_hopper(const PagedAttention *a, cudaStream_t stream) {
    if (!tiled_encoder()) return cudaErrorNotSupported;
    if (a->head_dim != DIM || a->page_size == 0) return cudaErrorInvalidValue;
    if (a->batch == 0 || a->tokens == 0 || a->heads == 0) return cudaSuccess;
    switch (a->dtype) {
    case DTYPE_BF16: return launch<__nv_bfloat16>(a, stream);
    case DTYPE_F16: return launch<__half>(a, stream);
    default: return cudaErrorInvalidValue;
    }
}
