// How a list of pages is cut into tiles of rows, and what blocks write when the list is split among them.
#pragma once
#include "instructions.cuh"
#include "paged_attention.h"

// Blocks of `queries` queries, of all heads and groups.
__host__ __device__ inline uint32_t blocks_across(const PagedAttention &a, uint32_t queries) {
    return (a.tokens + queries - 1) / queries;
}
__host__ __device__ inline uint64_t blocks_of(const PagedAttention &a, uint32_t queries) {
    return (uint64_t)blocks_across(a, queries) * a.heads * a.batch;
}

// What a thread block works on: `queries` queries of a head from `first_query` on, and a part of the keys that they see.
struct Share {
    uint32_t first_query, head, group, split, splits;

    __device__ __forceinline__ Share(const PagedAttention &a, uint32_t queries) : split(0), splits(1) {
        const uint32_t across = blocks_across(a, queries), shared = across * a.heads * a.batch - a.whole;
        uint32_t block = blockIdx.x;
        if (block >= a.whole) {
            // Blocks that run at once read the same keys, so that most find them in the L2 cache.
            split = (block - a.whole) / shared;
            splits = a.splits;
            block = a.whole + (block - a.whole) % shared;
        }
        first_query = block % across * queries;
        head = block / across % a.heads;
        group = block / across / a.heads;
    }
};

// Tiles of TILE rows over the pages that a group of queries sees. Tiles end where their page ends, so the first tile of
// a page may begin before row 0. A copy then fills with zeros what is not there, whereas past the end of the last page
// there may be NaN, which a weight of zero would not cancel.
template <int TILE> struct KeyTiles {
    const PagedAttention &a;
    const uint32_t *numbers;
    uint32_t frame_pages, pages, last_rows, first_entry;
    uint32_t count;  // tiles left in this part
    // The tile at hand: page of the list, and its first row, negative by the rows that are not there.
    uint32_t page;
    int row;

    __device__ KeyTiles(const PagedAttention &a, const Share &share) : a(a) {
        frame_pages = a.table ? a.table[0] : a.frame_pages;
        pages = frame_pages + (a.table ? a.table[1] : a.special_pages);
        last_rows = a.table ? a.table[2] : a.last_rows;
        numbers = a.table ? a.table + 3 : nullptr;
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
    // Page number within its pool.
    __device__ uint32_t number() const { return numbers ? numbers[first_entry + page] : first_entry + page; }
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

// Where a block leaves the sums of its part: unnormalised output [splits, rows, head_dim], then for each
// [splits, rows] the reference its weights are relative to (as a power of two) and their sum. Rows are
// [batch, tokens, heads].
struct Parts {
    float *output;
    float2 *states;
    __host__ __device__ Parts(const PagedAttention &a)
        : output(a.workspace), states((float2 *)(a.workspace + a.splits * rows(a) * a.head_dim)) {}
    static __host__ __device__ uint64_t rows(const PagedAttention &a) { return (uint64_t)a.batch * a.tokens * a.heads; }
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

// Of the key list; the merge gives each lane of a warp two.
constexpr uint32_t MAX_SPLITS = 64;

// Cuts the work so that it ends first, for blocks of `tiles` tiles each, `slots` of them at once; `start` and `merge` are the
// costs of a block and of the merge's launch in units of a tile. Either all blocks are shared, or those alone that are left
// after rounds in which every slot has one. The latter must be 5 % cheaper by this count, since blocks do not really run in
// rounds; and it must do with little memory, since parts have room for all rows.
inline void plan(PagedAttention *a, uint32_t queries, uint64_t tiles, uint64_t slots, uint64_t start, uint64_t merge) {
    constexpr uint64_t PARTS = 47;               // that memory writes and reads in the time of a tile, on an H200
    constexpr uint64_t MOST_FLOATS = 16u << 20;  // of a workspace of which few rows are used
    const uint64_t blocks = blocks_of(*a, queries), full_rounds = blocks / slots;
    uint64_t least = ~0ull;
    for (uint64_t rounds : {(uint64_t)0, full_rounds})
        for (uint64_t splits = 1; splits <= MAX_SPLITS && (splits == 1 || splits <= tiles); ++splits) {
            if (rounds && splits * Parts::rows(*a) * (a->head_dim + 2) > MOST_FLOATS) break;
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
// Thread blocks of a launch; 0 for a plan that cannot be.
inline uint32_t grid_of(const PagedAttention *a, uint32_t queries) {
    const uint64_t blocks = blocks_of(*a, queries);
    if (a->splits == 0 || a->splits > MAX_SPLITS || a->whole > blocks) return 0;
    const uint64_t all = a->whole + (blocks - a->whole) * a->splits;
    return all < 1u << 31 ? (uint32_t)all : 0;
}
inline uint64_t tiles_of(const PagedAttention *a, uint64_t tile) {
    const uint64_t pages = (uint64_t)a->frame_pages + a->special_pages;
    return pages ? (pages - 1) * ((a->page_size + tile - 1) / tile) + (a->last_rows + tile - 1) / tile : 0;
}
