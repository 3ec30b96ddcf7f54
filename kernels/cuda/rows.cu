// Copies of key and value rows to pages.
#include "early_launch.cuh"
#include "elements.cuh"
#include "operations.h"

namespace {
constexpr int THREADS = 256;

// `width` and `value_offset` are in units.
template <typename Unit>
__global__ void append_units(Unit *keys, int64_t value_offset, const Unit *qkv, uint64_t count, uint32_t width) {
    wait_for_kernel_before();
    for (uint64_t i = first_thread(); i < count; i += all_threads()) {
        const uint64_t token = i / (2 * width), within = i % (2 * width);
        const bool value = within >= width;
        keys[token * width + within + (value ? value_offset - (int64_t)width : 0)] = qkv[token * 3 * width + width + within];
    }
}
} // namespace

cudaError_t periplus_append_rows(void *keys, int64_t value_offset, const void *qkv, uint32_t size, uint32_t tokens, uint32_t width,
                        cudaStream_t stream) {
    const auto launch = [&](auto unit) {
        using Unit = decltype(unit);
        const uint32_t units = (uint64_t)width * size / sizeof(Unit);
        const uint64_t count = (uint64_t)tokens * 2 * units;
        if (count == 0) return cudaSuccess;
        return launch_early(append_units<Unit>, dim3(blocks_for(count, THREADS)), THREADS, 0, stream, (Unit *)keys,
                            value_offset * (int64_t)size / (int64_t)sizeof(Unit), (const Unit *)qkv, count, units);
    };
    const bool whole = (uint64_t)width * size % 16 == 0 && value_offset * (int64_t)size % 16 == 0;
    if (whole && aligned(keys) && aligned(qkv)) return launch(uint4());
    return size == 4 ? launch(uint32_t()) : size == 2 ? launch(uint16_t()) : cudaErrorInvalidValue;
}
