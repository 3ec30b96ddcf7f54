// Interface of the attention kernels: softmax(q kᵀ · scale) v over pages of keys and values, which are read in place.
//
// A query sees a list of pages from two pools: first indices of the frame pool, then indices of the special pool. Every
// page of the list is full except the last one, which has `last_rows` valid rows. Rows past them are never read and may
// have any contents. Nothing else is masked.
#pragma once
#include "dtype.h"
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Pages of one layer. Strides are in elements, so this describes a pool [pages, 2, page_size, heads, head_dim] as well
// as the output [frames, tokens, 3, heads, head_dim] of a qkv gemm, with each frame as a page. Heads are `head_dim`
// apart.
typedef struct {
    const void *keys;      // head 0 of row 0 of page 0
    int64_t value_offset;  // from a key to its value
    int64_t row_stride;
    int64_t page_stride;
    uint32_t pages;        // all pages of the pool, listed or not
} PagePool;

// The arguments of a launch, for `batch` groups of queries. Group b sees the `frame_pages` pages of the list that
// follow those of group b - 1. With more than one group there are no special pages, and `last_rows` is the same for
// each group.
typedef struct {
    const void *queries;   // head 0 of query 0 of group 0
    int64_t query_stride;  // elements from a query to the next
    int64_t group_stride;  // elements from a group to the next
    void *output;          // [batch, tokens, heads, head_dim], packed
    PagePool frames, special;
    // In device memory: {frame_pages, special_pages, last_rows, page indices ..}. Kernels read the counts from here;
    // the three counts below then only size the launch. Null: pages 0, 1, 2, .. of the frame pool, with the counts
    // below.
    const uint32_t *table;
    uint32_t frame_pages, special_pages, last_rows;
    uint32_t batch, tokens, heads, head_dim, page_size;  // tokens: queries of a group
    float scale;
    DType dtype;    // of queries, keys, values and output; scores and sums are float32
    // The plan: how the work is split into thread blocks, each with `block_queries` queries of one head. The first
    // `whole` blocks process all their keys. The work of each of the others is split among `splits` blocks, each with a
    // part of the key list. One split needs no workspace.
    uint32_t block_queries, whole, splits;
    float *workspace;      // periplus_paged_attention_workspace() floats, 16-byte aligned
} PagedAttention;

// Set the plan to the fastest one on `multiprocessors`, for the portable and for the Hopper kernel.
void periplus_paged_attention_plan(PagedAttention *attention, uint32_t multiprocessors);
void periplus_paged_attention_hopper_plan(PagedAttention *attention, uint32_t multiprocessors);

// Floats of workspace that a plan needs.
uint64_t periplus_paged_attention_workspace(const PagedAttention *attention);

// Compute capability 8.0 and newer; head_dim 32 (float32 only), 64 or 128. Pointers and strides in bytes are multiples
// of 16. Returns cudaErrorInvalidValue for a shape that has no kernel.
cudaError_t periplus_paged_attention(const PagedAttention *attention, cudaStream_t stream);

// Compute capability 9.0 only; 16-bit dtypes, head_dim 64; otherwise as above.
cudaError_t periplus_paged_attention_hopper(const PagedAttention *attention, cudaStream_t stream);

// Merges the partial results in the workspace: the last step of both kernels if there is more than one split.
cudaError_t periplus_paged_attention_merge(const PagedAttention *attention, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
