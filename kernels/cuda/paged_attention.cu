// Paged attention for compute capability 8.0 and newer: a kernel for 16-bit dtypes with tensor cores (mma.sync), a
// kernel for float32 with FMA instructions, and the merge of partial results.
//
// Both kernels keep a running maximum per query (FlashAttention-2, Dao 2023) and have two tiles of keys and values in
// shared memory: one is copied (cp.async) while the other is used.
#include "early_launch.cuh"
#include "key_tiles.cuh"
#include "elements.cuh"
#include "shared_memory.cuh"

namespace {
constexpr int THREADS = 128, WARPS = THREADS / 32;
// Less than every score, and finite, so that a difference of references is never inf - inf.
constexpr float LOWEST = -1e30f;

// 16-byte chunk `chunk` of row `row` of a tile. The distance of rows is a multiple of 128 bytes, so without the XOR the
// eight rows that one ldmatrix reads would be in the same banks.
template <typename T, int DIM> __device__ __forceinline__ T *chunk_of(T *tile, int row, int chunk) {
    return tile + row * DIM + (chunk ^ row % 8) * (16 / (int)sizeof(T));
}

// Starts the copy of a tile of keys and values of one head. Rows before the start of the page become zeros.
template <typename T, int DIM, int TILE>
__device__ __forceinline__ void copy_tile(T *keys, T *values, const PagedAttention &a, const KeyTiles<TILE> &tiles,
                                          uint32_t head) {
    constexpr int CHUNKS = DIM * sizeof(T) / 16;
    const PagePool &pool = tiles.in_frames() ? a.frames : a.special;
    const T *page = (const T *)pool.keys + tiles.index() * pool.page_stride + head * DIM;
    for (int i = threadIdx.x; i < TILE * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        const bool there = tiles.row + row >= 0;
        const T *from = page + (there ? (tiles.row + row) * pool.row_stride : 0) + chunk * (16 / sizeof(T));
        copy_16_bytes(chunk_of<T, DIM>(keys, row, chunk), from, there);
        copy_16_bytes(chunk_of<T, DIM>(values, row, chunk), from + pool.value_offset, there);
    }
}

template <typename T, int DIM, int TILE> struct Tiles {
    T keys[2][TILE * DIM], values[2][TILE * DIM];

    // Calls work(keys, values, first row) for every tile of the part, while the next tile is copied.
    template <typename Work>
    __device__ __forceinline__ void stream(const PagedAttention &a, KeyTiles<TILE> tiles, uint32_t head, Work work) {
        KeyTiles<TILE> ahead = tiles;
        if (ahead.count) copy_tile<T, DIM>(keys[0], values[0], a, ahead, head);
        copy_commit();
        for (int at = 0; tiles.count; at ^= 1, tiles.next()) {
            ahead.next();
            if (ahead.count) copy_tile<T, DIM>(keys[at ^ 1], values[at ^ 1], a, ahead, head);
            copy_commit();
            copy_wait<1>();
            __syncthreads();
            work(keys[at], values[at], tiles.row);
            __syncthreads();
        }
    }
};

// ---- 16-bit dtypes

constexpr int TILE_16 = 64, QUERIES_16 = WARPS * 16;

template <typename T, int DIM> struct Shared16 {
    T queries[QUERIES_16 * DIM];
    Tiles<T, DIM, TILE_16> tiles;
};

// A block has 64 queries of one head, a warp has 16 of them.
template <typename T, int DIM> __global__ void __launch_bounds__(THREADS) kernel_16(const __grid_constant__ PagedAttention a) {
    extern __shared__ __align__(128) unsigned char raw[];
    Shared16<T, DIM> &shared = *reinterpret_cast<Shared16<T, DIM> *>(raw);
    wait_for_kernel_before();
    const Share share(a, blockIdx.x);
    const uint32_t head = share.head, group = share.group, first_query = share.first_query;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    const T *queries = (const T *)a.queries + group * a.group_stride + head * DIM;
    for (int i = threadIdx.x; i < QUERIES_16 * DIM / 8; i += THREADS) {
        const int row = i / (DIM / 8), chunk = i % (DIM / 8);
        const bool there = first_query + row < a.tokens;
        const T *from = queries + (there ? (first_query + row) * a.query_stride : 0) + chunk * 8;
        copy_16_bytes(chunk_of<T, DIM>(shared.queries, row, chunk), from, there);
    }
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    uint32_t query[DIM / 16][4];
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
        load_matrices(query[k], chunk_of<T, DIM>(shared.queries, warp * 16 + lane % 16, k * 2 + lane / 16));

    const float scale_log2 = a.scale * LOG2E;
    float output[DIM / 8][4] = {}, reference[2] = {LOWEST, LOWEST}, sum[2] = {0.f, 0.f};
    shared.tiles.stream(a, KeyTiles<TILE_16>(a, share), head, [&](T *keys, T *values, int first_row) {
        float scores[TILE_16 / 8][4] = {};
#pragma unroll
        for (int k = 0; k < DIM / 16; k++)
#pragma unroll
            for (int n = 0; n < TILE_16 / 16; n++) {
                uint32_t b[4];
                load_matrices(b, chunk_of<T, DIM>(keys, n * 16 + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
                mma(scores[n * 2], query[k], b[0], b[1], T());
                mma(scores[n * 2 + 1], query[k], b[2], b[3], T());
            }
        if (first_row < 0) {
#pragma unroll
            for (int n = 0; n < TILE_16 / 8; n++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (n * 8 + lane % 4 * 2 + c < -first_row) scores[n][c] = scores[n][2 + c] = -INFINITY;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float top = -INFINITY;
#pragma unroll
            for (int n = 0; n < TILE_16 / 8; n++) top = fmaxf(top, fmaxf(scores[n][i * 2], scores[n][i * 2 + 1]));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            top = fmaxf(top * scale_log2, reference[i]);
            const float factor = exp2_approximate(reference[i] - top);
            reference[i] = top;
            sum[i] *= factor;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                output[n][i * 2] *= factor;
                output[n][i * 2 + 1] *= factor;
            }
#pragma unroll
            for (int n = 0; n < TILE_16 / 8; n++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float &x = scores[n][i * 2 + c];
                    x = exp2_approximate(fmaf(x, scale_log2, -top));
                    sum[i] += x;
                }
        }
#pragma unroll
        for (int k = 0; k < TILE_16 / 16; k++) {
            const float(&low)[4] = scores[2 * k], (&high)[4] = scores[2 * k + 1];
            const uint32_t weights[4] = {pack(low[0], low[1], T()), pack(low[2], low[3], T()), pack(high[0], high[1], T()),
                                         pack(high[2], high[3], T())};
#pragma unroll
            for (int n = 0; n < DIM / 16; n++) {
                uint32_t b[4];
                load_transposed(b, chunk_of<T, DIM>(values, k * 16 + lane % 16, n * 2 + lane / 16));
                mma(output[n * 2], weights, b[0], b[1], T());
                mma(output[n * 2 + 1], weights, b[2], b[3], T());
            }
        }
    });

#pragma unroll
    for (int i = 0; i < 2; i++) {
        float total = sum[i] + __shfl_xor_sync(~0u, sum[i], 1);
        total += __shfl_xor_sync(~0u, total, 2);
        const uint32_t at_query = first_query + warp * 16 + i * 8 + lane / 4;
        if (at_query >= a.tokens) continue;
        const uint64_t row = share.row(a, at_query);
        if (share.splits == 1) {
            const float inverse = total > 0.f ? 1.f / total : 0.f;
            T *to = (T *)a.output + row * DIM + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
                *(uint32_t *)(to + n * 8) = pack(output[n][i * 2] * inverse, output[n][i * 2 + 1] * inverse, T());
        } else {
            const Parts parts(a);
            const uint64_t at = Parts::at(a, share, at_query);
            float *to = parts.output + at * DIM + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) *(float2 *)(to + n * 8) = make_float2(output[n][i * 2], output[n][i * 2 + 1]);
            if (lane % 4 == 0) parts.states[at] = make_float2(reference[i], total);
        }
    }
}

// ---- float32

constexpr int TILE_32 = 32;

// A warp has QUERIES queries and processes four keys at a time, with eight lanes per key. Each of the eight lanes
// computes a part of the dot products, from every eighth 16-byte chunk of a row. Each group of eight keeps sums for its
// keys, which are combined at the end.
template <int DIM, int QUERIES> __global__ void __launch_bounds__(THREADS) kernel_32(const __grid_constant__ PagedAttention a) {
    extern __shared__ __align__(128) unsigned char raw[];
    Tiles<float, DIM, TILE_32> &shared = *reinterpret_cast<Tiles<float, DIM, TILE_32> *>(raw);
    constexpr int CHUNKS = DIM / 32, STEPS = TILE_32 / 4;
    wait_for_kernel_before();
    const Share share(a, blockIdx.x);
    const uint32_t head = share.head, group = share.group;
    const int part = threadIdx.x % 8, slot = threadIdx.x / 8 % 4;
    const uint32_t first_query = share.first_query + threadIdx.x / 32 * QUERIES;

    const float scale_log2 = a.scale * LOG2E;
    float4 query[QUERIES][CHUNKS], output[QUERIES][CHUNKS];
    float reference[QUERIES], sum[QUERIES];
#pragma unroll
    for (int q = 0; q < QUERIES; q++) {
        // Past the last query, a warp computes the last one again and does not store it.
        const uint32_t at = min(first_query + q, a.tokens - 1);
        const float *from = (const float *)a.queries + group * a.group_stride + at * a.query_stride + head * DIM;
        reference[q] = LOWEST;
        sum[q] = 0.f;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            query[q][c] = *(const float4 *)(from + (c * 8 + part) * 4);
            output[q][c] = make_float4(0.f, 0.f, 0.f, 0.f);
        }
    }
    shared.stream(a, KeyTiles<TILE_32>(a, share), head, [&](float *keys, float *values, int first_row) {
        if (first_query >= a.tokens) return;
        float scores[QUERIES][STEPS];
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            const int row = step * 4 + slot;
            float dots[QUERIES] = {};
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const float4 key = *(const float4 *)chunk_of<float, DIM>(keys, row, c * 8 + part);
#pragma unroll
                for (int q = 0; q < QUERIES; q++) {
                    const float4 x = query[q][c];
                    dots[q] = fmaf(x.x, key.x, fmaf(x.y, key.y, fmaf(x.z, key.z, fmaf(x.w, key.w, dots[q]))));
                }
            }
#pragma unroll
            for (int q = 0; q < QUERIES; q++) {
                float dot = dots[q];
#pragma unroll
                for (int lanes = 1; lanes < 8; lanes *= 2) dot += __shfl_xor_sync(~0u, dot, lanes);
                scores[q][step] = row < -first_row ? -INFINITY : dot * scale_log2;
            }
        }
#pragma unroll
        for (int q = 0; q < QUERIES; q++) {
            float top = reference[q];
#pragma unroll
            for (int step = 0; step < STEPS; step++) top = fmaxf(top, scores[q][step]);
            const float factor = exp2f(reference[q] - top);
            reference[q] = top;
            sum[q] *= factor;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                float4 &y = output[q][c];
                y = make_float4(y.x * factor, y.y * factor, y.z * factor, y.w * factor);
            }
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                scores[q][step] = exp2f(scores[q][step] - top);
                sum[q] += scores[q][step];
            }
        }
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const float4 value = *(const float4 *)chunk_of<float, DIM>(values, step * 4 + slot, c * 8 + part);
#pragma unroll
                for (int q = 0; q < QUERIES; q++) {
                    float4 &y = output[q][c];
                    const float w = scores[q][step];
                    y = make_float4(fmaf(w, value.x, y.x), fmaf(w, value.y, y.y), fmaf(w, value.z, y.z),
                                    fmaf(w, value.w, y.w));
                }
            }
    });

