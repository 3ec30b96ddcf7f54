// Tiles of keys over a list of pages, the plan that splits the list among thread blocks, and the layout of partial
// results.
#pragma once
#include "instructions.cuh"
#include "paged_attention.h"

// Blocks of queries: within a head and group, and in all.
__host__ __device__ inline uint32_t blocks_across(const PagedAttention &a) {
    return (a.tokens + a.block_queries - 1) / a.block_queries;
}
__host__ __device__ inline uint64_t blocks_of(const PagedAttention &a) {
    return (uint64_t)blocks_across(a) * a.heads * a.batch;
}

// The work of thread block `block`: the queries of a head from `first_query` on, and a part of the keys that they see.
struct Share {
    uint32_t first_query, head, group, split, splits;
    uint64_t part_row;  // row of its first query in the partial results, see Parts

    __host__ __device__ __forceinline__ Share(const PagedAttention &a, uint32_t block) : split(0), splits(1), part_row(0) {
        const uint32_t across = blocks_across(a), shared_blocks = across * a.heads * a.batch - a.whole;
        if (block >= a.whole) {
            // Blocks that run at the same time read the same keys, so most reads hit the L2 cache.
            const uint32_t index = (block - a.whole) % shared_blocks;
            split = (block - a.whole) / shared_blocks;
            splits = a.splits;
            part_row = (uint64_t)index * a.block_queries;
            block = a.whole + index;
        }
        first_query = block % across * a.block_queries;
        head = block / across % a.heads;
        group = block / across / a.heads;
    }
    // Row of the output, which is [batch, tokens, heads].
    __host__ __device__ __forceinline__ uint64_t row(const PagedAttention &a, uint32_t query) const {
        return ((uint64_t)group * a.tokens + query) * a.heads + head;
    }
};

// Tiles of TILE rows over the pages that a group of queries sees. The last tile of a page ends where the page ends, so
// the first tile may begin before row 0, where copies write zeros. (Tiles that reached past the last row could read
// NaN, which a weight of 0 would not cancel.)
template <int TILE> struct KeyTiles {
    const PagedAttention &a;
    const uint32_t *indices;
    uint32_t frame_pages, pages, last_rows, first_entry;
    uint32_t count;  // tiles left in this part
    // The current tile: its page in the list, and its first row in the page, which may be negative.
    uint32_t page;
    int row;

    __device__ KeyTiles(const PagedAttention &a, const Share &share) : a(a) {
        frame_pages = a.table ? a.table[0] : a.frame_pages;
        pages = frame_pages + (a.table ? a.table[1] : a.special_pages);
        last_rows = a.table ? a.table[2] : a.last_rows;
        indices = a.table ? a.table + 3 : nullptr;
        first_entry = share.group * pages;
        const uint32_t per_page = tiles(a.page_size);
        const uint64_t all = pages ? (uint64_t)(pages - 1) * per_page + tiles(last_rows) : 0;
        const uint32_t begin = all * share.split / share.splits;
        count = (uint32_t)(all * (share.split + 1) / share.splits) - begin;
        page = begin / per_page;
        row = first_row() + begin % per_page * TILE;
    }
    static __device__ uint32_t tiles(uint32_t rows) { return (rows + TILE - 1) / TILE; }
    __device__ uint32_t rows() const { return page + 1 == pages ? last_rows : a.page_size; }
    __device__ int first_row() const { return (int)rows() - (int)(tiles(rows()) * TILE); }
    // Index of the page within its pool.
    __device__ uint32_t index() const { return indices ? indices[first_entry + page] : first_entry + page; }
    __device__ bool in_frames() const { return page < frame_pages; }
    __device__ void next() {
        --count;
        row += TILE;
        if (row == (int)rows()) {
            ++page;
            row = first_row();
        }
    }
};

// The workspace for partial results: unnormalised outputs [splits, rows, head_dim], then for each [splits, rows] the
// reference (log2) that softmax weights are relative to, and the sum of the weights. Rows are [split block, query of
// the block].
struct Parts {
    float *output;
    float2 *states;
    __host__ __device__ Parts(const PagedAttention &a)
        : output(a.workspace), states((float2 *)(a.workspace + a.splits * rows(a) * a.head_dim)) {}
    static __host__ __device__ uint64_t rows(const PagedAttention &a) { return (blocks_of(a) - a.whole) * a.block_queries; }
    static __host__ __device__ uint64_t at(const PagedAttention &a, const Share &share, uint32_t query) {
        return share.split * rows(a) + share.part_row + (query - share.first_query);
    }
};

constexpr float LOG2E = 1.4426950408889634f;

__device__ __forceinline__ uint32_t pack(float low, float high, __nv_bfloat16) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ uint32_t pack(float low, float high, __half) {
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ __forceinline__ float2 unpack(uint32_t both, __nv_bfloat16) {
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xFFFF0000u));
}
__device__ __forceinline__ float2 unpack(uint32_t both, __half) { return __half22float2(*(const __half2 *)&both); }

// Maximum splits of the key list; the merge handles two per lane of a warp.
constexpr uint32_t MAX_SPLITS = 64;

// Sets the fastest plan for blocks of `tiles` tiles each, of which `slots` run at the same time. `start` and `merge`
// are the costs of starting a block and of launching the merge, in units of a tile. Either all blocks are split, or
// only those that remain after full rounds of `slots` blocks. The latter must be 5 % cheaper by this estimate, because
// blocks do not really run in rounds.
inline void plan(PagedAttention *a, uint32_t queries, uint64_t tiles, uint64_t slots, uint64_t start, uint64_t merge) {
    constexpr uint64_t PARTS = 47;  // partial results written and read back in the time of a tile, on an H200
    a->block_queries = queries;
    const uint64_t blocks = blocks_of(*a), full_rounds = blocks / slots;
    uint64_t least = ~0ull;
    for (uint64_t rounds : {(uint64_t)0, full_rounds})
        for (uint64_t splits = 1; splits <= MAX_SPLITS && (splits == 1 || splits <= tiles); ++splits) {
            const uint64_t parts = (blocks - rounds * slots) * splits;
            uint64_t cost = rounds * (tiles + start) + (parts + slots - 1) / slots * ((tiles + splits - 1) / splits + start) +
                            (splits > 1 ? merge + parts / PARTS : 0);
            if (rounds) cost += cost / 20;
            if (cost < least) {
                least = cost;
                a->whole = (uint32_t)(rounds * slots);
                a->splits = (uint32_t)splits;
            }
        }
    if (a->splits == 1) a->whole = 0;
}
// Number of thread blocks of a launch, with `queries` queries each; 0 for an invalid plan.
inline uint32_t grid_of(const PagedAttention *a, uint32_t queries) {
    if (a->block_queries != queries || a->splits == 0 || a->splits > MAX_SPLITS) return 0;
    const uint64_t blocks = blocks_of(*a);
    if (a->whole && (a->splits == 1 || a->whole >= blocks)) return 0;
    const uint64_t all = a->whole + (blocks - a->whole) * a->splits;
    return all < 1u << 31 ? (uint32_t)all : 0;
}
inline uint64_t tiles_of(const PagedAttention *a, uint64_t tile) {
    const uint64_t pages = (uint64_t)a->frame_pages + a->special_pages;
    return pages ? (pages - 1) * ((a->page_size + tile - 1) / tile) + (a->last_rows + tile - 1) / tile : 0;
}
