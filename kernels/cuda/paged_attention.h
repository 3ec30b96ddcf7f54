// Interface of the attention kernels: softmax(q kᵀ · scale) v over pages of keys and values, in place.
//
// What a query sees is a list of pages, taken from two pools: page numbers of the frame pool first, then of the
// special pool. Every page of the list is full but the last one, of which `last_rows` rows count. What lies past them
// is never read, so it may be anything. Nothing else is masked.
#pragma once
#include "dtype.h"
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Pages of one layer. Strides are in elements, so that a pool [pages, 2, page_size, heads, head_dim] and a packed product
// [frames, tokens, 3, heads, head_dim], a frame as a page, are described alike. Heads follow each other at head_dim.
typedef struct {
    const void *keys;      // head 0 of row 0 of page 0
    int64_t value_offset;  // from a key to its value
    int64_t row_stride;
    int64_t page_stride;
    uint32_t pages;        // in the pool, listed or not
} PagePool;

// One launch. `batch` groups of queries may share it: group b sees the `frame_pages` pages of the list that follow those
// of group b - 1. With more than one group there are no special pages, and `last_rows` holds for each.
typedef struct {
    const void *queries;   // head 0 of query 0 of group 0
    int64_t query_stride;  // elements from a query to the next
    int64_t group_stride;  // elements from a group to the next
    void *output;          // [batch, tokens, heads, head_dim], packed
    PagePool frames, special;
    // Device memory: {frame_pages, special_pages, last_rows, page numbers ..}, which is what counts; the three numbers below
    // then only size the launch. Null: pages 0, 1, 2 .. of the frame pool, with the counts below.
    const uint32_t *table;
    uint32_t frame_pages, special_pages, last_rows;
    uint32_t batch, tokens, heads, head_dim, page_size;  // tokens: queries of a group
    float scale;
    DType dtype;    // of queries, keys, values and output; products and sums are float32
    // The plan: how the work is cut into thread blocks, each of `block_queries` queries of one head. The first `whole` of them
    // see all their keys; each of the others is shared by `splits` blocks, a part of the key list for each. 1 needs no workspace.
    uint32_t block_queries, whole, splits;
    float *workspace;      // periplus_paged_attention_workspace() floats, 16-byte aligned
} PagedAttention;

// Sets the plan to what fills `multiprocessors` best, for the kernel that the name says.
void periplus_paged_attention_plan(PagedAttention *attention, uint32_t multiprocessors);
void periplus_paged_attention_hopper_plan(PagedAttention *attention, uint32_t multiprocessors);

// Floats of workspace that a plan needs.
uint64_t periplus_paged_attention_workspace(const PagedAttention *attention);

// Compute capability 8.0 and up; head_dim 32 (float32 only), 64 or 128. Pointers and strides in bytes are multiples of 16.
// cudaErrorInvalidValue: a shape that has no kernel.
cudaError_t periplus_paged_attention(const PagedAttention *attention, cudaStream_t stream);

// Compute capability 9.0 only; 16 bits, head_dim 64; otherwise as above.
cudaError_t periplus_paged_attention_hopper(const PagedAttention *attention, cudaStream_t stream);

// Puts the parts in the workspace together: the last step of both when there is more than one.
cudaError_t periplus_paged_attention_merge(const PagedAttention *attention, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