#pragma unroll
    for (int q = 0; q < QUERIES; q++) {
        float top = reference[q];
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 8));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 16));
        const float factor = exp2f(reference[q] - top);
        auto total = [&](float x) {
            x *= factor;
            x += __shfl_xor_sync(~0u, x, 8);
            return x + __shfl_xor_sync(~0u, x, 16);
        };
        const float weight = total(sum[q]);
        float4 y[CHUNKS];
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const float4 own = output[q][c];
            y[c] = make_float4(total(own.x), total(own.y), total(own.z), total(own.w));
        }
        if (slot != 0 || first_query + q >= a.tokens) continue;
        const uint64_t row = share.row(a, first_query + q), at = Parts::at(a, share, first_query + q);
        const Parts parts(a);
        const float inverse = share.splits > 1 ? 1.f : weight > 0.f ? 1.f / weight : 0.f;
        float *to = share.splits > 1 ? parts.output + at * DIM : (float *)a.output + row * DIM;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            *(float4 *)(to + (c * 8 + part) * 4) =
                make_float4(y[c].x * inverse, y[c].y * inverse, y[c].z * inverse, y[c].w * inverse);
        if (share.splits > 1 && part == 0) parts.states[at] = make_float2(top, weight);
    }
}

// ---- merge

// One warp per row of the partial results; each lane has up to two parts. A part without keys has the sum 0 and is
// ignored.
template <typename T>
__global__ void __launch_bounds__(THREADS) merge_kernel(const __grid_constant__ PagedAttention a) {
    wait_for_kernel_before();
    const uint64_t rows = Parts::rows(a), part_row = blockIdx.x * (uint64_t)WARPS + threadIdx.x / 32;
    if (part_row >= rows) return;
    const Share first(a, a.whole + (uint32_t)(part_row / a.block_queries));  // the first block with these queries
    const uint32_t query = first.first_query + (uint32_t)(part_row % a.block_queries);
    if (query >= a.tokens) return;
    const Parts parts(a);
    const uint32_t lane = threadIdx.x % 32;
    float2 state[2];
    float top = LOWEST, sum = 0.f, share[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t split = lane + 32 * i;
        state[i] = split < a.splits ? parts.states[split * rows + part_row] : make_float2(LOWEST, 0.f);
        if (state[i].y > 0.f) top = fmaxf(top, state[i].x);
    }
    for (int lanes = 1; lanes < 32; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        share[i] = state[i].y > 0.f ? exp2f(state[i].x - top) : 0.f;
        sum += state[i].y * share[i];
    }
    for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
    const float inverse = sum > 0.f ? 1.f / sum : 0.f;
    for (uint32_t d = lane; d < a.head_dim; d += 32) {
        float x = 0.f;
#pragma unroll 8
        for (uint32_t split = 0; split < a.splits; split++) {
            const float weight = __shfl_sync(~0u, split < 32 ? share[0] : share[1], split % 32);
            x = fmaf(parts.output[(split * rows + part_row) * a.head_dim + d], weight, x);
        }
        ((T *)a.output)[first.row(a, query) * a.head_dim + d] = from_float<T>(x * inverse);
    }
}

