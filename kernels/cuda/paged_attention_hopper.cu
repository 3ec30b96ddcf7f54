// Paged attention for compute capability 9.0: products by wgmma, tiles of keys and values by bulk tensor copies.
//
// A block holds 128 queries of one head and streams the keys and values of that head past them. One warp of the first
// warpgroup starts the copies; the two others own 64 queries each (FlashAttention-3, Shah et al. 2024, names this
// warp specialisation). A consumer starts the scores of the next tile and the product of the last weights with their
// values together, and works out weights while the tensor cores, shared by both, run.
//
// Reference instead of a running maximum. exp2(s - m) / sum exp2(s - m) is the same for every m that keeps the powers
// within range, and float32 and bfloat16 reach 2^127. So m is the largest score of the *first* tile, and the loop over
// the others has no maximum, no shuffle and no rescaling, which at head width 64 cost as much as the exponentials. A
// block whose sums come out above 2^100, or not finite, does its work again with a running maximum: `exact`.
#include "early_launch.cuh"
#include "hopper.cuh"
#include "key_tiles.cuh"
#include "shared_memory.cuh"

namespace {
constexpr int DIM = 64;
// Rows of a tile of keys. There are two, which take the same time a row: that is chosen of which the last tile of a page has
// fewer to spare. Nine tiles of 112 make 1008, for the 1005 tokens of 518 x 378 pixels; eleven of 96 make 1056, for 1041.
constexpr uint32_t TILES[2] = {112, 96};
constexpr int CONSUMERS = 2, STAGES = 7;
constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP, QUERIES = CONSUMERS * 64;  // of a block
template <int TILE> constexpr uint32_t TILE_BYTES = TILE * DIM * 2;

// Every tile is a multiple of 1024 bytes, the period of the 128-byte swizzle.
template <typename T, int TILE> struct alignas(1024) Shared {
    T queries[QUERIES * DIM];
    T keys[STAGES][TILE * DIM];
    T values[STAGES][TILE * DIM];
    uint64_t query_full, key_full[STAGES], value_full[STAGES], key_free[STAGES], value_free[STAGES];
    uint64_t decided;  // `again` is written: the consumers want the tiles once more, or not
    bool again;
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

// scores[64, tile] (+)= queries[64, 16] keys[tile, 16]ᵀ, both in shared memory.
#define WGMMA_SCORES(Number, type, tile, list, registers, a_at, b_at, add_at)                                            \
    __device__ __forceinline__ void wgmma_scores(Number, float (&d)[tile / 2], uint64_t a, uint64_t b, int add) {        \
        asm volatile("{ .reg .pred add; setp.ne.b32 add, " add_at ", 0;\n"                                               \
                     "wgmma.mma_async.sync.aligned.m64n" #tile "k16.f32." type "." type " {" list "}, " a_at ", " b_at   \
                     ", add, 1, 1, 0, 0; }"                                                                              \
                     : registers                                                                                         \
                     : "l"(a), "l"(b), "r"(add));                                                                        \
    }
#define WGMMA_SCORES_OF(Number, type)                                                \
    WGMMA_SCORES(Number, type, 96, LIST_96, REGISTERS_96, "%48", "%49", "%50")       \
    WGMMA_SCORES(Number, type, 112, LIST_112, REGISTERS_112, "%56", "%57", "%58")
WGMMA_SCORES_OF(__nv_bfloat16, "bf16")
WGMMA_SCORES_OF(__half, "f16")

// output[64, 64] += weights[64, 16] values[16, 64], the weights in registers.
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

// True for all consumers of the block when it is for one of them.
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
    uint32_t page = ~0u, number = 0;
    for (; tiles.count; tiles.next()) {
        if (page != tiles.page) {
            page = tiles.page;
            number = tiles.number();
        }
        const CUtensorMap *map = tiles.in_frames() ? frame_map : special_map;
        const int stage = ring.stage;
        barrier_wait(&shared.key_free[stage], ring.phase ^ 1);
        barrier_expect(&shared.key_full[stage], TILE_BYTES<TILE>);
        copy_tile(map, shared.keys[stage], &shared.key_full[stage], head, tiles.row, 0, number);
        barrier_wait(&shared.value_free[stage], ring.phase ^ 1);
        barrier_expect(&shared.value_full[stage], TILE_BYTES<TILE>);
        copy_tile(map, shared.values[stage], &shared.value_full[stage], head, tiles.row, 1, number);
        ring.advance();
    }
}

// What a consumer thread holds. An accumulator of wgmma gives it, of every eight columns, two neighbouring ones in each
// of two rows, eight apart: element 4 j + 2 i + c is column 8 j + 2 (lane % 4) + c of row i. Packed in pairs, that is
// the layout of the first operand of the next product.
template <typename T, int TILE> struct Consumer {
    // float16 weights may grow to 2^15 only, so the reference lies above the first maximum. Not far: what is less than 2^-21 of
    // that maximum is lost below the range, and with a reference 2^8 above it, rows in which many keys share a little were off by
    // 7e-3.
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
    // Takes out the columns before row 0 of a page.
    __device__ __forceinline__ void mask(int row) {
        if (row >= 0) return;
        const int missing = -row - lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                if (j * 8 + c < missing) scores[j * 4 + c] = scores[j * 4 + 2 + c] = -INFINITY;
    }
    // Largest score of each row, rounded up in units of a power of two so that a change of reference is exact.
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
    // The sum is of the weights as rounded for the product: the largest of them need not be 1, which would be exact, and
    // so its rounding cancels in the quotient.
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
    // The common way. Two sets of weights: one is in use by the product that still runs. Of tile n
    //
    //     first call of step    starts scores 1, output 0    waits for scores 1            releases keys 1
    //     second                starts scores 2, output 1    waits for scores 2, output 0  releases keys 2, values 0
    //     third                 starts scores 3, output 2    waits for scores 3, output 1  releases keys 3, values 1
    //
    // since products end in the order in which they were started, and all but the one started last are waited for.
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
        int before = -1;  // stage of the values whose product was started last
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
    // True where the powers of two left the range of their types.
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
    // The last block of a head may have no queries for its last consumer, which then leaves the tensor cores to the others.
    const uint32_t busy = min((a.tokens - share.first_query + 63) / 64, (uint32_t)CONSUMERS);

    if (threadIdx.x == 0) {
        barrier_init(&shared.query_full, 1);
        barrier_init(&shared.decided, 1);
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(&shared.key_full[stage], 1);
            barrier_init(&shared.value_full[stage], 1);
            barrier_init(&shared.key_free[stage], busy * 4);  // a warp each
            barrier_init(&shared.value_free[stage], busy * 4);
        }
        barrier_init_done();
    }
    __syncthreads();
    wait_for_kernel_before();
    const KeyTiles<TILE> tiles(a, share);

    // 384 threads start with 168 registers each; consumers need more, the producer next to none.
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

// Tensor of 16-bit numbers in boxes of [1, .., rows, 1 head, 64]; strides in elements, from the heads on.
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
    // A list may do without one of the pools; its map is then never used.
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
    // A tile takes 0.8 us; a block's start and end about three of them, the merge's launch six.
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
