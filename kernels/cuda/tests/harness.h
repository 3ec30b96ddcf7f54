// Harness for checks of attention kernels: random inputs, and a float64 reference on the GPU. Outputs and unused rows
// are filled with NaN before a run.
#pragma once
#include "../paged_attention.h"
#include "device.h"
using Run = cudaError_t (*)(const PagedAttention *, cudaStream_t);
struct Case {
    DType dtype = DTYPE_BF16;
    uint32_t batch = 1, tokens = 1005, heads = 16, dim = 64, page_size = 999;
    uint32_t frames = 1, special = 0, last_rows = 1;
    bool contiguous = false;  // queries, keys and values are one qkv tensor; a frame is a page
    uint32_t splits = 0;      // 0: planned for `multiprocessors`
    uint32_t multiprocessors = 0;  // 0: those of the GPU
    uint32_t whole = 0;       // with `splits` given: thread blocks that are not split
    float spread = 1.f;       // factor of the scores
    float surge = 1.f;        // factor of the second half of the keys
    std::string text() const {
        char b[300];
        snprintf(b, sizeof b,
                 "type %d batch %u tokens %u heads %u dim %u page %u frames %u special %u last %u %s splits %u of %u whole %u spread "
                 "%.1f surge %.1f",
                 dtype, batch, tokens, heads, dim, page_size, frames, special, last_rows,
                 contiguous ? "contiguous" : "paged", splits, multiprocessors, whole, spread, surge);
        return b;
    }
    uint64_t keys() const {
        uint64_t p = frames + special;
        return p ? (p - 1) * page_size + last_rows : 0;
    }
};
struct Built {
    Device device;
    PagedAttention a{};
    std::vector<uint64_t> key_rows, value_rows;  // addresses, [batch][keys]
    std::vector<uint64_t> query_rows_;
    void *output_base;
    size_t output_bytes, guard;
};
template <typename T>
__global__ void fill_rows(const uint64_t *rows, uint64_t count, int width, float gain, float shift, uint64_t seed) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count * width;
         i += (uint64_t)gridDim.x * blockDim.x)
        ((T *)rows[i / width])[i % width] =
            from_float<T>(gain * noise(seed * 0x1000000000ull + i) + shift * noise(seed * 77777 + i % width));
}
template <typename T>
__global__ void reference_kernel(const uint64_t *query_rows, const uint64_t *key_rows, const uint64_t *value_rows,
                                 uint64_t keys, uint32_t tokens, uint32_t heads, int dim, float scale, double *out) {
    constexpr int CHUNK = 512;
    __shared__ double weight[CHUNK], q[128], red[128];
    uint32_t query = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
    uint64_t row = (uint64_t)batch * tokens + query;
    if (threadIdx.x < dim)
        q[threadIdx.x] = to_double(((const T *)query_rows[row])[head * dim + threadIdx.x]) * (double)scale;
    double top = -1e300, sum = 0, acc = 0;
    int d = threadIdx.x % dim, part = threadIdx.x / dim, parts = blockDim.x / dim;
    for (uint64_t start = 0; start < keys; start += CHUNK) {
        int n = keys - start < CHUNK ? keys - start : CHUNK;
        __syncthreads();
        double m = -1e300;
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            const T *k = (const T *)key_rows[batch * keys + start + i] + head * dim;
            double s = 0;
            for (int j = 0; j < dim; j++) s += q[j] * to_double(k[j]);
            weight[i] = s;
            m = fmax(m, s);
        }
        red[threadIdx.x] = m;
        __syncthreads();
        for (int i = 0; i < blockDim.x; i++) m = fmax(m, red[i]);
        m = fmax(m, top);
        double f = exp(top - m);
        top = m;
        sum *= f;
        acc *= f;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) weight[i] = exp(weight[i] - m);
        __syncthreads();
        for (int i = part; i < n; i += parts) {
            sum += weight[i];
            acc += weight[i] * to_double(((const T *)value_rows[batch * keys + start + i])[head * dim + d]);
        }
    }
    __syncthreads();
    __shared__ double accs[128], sums[128];
    accs[threadIdx.x] = acc;
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (part == 0) {
        for (int i = 1; i < parts; i++) {
            acc += accs[d + i * dim];
            sum += sums[d + i * dim];
        }
        out[(row * heads + head) * dim + d] = sum > 0 ? acc / sum : 0;
    }
}
// One thread per row of `dim` elements: the output of a query and a head. `result`: sums of the squares of differences
// and of the reference, the count of elements that are not finite, and the largest relative error of a row.
template <typename T>
__global__ void compare_kernel(const T *out, const double *ref, uint64_t rows, int dim, double *result) {
    double diff = 0, norm = 0, bad = 0, most = 0;
    for (uint64_t row = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; row < rows; row += (uint64_t)gridDim.x * blockDim.x) {
        double row_diff = 0, row_norm = 0;
        for (uint64_t i = row * dim; i < (row + 1) * dim; i++) {
            double x = to_double(out[i]), r = ref[i];
            if (isfinite(x))
                row_diff += (x - r) * (x - r);
            else
                bad += 1;
            row_norm += r * r;
        }
        diff += row_diff;
        norm += row_norm;
        most = fmax(most, sqrt(row_norm > 0 ? row_diff / row_norm : row_diff));
    }
    atomicAdd(result, diff);
    atomicAdd(result + 1, norm);
    atomicAdd(result + 2, bad);
    atomicMax((unsigned long long *)(result + 3), (unsigned long long)__double_as_longlong(most));
}
template <typename T>
void fill(Device &d, const std::vector<uint64_t> &rows, int width, float gain, float shift, uint64_t seed) {
    if (rows.empty()) return;
    uint64_t *p = d.copy(rows);
    fill_rows<T><<<2048, 256>>>(p, rows.size(), width, gain, shift, seed);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
}
inline void build(Built &b, const Case &c, std::mt19937_64 &random) {
    size_t e = size_of(c.dtype);
    uint64_t row = (uint64_t)c.heads * c.dim;
    PagedAttention &a = b.a;
    a.dtype = c.dtype;
    a.batch = c.batch;
    a.tokens = c.tokens;
    a.heads = c.heads;
    a.head_dim = c.dim;
    a.page_size = c.page_size;
    a.scale = 1.f / sqrtf((float)c.dim);
    a.frame_pages = c.frames;
    a.special_pages = c.special;
    a.last_rows = c.last_rows;
    uint64_t seed = random() & 0xFFFFFF;
    std::vector<uint64_t> query_rows;
    auto make = [&](auto zero) {
        using T = decltype(zero);
        if (c.contiguous) {
            // Frames have page_size tokens. There are `batch` groups of `frames` pages, or one group of queries over
            // all.
            uint64_t frames = (uint64_t)c.batch * c.frames, rows = frames * c.page_size;
            char *qkv = b.device.get(rows * 3 * row * e);
            CHECK(cudaMemset(qkv, 0xFF, rows * 3 * row * e));
            a.queries = qkv;
            a.query_stride = 3 * row;
            a.group_stride = 3 * row * c.page_size * c.frames;
            a.frames = {qkv + row * e, (int64_t)row, (int64_t)(3 * row), (int64_t)(3 * row * c.page_size),
                        (uint32_t)frames};
            for (uint32_t g = 0; g < c.batch; g++) {
                for (uint32_t t = 0; t < c.tokens; t++)
                    query_rows.push_back((uint64_t)qkv + (g * a.group_stride + t * 3 * row) * e);
                for (uint64_t k = 0; k < c.keys(); k++) {
                    uint64_t at = (uint64_t)qkv + (((uint64_t)g * c.frames * c.page_size + k) * 3 * row + row) * e;
                    b.key_rows.push_back(at);
                    b.value_rows.push_back(at + row * e);
                }
            }
        } else {
            char *qkv = b.device.get((uint64_t)c.batch * c.tokens * 3 * row * e);
            CHECK(cudaMemset(qkv, 0xFF, (uint64_t)c.batch * c.tokens * 3 * row * e));
            a.queries = qkv;
            a.query_stride = 3 * row;
            a.group_stride = 3 * row * c.tokens;
            for (uint32_t t = 0; t < c.batch * c.tokens; t++) query_rows.push_back((uint64_t)qkv + t * 3 * row * e);
            std::vector<uint32_t> table = {c.frames, c.special, c.last_rows};
            uint64_t page = 2 * c.page_size * row;
            auto pool = [&](uint32_t used, uint32_t spare) {
                uint32_t n = used + spare;
                char *p = b.device.get(n * page * e);
                CHECK(cudaMemset(p, 0xFF, n * page * e));  // all bits set is a NaN in every dtype
                std::vector<uint32_t> order(n);
                for (uint32_t i = 0; i < n; i++) order[i] = i;
                std::shuffle(order.begin(), order.end(), random);
                for (uint32_t i = 0; i < used; i++) {
                    table.push_back(order[i]);
                    bool last = table.size() - 3 == (size_t)c.batch * (c.frames + c.special);
                    for (uint32_t r = 0;
                         r < (last || (i + 1) % (c.frames + c.special) == 0 && c.batch > 1 ? c.last_rows : c.page_size);
                         r++) {
                        uint64_t at = (uint64_t)p + (order[i] * page + r * row) * e;
                        b.key_rows.push_back(at);
                        b.value_rows.push_back(at + page / 2 * e);
                    }
                }
                return PagePool{p, (int64_t)(page / 2), (int64_t)row, (int64_t)page, n};
            };
            a.frames = pool(c.frames * c.batch, 1);
            a.special = pool(c.special, 1);
            a.table = b.device.copy(table);
        }
        fill<T>(b.device, query_rows, row, c.spread, 0.f, seed);
        fill<T>(b.device, b.key_rows, row, 1.f, .2f, seed + 1);
        if (c.surge != 1.f)
            fill<T>(b.device, std::vector<uint64_t>(b.key_rows.begin() + b.key_rows.size() / 2, b.key_rows.end()), row,
                    c.surge, .2f, seed + 3);
        fill<T>(b.device, b.value_rows, row, 1.f, .5f, seed + 2);
    };
    if (c.dtype == DTYPE_F32)
        make(0.f);
    else if (c.dtype == DTYPE_F16)
        make(__half());
    else
        make(__nv_bfloat16());
    b.guard = 4096;
    b.output_bytes = (uint64_t)c.batch * c.tokens * row * e;
    b.output_base = b.device.get(b.output_bytes + 2 * b.guard);
    a.output = (char *)b.output_base + b.guard;
    b.key_rows.shrink_to_fit();
    b.device.owned.reserve(64);
    // The reference needs the rows of queries, too.
    b.query_rows_ = query_rows;
}
struct Verdict {
    double error = 0, most = 0;
    bool good = true;
    std::string why;
};
constexpr size_t WORKSPACE_GUARD = 4096;
inline void prepare(Built &b) {
    uint64_t floats = periplus_paged_attention_workspace(&b.a);
    b.a.workspace = floats ? b.device.get<float>(floats + WORKSPACE_GUARD / 4) : nullptr;
    if (floats) CHECK(cudaMemset(b.a.workspace, 0xFF, floats * 4 + WORKSPACE_GUARD));
}
// Whether the bytes past the workspace are unchanged.
inline bool workspace_kept(const Built &b) {
    if (!b.a.workspace) return true;
    std::vector<char> after(WORKSPACE_GUARD);
    CHECK(cudaMemcpy(after.data(), b.a.workspace + periplus_paged_attention_workspace(&b.a), after.size(), cudaMemcpyDeviceToHost));
    return std::all_of(after.begin(), after.end(), [](char byte) { return byte == (char)0xFF; });
}
// A running float32 sum of n terms has n rounding errors of half a unit in the last place, with random signs. Float32
// bounds are at most five times the worst error measured (contiguous 2.5e-7, surge 3e-6, others 0.3 of the bound).
inline double tolerance(const Case &c) {
    if (c.dtype != DTYPE_F32) return c.dtype == DTYPE_F16 ? 8e-4 : 5e-3;
    if (c.contiguous) return 1.2e-6;
    return c.surge != 1.f ? 1.4e-5 : 2e-6 + 6e-8 * std::sqrt((double)c.keys());
}
// Errors cancel less in one row than over all rows. Also, large scores make large errors of softmax weights, which
// matters most in float32, where there is no other large error.
inline double row_tolerance(const Case &c) { return (c.dtype == DTYPE_F32 ? 16 : 4) * tolerance(c); }
inline std::vector<char> bytes_of(const Built &b) {
    std::vector<char> v(b.output_bytes + 2 * b.guard);
    CHECK(cudaMemcpy(v.data(), b.output_base, v.size(), cudaMemcpyDeviceToHost));
    return v;
}
struct Reference {
    double *out;
    double *result;
    uint64_t n;
};
inline Reference reference(Built &b, const Case &c) {
    Reference r;
    r.n = (uint64_t)c.batch * c.tokens * c.heads * c.dim;
    r.out = b.device.get<double>(r.n);
    r.result = b.device.get<double>(4);
    const uint64_t *q = b.device.copy(b.query_rows_), *k = b.device.copy(b.key_rows), *v = b.device.copy(b.value_rows);
    dim3 grid(c.tokens, c.heads, c.batch);
    if (c.dtype == DTYPE_F32)
        reference_kernel<float><<<grid, 128>>>(q, k, v, c.keys(), c.tokens, c.heads, c.dim, b.a.scale, r.out);
    else if (c.dtype == DTYPE_F16)
        reference_kernel<__half><<<grid, 128>>>(q, k, v, c.keys(), c.tokens, c.heads, c.dim, b.a.scale, r.out);
    else
        reference_kernel<__nv_bfloat16><<<grid, 128>>>(q, k, v, c.keys(), c.tokens, c.heads, c.dim, b.a.scale, r.out);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    return r;
}
inline Verdict judge(Built &b, const Case &c, Run run, const Reference &ref) {
    Verdict v;
    CHECK(cudaMemset(b.output_base, 0xFF, b.output_bytes + 2 * b.guard));
    cudaError_t e = run(&b.a, 0);
    if (e) {
        v.good = false;
        v.why = std::string("launch: ") + cudaGetErrorString(e);
        return v;
    }
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemset(ref.result, 0, 32));
    if (c.dtype == DTYPE_F32)
        compare_kernel<float><<<256, 256>>>((float *)b.a.output, ref.out, ref.n / c.dim, c.dim, ref.result);
    else if (c.dtype == DTYPE_F16)
        compare_kernel<__half><<<256, 256>>>((__half *)b.a.output, ref.out, ref.n / c.dim, c.dim, ref.result);
    else
        compare_kernel<__nv_bfloat16><<<256, 256>>>((__nv_bfloat16 *)b.a.output, ref.out, ref.n / c.dim, c.dim, ref.result);
    double h[4];
    CHECK(cudaMemcpy(h, ref.result, 32, cudaMemcpyDeviceToHost));
    v.error = h[1] > 0 ? sqrt(h[0] / h[1]) : sqrt(h[0]);
    v.most = h[3];
    if (h[2] > 0) {
        v.good = false;
        v.why = std::to_string((long long)h[2]) + " elements of " + std::to_string(ref.n) + " are not finite";
    } else if (!(v.error <= tolerance(c))) {
        v.good = false;
        v.why = "error";
    } else if (!(v.most <= row_tolerance(c))) {
        v.good = false;
        v.why = "error of a row";
    }
    std::vector<char> first = bytes_of(b);
    for (size_t i = 0; i < b.guard; i++)
        if (first[i] != (char)0xFF || first[first.size() - 1 - i] != (char)0xFF) {
            v.good = false;
            v.why += " wrote outside";
            break;
        }
    if (!workspace_kept(b)) {
        v.good = false;
        v.why += " wrote past the workspace";
    }
    CHECK(cudaMemset(b.output_base, 0xFF, b.output_bytes + 2 * b.guard));
    if (b.a.splits > 1) CHECK(cudaMemset(b.a.workspace, 0x7F, periplus_paged_attention_workspace(&b.a) * 4));
    CHECK(run(&b.a, 0));
    CHECK(cudaDeviceSynchronize());
    if (bytes_of(b) != first) {
        v.good = false;
        v.why += " second run differs";
    }
    return v;
}
// Median milliseconds of a run; inputs take turns.
inline double time_ms(const std::vector<PagedAttention> &inputs, Run run, int repeats, double *spread = nullptr) {
    std::vector<cudaEvent_t> ev(repeats + 1);
    for (auto &e : ev) CHECK(cudaEventCreate(&e));
    for (int i = 0; i < 4; i++) {
        cudaError_t e = run(&inputs[i % inputs.size()], 0);
        if (e) {
            printf("launch failed: %s\n", cudaGetErrorString(e));
            return -1;
        }
    }
    for (int i = 0; i < repeats; i++) {
        CHECK(cudaEventRecord(ev[i]));
        run(&inputs[i % inputs.size()], 0);
    }
    CHECK(cudaEventRecord(ev[repeats]));
    CHECK(cudaDeviceSynchronize());
    std::vector<float> t(repeats);
    for (int i = 0; i < repeats; i++) CHECK(cudaEventElapsedTime(&t[i], ev[i], ev[i + 1]));
    for (auto &e : ev) cudaEventDestroy(e);
    std::sort(t.begin(), t.end());
    if (spread) *spread = t[repeats * 9 / 10] - t[repeats / 10];
    return t[repeats / 2];
}
