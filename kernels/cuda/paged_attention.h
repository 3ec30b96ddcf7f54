// Interface of the attention kernels: softmax(q kᵀ · scale) v over pages of keys and values, in place.
//
// What a query sees is a list of pages, taken from two pools: page numbers of the frame pool first, then of the
// special pool. Every page of the list is full but the last one, of which `last_rows` rows count; what lies past
// them is never read into a product, so it may be anything. Nothing else is masked.
#pragma once
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { ATTENTION_F32 = 0, ATTENTION_F16 = 1, ATTENTION_BF16 = 2 } AttentionType;

// Pages of one layer, [pages][rows][heads][head_dim] twice, keys and values. Strides are in elements, so that a pool
// ([pages, 2, page_size, heads, head_dim]) and a packed product ([frames, tokens, 3, heads, head_dim], a frame as a
// page) are the same thing. Heads follow each other at head_dim.
typedef struct {
    const void *keys;      // head 0 of row 0 of page 0
    int64_t value_offset;  // from a key to its value
    int64_t row_stride;
    int64_t page_stride;
    uint32_t pages;        // in the pool, whether listed or not
} PagePool;

// One launch. `batch` groups of queries may share it, group b seeing its own `frame_pages` pages, which follow those
// of group b - 1 in the list; with more than one group there are no special pages.
typedef struct {
    const void *queries;          // head 0 of query 0 of group 0
    int64_t query_stride;         // elements from a query to the next
    int64_t group_stride;         // elements from a group to the next
    void *output;                 // [batch, tokens, heads, head_dim], packed
    PagePool frames, special;
    // Device memory: {frame_pages, special_pages, last_rows, page numbers ..}. The counts come from here, so that a
    // captured graph follows a table that is rewritten between its launches; those below then only size the launch.
    // Null: pages 0, 1, 2 .. of the frame pool.
    const uint32_t *table;
    uint32_t frame_pages, special_pages, last_rows;
    uint32_t batch, tokens, heads, head_dim, page_size;  // tokens: queries of a group
    float scale;
    AttentionType type;           // of queries, keys, values and output; products and sums are float32
    uint32_t splits;              // parts of the key list, computed by separate blocks; 1: no workspace
    float *workspace;             // paged_attention_workspace() floats
} PagedAttention;

// How many parts of the key list fill `multiprocessors` best (portable kernels, and Hopper's).
uint32_t paged_attention_splits(const PagedAttention *attention, uint32_t multiprocessors);
uint32_t paged_attention_hopper_splits(const PagedAttention *attention, uint32_t multiprocessors);

// Floats of workspace that `attention->splits` parts need; 0 for one part.
uint64_t paged_attention_workspace(const PagedAttention *attention);

// Compute capability 8.0 and up. float32: head_dim 32, 64 or 128; 16 bits: 64 or 128.
// cudaErrorInvalidValue: a shape it has no kernel for.
cudaError_t paged_attention(const PagedAttention *attention, cudaStream_t stream);

// Compute capability 9.0 only (wgmma, bulk tensor copies). 16 bits, head_dim 64. Pointers and strides in bytes must be
// multiples of 16.
cudaError_t paged_attention_hopper(const PagedAttention *attention, cudaStream_t stream);

// Puts the parts in the workspace together; the kernels above call it.
cudaError_t paged_attention_merge(const PagedAttention *attention, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
