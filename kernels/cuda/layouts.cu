// Layouts of the argument structs, which a test compares with the Rust structs: the size of each, then its field
// offsets.
#include "operations.h"
#include "paged_attention.h"
#include "gemm.h"
#include <stddef.h>

namespace {
#define AT(type, field) offsetof(type, field)
const uint64_t layouts_of_all[] = {
    sizeof(PagePool), AT(PagePool, keys), AT(PagePool, value_offset), AT(PagePool, row_stride), AT(PagePool, page_stride),
    AT(PagePool, pages),

    sizeof(PagedAttention), AT(PagedAttention, queries), AT(PagedAttention, query_stride), AT(PagedAttention, group_stride),
    AT(PagedAttention, output), AT(PagedAttention, frames), AT(PagedAttention, special), AT(PagedAttention, table),
    AT(PagedAttention, frame_pages), AT(PagedAttention, special_pages), AT(PagedAttention, last_rows),
    AT(PagedAttention, batch), AT(PagedAttention, tokens), AT(PagedAttention, heads), AT(PagedAttention, head_dim),
    AT(PagedAttention, page_size), AT(PagedAttention, scale), AT(PagedAttention, dtype), AT(PagedAttention, block_queries),
    AT(PagedAttention, whole), AT(PagedAttention, splits), AT(PagedAttention, workspace),

    sizeof(Gemm), AT(Gemm, x), AT(Gemm, weight), AT(Gemm, bias), AT(Gemm, y), AT(Gemm, frames),
    AT(Gemm, height), AT(Gemm, width), AT(Gemm, inputs), AT(Gemm, outputs), AT(Gemm, kernel),
    AT(Gemm, stride), AT(Gemm, padding), AT(Gemm, dtype), AT(Gemm, output), AT(Gemm, activation),
    AT(Gemm, add),

    sizeof(NormRotate), AT(NormRotate, qkv), AT(NormRotate, norms), AT(NormRotate, cosines), AT(NormRotate, sines),
    AT(NormRotate, times), AT(NormRotate, time_pairs), AT(NormRotate, pairing), AT(NormRotate, keys),
    AT(NormRotate, value_offset), AT(NormRotate, tokens), AT(NormRotate, period), AT(NormRotate, heads),
    AT(NormRotate, head_dim), AT(NormRotate, eps), AT(NormRotate, dtype),

    sizeof(Bilinear), AT(Bilinear, y), AT(Bilinear, x), AT(Bilinear, frames), AT(Bilinear, height), AT(Bilinear, width),
    AT(Bilinear, x_height), AT(Bilinear, x_width), AT(Bilinear, channels), AT(Bilinear, dtype), AT(Bilinear, add)};
} // namespace

uint64_t periplus_layouts(uint64_t index) {
    return index < sizeof layouts_of_all / sizeof *layouts_of_all ? layouts_of_all[index] : ~0ull;
}