template <auto kernel>
cudaError_t launch(size_t bytes, uint32_t queries, const PagedAttention *a, cudaStream_t stream) {
    cudaError_t error = allow_shared_memory<kernel>(bytes);
    if (error != cudaSuccess) return error;
    const uint32_t blocks = grid_of(a, queries);
    if (blocks == 0) return cudaErrorInvalidValue;
    error = launch_early(kernel, dim3(blocks), THREADS, bytes, stream, *a);
    return error != cudaSuccess || a->splits == 1 ? error : periplus_paged_attention_merge(a, stream);
}
template <typename T, int DIM> cudaError_t launch_16(const PagedAttention *a, cudaStream_t stream) {
    return launch<kernel_16<T, DIM>>(sizeof(Shared16<T, DIM>), QUERIES_16, a, stream);
}
template <typename T> cudaError_t launch_16(const PagedAttention *a, cudaStream_t stream) {
    switch (a->head_dim) {
    case 64: return launch_16<T, 64>(a, stream);
    case 128: return launch_16<T, 128>(a, stream);
    default: return cudaErrorInvalidValue;
    }
}
// The queries of a warp share its reads of shared memory. With few queries (camera head), one per warp uses more warps.
uint32_t queries_per_warp_32(const PagedAttention *a) { return a->tokens > WARPS ? 4 : 1; }
template <int DIM> cudaError_t launch_32(const PagedAttention *a, cudaStream_t stream) {
    const size_t bytes = sizeof(Tiles<float, DIM, TILE_32>);
    return queries_per_warp_32(a) == 4 ? launch<kernel_32<DIM, 4>>(bytes, WARPS * 4, a, stream)
                                     : launch<kernel_32<DIM, 1>>(bytes, WARPS, a, stream);
}
} // namespace

