// How a list of pages is cut into tiles of rows, and what blocks write when the list is split among them.
#pragma once
#include "instructions.cuh"
#include "paged_attention.h"

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

    __device__ KeyTiles(const PagedAttention &a, uint32_t group, uint32_t split) : a(a) {
        frame_pages = a.table ? a.table[0] : a.frame_pages;
        pages = frame_pages + (a.table ? a.table[1] : a.special_pages);
        last_rows = a.table ? a.table[2] : a.last_rows;
        numbers = a.table ? a.table + 3 : nullptr;
        first_entry = group * pages;
        const uint32_t per_page = tiles(a.page_size);
        const uint64_t all = pages ? (uint64_t)(pages - 1) * per_page + tiles(last_rows) : 0;
        const uint32_t begin = all * split / a.splits;
        count = (uint32_t)(all * (split + 1) / a.splits) - begin;
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

// The number of parts that ends first, for `blocks` of `tiles` each, `slots` of them at once; `start` and `merge` are the
// costs of a block and of a merge in units of a tile.
inline uint32_t best_splits(uint64_t blocks, uint64_t tiles, uint64_t slots, uint64_t start, uint64_t merge) {
    uint64_t best = 1, least = ~0ull;
    for (uint64_t splits = 1; splits <= tiles && splits <= MAX_SPLITS; ++splits) {
        const uint64_t waves = (blocks * splits + slots - 1) / slots;
        const uint64_t cost = waves * ((tiles + splits - 1) / splits + start) + (splits > 1 ? merge : 0);
        if (cost < least) {
            least = cost;
            best = splits;
        }
    }
    return (uint32_t)best;
}
inline uint64_t tiles_of(const PagedAttention *a, uint64_t tile) {
    const uint64_t pages = (uint64_t)a->frame_pages + a->special_pages;
    return pages ? (pages - 1) * ((a->page_size + tile - 1) / tile) + (a->last_rows + tile - 1) / tile : 0;
}