extern "C" void periplus_paged_attention_plan(PagedAttention *a, uint32_t multiprocessors) {
    const bool wide = a->dtype == DTYPE_F32;
    const uint32_t queries = wide ? WARPS * queries_per_warp_32(a) : QUERIES_16;
    // Two blocks run on a multiprocessor. Starting a block costs about as much as two tiles, launching the merge as
    // eight.
    plan(a, queries, tiles_of(a, wide ? TILE_32 : TILE_16), 2 * (uint64_t)multiprocessors, 2, 8);
}

extern "C" uint64_t periplus_paged_attention_workspace(const PagedAttention *a) {
    return a->splits > 1 ? a->splits * Parts::rows(*a) * (a->head_dim + 2) : 0;
}

extern "C" cudaError_t periplus_paged_attention_merge(const PagedAttention *a, cudaStream_t stream) {
    const dim3 blocks((uint32_t)((Parts::rows(*a) + WARPS - 1) / WARPS));
    return with_dtype(a->dtype, [&](auto zero) {
        return launch_early(merge_kernel<decltype(zero)>, blocks, THREADS, 0, stream, *a);
    });
}

extern "C" cudaError_t periplus_paged_attention(const PagedAttention *a, cudaStream_t stream) {
    if (a->page_size == 0) return cudaErrorInvalidValue;
    if (a->batch == 0 || a->tokens == 0 || a->heads == 0) return cudaSuccess;
    switch (a->dtype) {
    case DTYPE_BF16: return launch_16<__nv_bfloat16>(a, stream);
    case DTYPE_F16: return launch_16<__half>(a, stream);
    case DTYPE_F32: break;
    default: return cudaErrorInvalidValue;
    }
    switch (a->head_dim) {
    case 32: return launch_32<32>(a, stream);
    case 64: return launch_32<64>(a, stream);
    case 128: return launch_32<128>(a, stream);
    default: return cudaErrorInvalidValue;
    }
}
