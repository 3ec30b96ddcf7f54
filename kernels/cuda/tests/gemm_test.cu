// Check of the gemm kernels with random inputs against a float64 reference on the GPU, and their benchmark. Outputs are
// filled with NaN before a run, and two runs must give the same bits.
#include "../gemm.h"
#include "device.h"
#include <deque>
#include <map>

struct Kernel {
    const char *name;
    cudaError_t (*run)(const Gemm *, cudaStream_t);
    int (*fits)(const Gemm *);
    bool timed = true;
};
static uint32_t multiprocessors;
static const Kernel kernels[] = {
    {"portable", periplus_gemm, [](const Gemm *) { return 1; }},
    {"hopper",
     [](const Gemm *p, cudaStream_t stream) {
         return periplus_gemm_hopper(p, periplus_gemm_hopper_plan(p, multiprocessors), stream);
     },
     periplus_gemm_hopper_fits},
    // Also the plans that would be chosen on other GPUs or for other sizes. A case always uses the same one.
    {"hopper, any plan",
     [](const Gemm *p, cudaStream_t stream) {
         const uint32_t sizes = p->frames * 7 + p->height * 5 + p->width * 3 + p->inputs / 8 + p->outputs;
         return periplus_gemm_hopper(p, sizes % GEMM_HOPPER_PLANS, stream);
     },
     periplus_gemm_hopper_fits, false},
};
static const char *type_names[] = {"f32", "f16", "bf16"};

struct Case {
    Gemm p{};  // sizes, types, activation, add
    bool bias = true, nan = false;
    float gain = 1.f;                                  // of the sums
    uint32_t x_from = 0, weight_from = 0, y_from = 0;  // elements past an alignment of 256 bytes
    uint64_t out(uint64_t in) const {
        const uint64_t padded = in + 2 * p.padding;
        return padded < p.kernel ? 0 : (padded - p.kernel) / p.stride + 1;
    }
    uint64_t rows() const { return p.frames * out(p.height) * out(p.width); }
    uint64_t terms() const { return (uint64_t)p.kernel * p.kernel * p.inputs; }
    uint64_t x_count() const { return (uint64_t)p.frames * p.height * p.width * p.inputs; }
    uint64_t weight_count() const { return p.outputs * terms(); }
    std::string text() const {
        char b[300];
        snprintf(b, sizeof b,
                 "%s -> %s %ux%ux%ux%u -> %u kernel %u stride %u padding %u activation %d%s%s%s from %u %u %u",
                 type_names[p.dtype], type_names[p.output], p.frames, p.height, p.width, p.inputs, p.outputs, p.kernel,
                 p.stride, p.padding, p.activation, p.add ? " add" : "", bias ? " bias" : "", nan ? " nan" : "", x_from,
                 weight_from, y_from);
        return b;
    }
};
static Case linear(DType dtype, uint32_t rows, uint32_t inputs, uint32_t outputs) {
    Case c;
    c.p = {nullptr, nullptr, nullptr, nullptr, 1, 1, rows, inputs, outputs, 1, 1, 0, dtype, dtype, ACTIVATION_IDENTITY, 0};
    return c;
}
static Case convolution(DType dtype, uint32_t height, uint32_t width, uint32_t inputs, uint32_t outputs,
                        uint32_t stride = 1) {
    Case c = linear(dtype, width, inputs, outputs);
    c.p.height = height;
    c.p.kernel = 3;
    c.p.padding = 1;
    c.p.stride = stride;
    return c;
}

template <typename F> static void with_type(DType dtype, F f) {
    if (dtype == DTYPE_F32)
        f(float());
    else if (dtype == DTYPE_F16)
        f(__half());
    else
        f(__nv_bfloat16());
}

template <typename T> __global__ void fill_kernel(T *to, uint64_t count, float gain, uint64_t seed) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        to[i] = from_float<T>(gain * noise((seed << 36) + i));
}
// Memory with noise, and with NaN around it: all bits set is a NaN in every dtype.
static char *filled(Device &d, DType dtype, uint64_t count, uint32_t from, float gain, uint64_t seed) {
    const uint64_t bytes = (count + from) * size_of(dtype) + 512;
    char *base = d.get(bytes);
    CHECK(cudaMemset(base, 0xFF, bytes));
    char *start = base + 256 + from * size_of(dtype);
    with_type(dtype, [&](auto zero) {
        using T = decltype(zero);
        if (count) fill_kernel<T><<<2048, 256>>>((T *)start, count, gain, seed);
    });
    CHECK(cudaGetLastError());
    return start;
}

// The expected value of an element of y, and the magnitude of the sums behind it, relative to which their rounding is
// measured: the value itself can be much smaller, when terms cancel or an activation removes them.
struct Wanted {
    double value, size;
};
// One warp per element of y. `y` has the old values.
template <typename T, typename Y>
__global__ void reference_kernel(Gemm p, uint64_t rows, uint64_t height, uint64_t width, const Y *y, Wanted *result) {
    const uint64_t warps = (uint64_t)gridDim.x * blockDim.x / 32;
    const int lane = threadIdx.x % 32;
    for (uint64_t i = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x) / 32; i < rows * p.outputs; i += warps) {
        const uint64_t row = i / p.outputs, output = i % p.outputs, frame = row / (width * height);
        double sum = 0, squares = 0;
        for (int down = 0; down < (int)p.kernel; down++)
            for (int right = 0; right < (int)p.kernel; right++) {
                const int64_t at_y = (int64_t)(row / width % height) * p.stride + down - p.padding;
                const int64_t at_x = (int64_t)(row % width) * p.stride + right - p.padding;
                if (at_y < 0 || at_y >= p.height || at_x < 0 || at_x >= p.width) continue;
                const T *x = (const T *)p.x + ((frame * p.height + at_y) * p.width + at_x) * p.inputs;
                const T *w = (const T *)p.weight + ((output * p.kernel + down) * p.kernel + right) * p.inputs;
                for (uint32_t k = lane; k < p.inputs; k += 32) {
                    const double term = to_double(x[k]) * to_double(w[k]);
                    sum += term;
                    squares += term * term;
                }
            }
        for (int other = 16; other; other /= 2) {
            sum += __shfl_xor_sync(~0u, sum, other);
            squares += __shfl_xor_sync(~0u, squares, other);
        }
        if (lane) continue;
        double size = sqrt(squares);  // magnitude of a sum of terms with random signs
        if (p.bias) sum += p.bias[output], size += fabs(p.bias[output]);
        if (p.activation == ACTIVATION_GELU) sum = sum * (1 + erf(sum / sqrt(2.))) / 2;
        if (p.activation == ACTIVATION_RELU && sum < 0) sum = 0;
        if (p.activation == ACTIVATION_SILU) sum = sum / (1 + exp(-sum));
        if (p.add) sum += to_double(y[i]), size += fabs(to_double(y[i]));
        if (p.output == DTYPE_F16 && fabs(sum) > 65504) sum = sum < 0 ? -65504 : 65504;
        result[i] = {sum, size};
    }
}
// Result: sums of the squares of differences, of values and of sizes, and the count of wrong elements. An element may
// be off by `rounding` times its value, or by `least` if it is subnormal, and by `summing` times its size: here by 20
// times the latter, because hundreds of millions of elements are compared.
template <typename Y> __global__ void compare_kernel(const Y *y, const Wanted *wanted, uint64_t count, double rounding,
                                                     double least, double summing, double *result) {
    double difference = 0, norm = 0, sizes = 0, bad = 0;
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x) {
        const double x = to_double(y[i]), w = wanted[i].value, size = wanted[i].size;
        if (isnan(w) || isnan(x)) {
            bad += isnan(w) != isnan(x);
            continue;
        }
        bad += !(fabs(x - w) <= fmax(1.001 * rounding * fabs(w), least) + 20 * summing * size);
        difference += (x - w) * (x - w);
        norm += w * w;
        sizes += size * size;
    }
    atomicAdd(result, difference);
    atomicAdd(result + 1, norm);
    atomicAdd(result + 2, sizes);
    atomicAdd(result + 3, bad);
}

__global__ void differ_kernel(const char *a, const char *b, uint64_t bytes, double *result) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < bytes; i += (uint64_t)gridDim.x * blockDim.x)
        if (a[i] != b[i]) *result = 1;
}

// The largest relative error of rounding to the output dtype: half a unit in the last place.
static double rounding(DType output) {
    return std::ldexp(1., output == DTYPE_F32 ? -24 : output == DTYPE_F16 ? -11 : -8);
}
// The error of float32 sums relative to their size. The float32 kernel adds sums of 32 terms. Tensor cores round
// towards zero, so errors grow with the number of steps of 16 terms.
static double summing(const Case &c) {
    return c.p.dtype == DTYPE_F32 ? 4e-7 : 4e-7 + c.terms() / 16 * std::ldexp(1., -25);
}

static int failures = 0;
struct Tally {
    int cases = 0;
    double worst = 0;
    double of_bound = 0;  // the largest error relative to its bound
};
static std::map<std::string, Tally> tallies;

struct Operands {
    Device device;
    Gemm p;
    char *y_before, *y_base;
    uint64_t y_bytes, y_count;
    static constexpr uint64_t GUARD = 4096;

    Operands(const Case &c, uint64_t seed) : p(c.p) {
        p.x = filled(device, p.dtype, c.x_count(), c.x_from, std::sqrt(c.gain), seed);
        p.weight = filled(device, p.dtype, c.weight_count(), c.weight_from,
                          std::sqrt(c.gain / std::max<uint64_t>(c.terms(), 1)), seed + 1);
        if (c.bias) p.bias = (const float *)filled(device, DTYPE_F32, p.outputs, 0, c.gain, seed + 2);
        if (c.nan && c.x_count())
            CHECK(cudaMemset((char *)p.x + mixed(seed) % c.x_count() * size_of(p.dtype), 0xFF, size_of(p.dtype)));
        y_count = c.rows() * p.outputs;
        y_bytes = y_count * size_of(p.output);
        const uint64_t from = GUARD + c.y_from * size_of(p.output), all = y_bytes + 2 * GUARD + 256;
        y_before = device.get(all);
        y_base = device.get(all);
        CHECK(cudaMemset(y_before, 0xFF, all));
        p.y = y_base + from;
        if (p.add && y_count)
            with_type(p.output, [&](auto zero) {
                using Y = decltype(zero);
                fill_kernel<Y><<<2048, 256>>>((Y *)(y_before + from), y_count, c.gain, seed + 3);
            });
        CHECK(cudaGetLastError());
    }
    static uint64_t mixed(uint64_t x) { return std::mt19937_64(x)(); }
    void reset() { CHECK(cudaMemcpy(y_base, y_before, y_bytes + 2 * GUARD + 256, cudaMemcpyDeviceToDevice)); }
    bool guards_kept() const {
        const uint64_t before = (char *)p.y - y_base, after = 2 * GUARD + 256 - before;
        std::vector<char> guards(before + after);
        CHECK(cudaMemcpy(guards.data(), y_base, before, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(guards.data() + before, (char *)p.y + y_bytes, after, cudaMemcpyDeviceToHost));
        return std::all_of(guards.begin(), guards.end(), [](char c) { return c == (char)0xFF; });
    }
};

static void check(const Case &c, std::mt19937_64 &random, const char *what) {
    Operands o(c, random() & 0xFFFFFF);
    Wanted *wanted = o.device.get<Wanted>(o.y_count);
    double *result = o.device.get<double>(4);
    char *first = o.device.get(o.y_bytes);
    o.reset();
    if (o.y_count)
        with_type(c.p.dtype, [&](auto x) {
            with_type(c.p.output, [&](auto y) {
                using X = decltype(x);
                using Y = decltype(y);
                reference_kernel<X, Y>
                    <<<4096, 256>>>(o.p, c.rows(), c.out(c.p.height), c.out(c.p.width), (const Y *)o.p.y, wanted);
            });
        });
    CHECK(cudaGetLastError());
    for (const Kernel &kernel : kernels) {
        if (!kernel.fits(&o.p)) continue;
        std::string why;
        o.reset();
        cudaError_t error = kernel.run(&o.p, 0);
        if (error) why += std::string(" launch: ") + cudaGetErrorString(error);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemset(result, 0, 32));
        const double relative = rounding(c.p.output), sums = summing(c);
        const double least = c.p.output == DTYPE_F16 ? std::ldexp(1., -25) : 0;
        with_type(c.p.output, [&](auto y) {
            using Y = decltype(y);
            compare_kernel<Y>
                <<<512, 256>>>((const Y *)o.p.y, wanted, o.y_count, relative, least, sums, result);
        });
        CHECK(cudaGetLastError());
        double h[4];
        CHECK(cudaMemcpy(h, result, 32, cudaMemcpyDeviceToHost));
        const double difference = std::sqrt(h[0]), norm = std::sqrt(h[1]), sizes = std::sqrt(h[2]);
        if (h[3] > 0) why += " wrong elements: " + std::to_string((uint64_t)h[3]) + " of " + std::to_string(o.y_count);
        // The RMS error of many rounded values is about 0.42 times the largest one.
        const double bound = relative * (o.y_count < 1000 ? 1 : .6) * norm + least * std::sqrt((double)o.y_count) + sums * sizes;
        if (!(difference <= bound)) why += " error";
        if (!o.guards_kept()) why += " wrote outside";
        CHECK(cudaMemcpy(first, o.p.y, o.y_bytes, cudaMemcpyDeviceToDevice));
        o.reset();
        kernel.run(&o.p, 0);
        CHECK(cudaMemset(result, 0, 8));
        differ_kernel<<<512, 256>>>((const char *)o.p.y, first, o.y_bytes, result);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(h, result, 8, cudaMemcpyDeviceToHost));
        if (h[0] > 0) why += " second run differs";
        Tally &t =
            tallies[std::string(kernel.name) + " " + type_names[c.p.dtype] + " -> " + type_names[c.p.output] + " " + what];
        t.cases++;
        if (norm > 0) t.worst = std::max(t.worst, difference / norm);
        if (bound > 0) t.of_bound = std::max(t.of_bound, difference / bound);
        if (!why.empty() && failures++ < 30)
            printf("FAIL %s [%s]:%s, error %.3g of %.3g\n", kernel.name, c.text().c_str(), why.c_str(), difference, bound);
        fflush(stdout);
    }
}

// Microseconds per launch, in a CUDA graph over operands that together are larger than the caches.
static void bench(const char *name, const Case &c, std::mt19937_64 &random) {
    const uint64_t bytes =
        (c.x_count() + c.weight_count()) * size_of(c.p.dtype) + c.rows() * c.p.outputs * size_of(c.p.output);
    const int sets = (int)std::min<uint64_t>(std::max<uint64_t>((256ull << 20) / bytes, 2), 24);
    std::deque<Operands> operands;
    for (int i = 0; i < sets; i++) operands.emplace_back(c, random() & 0xFFFFFF);
    CHECK(cudaDeviceSynchronize());
    cudaStream_t stream;
    cudaEvent_t begin, end;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (const Kernel &kernel : kernels) {
        if (!kernel.timed || !kernel.fits(&operands[0].p)) continue;
        const int launches = std::max(sets, 12);
        cudaGraph_t graph;
        cudaGraphExec_t replay;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < launches; i++) CHECK(kernel.run(&operands[i % sets].p, stream));
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&replay, graph, 0));
        CHECK(cudaGraphLaunch(replay, stream));
        std::vector<float> times;
        for (int i = 0; i < 9; i++) {
            float ms;
            CHECK(cudaEventRecord(begin, stream));
            CHECK(cudaGraphLaunch(replay, stream));
            CHECK(cudaEventRecord(end, stream));
            CHECK(cudaEventSynchronize(end));
            CHECK(cudaEventElapsedTime(&ms, begin, end));
            times.push_back(ms * 1e3f / launches);
        }
        std::sort(times.begin(), times.end());
        const double us = times[4], flops = 2. * c.rows() * c.p.outputs * c.terms();
        printf("%-34s %-8s %4s %9.2f us (%.2f .. %.2f) %7.1f TFLOP/s %7.1f GB/s\n", name, kernel.name,
               type_names[c.p.dtype], us, times[0], times[8], flops / us * 1e-6, bytes / us * 1e-3);
        fflush(stdout);
        CHECK(cudaGraphExecDestroy(replay));
        CHECK(cudaGraphDestroy(graph));
    }
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaStreamDestroy(stream));
}

struct Named {
    const char *name;
    Case c;
};
// Tokens of frames of 518 x 294, 518 x 392 and 518 x 518 pixels.
static const uint32_t other_sizes[] = {783, 1041, 1375};
// The gemms of a transformer block, for frames of `tokens` tokens.
static std::vector<Named> block(DType dtype, uint32_t tokens) {
    std::vector<Named> all = {
        {"queries, keys, values", linear(dtype, tokens, 1024, 3072)},
        {"attention out", linear(dtype, tokens, 1024, 1024)},
        {"MLP in", linear(dtype, tokens, 1024, 4096)},
        {"MLP out", linear(dtype, tokens, 4096, 1024)},
    };
    all[2].c.p.activation = ACTIVATION_GELU;
    for (int i : {1, 3}) all[i].c.p.output = DTYPE_F32, all[i].c.p.add = 1;
    return all;
}
// The sizes of the network at 518 x 378.
static std::vector<Named> network(DType dtype) {
    std::vector<Named> all = block(dtype, 1005);
    for (const Named &more : std::vector<Named>{
        {"patches", linear(dtype, 999, 588, 1024)},
        {"256 -> 256, 148 x 108", convolution(dtype, 108, 148, 256, 256)},
        {"512 -> 256, 74 x 54", convolution(dtype, 54, 74, 512, 256)},
        {"1024 -> 256, 37 x 27", convolution(dtype, 27, 37, 1024, 256)},
        {"1024 -> 256, 19 x 14", convolution(dtype, 14, 19, 1024, 256)},
        {"1024 -> 1024, 37 x 27, stride 2", convolution(dtype, 27, 37, 1024, 1024, 2)},
        {"256 -> 128, 296 x 216", convolution(dtype, 216, 296, 256, 128)},
        {"128 -> 32, 518 x 378", convolution(dtype, 378, 518, 128, 32)},
    })
        all.push_back(more);
    all[11].c.p.activation = ACTIVATION_RELU;
    return all;
}

static void random_cases(DType dtype, int count, std::mt19937_64 &random) {
    auto uniform = [&](uint32_t low, uint32_t high) { return low + (uint32_t)(random() % (high - low + 1)); };
    auto log_uniform = [&](double low, double high) {
        return (uint32_t)std::exp(std::log(low) + std::log((high + .99) / low) * (random() % 100001 / 100000.));
    };
    auto channels = [&](uint32_t most) {  // half of them multiples of 8
        const uint32_t any = log_uniform(1, most);
        return random() % 2 ? any : (any + 7) / 8 * 8;
    };
    for (int i = 0; i < count; i++) {
        const bool few = i % 5 == 0, is_linear = i % 5 <= 2;
        Case c = linear(dtype, few ? uniform(1, 9) : log_uniform(1, 1100), channels(4096), channels(4096));
        if (!is_linear) {
            c.p.frames = uniform(1, 3);
            c.p.height = log_uniform(1, 40);
            c.p.width = log_uniform(1, 60);
            c.p.inputs = channels(300);
            c.p.outputs = channels(300);
            c.p.kernel = random() % 8 ? 1 + 2 * uniform(0, 2) : uniform(1, 6);
            c.p.stride = random() % 2 ? 1 : uniform(1, 3);
            c.p.padding = uniform(0, 2);
        }
        if (random() % 2) c.p.output = DTYPE_F32;
        c.bias = random() % 4;
        c.nan = random() % 8 == 0;
        if (random() % 4 == 0)
            c.p.add = 1;
        else
            c.p.activation = (Activation)uniform(0, 3);
        if (random() % 6 == 0) c.gain = 1e5f;  // beyond the range of float16
        if (random() % 6 == 0) c.x_from = uniform(0, 9);
        if (random() % 6 == 0) c.weight_from = uniform(0, 9);
        if (random() % 6 == 0) c.y_from = uniform(0, 9);
        check(c, random, few ? "few rows" : is_linear ? "linear" : "convolution");
    }
}

int main(int argc, char **argv) {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    multiprocessors = device.multiProcessorCount;
    const std::string mode = argc > 1 ? argv[1] : "check";
    const uint64_t seed = argc > 2 ? atoll(argv[2]) : std::random_device{}();
    const int count = argc > 3 ? atoi(argv[3]) : 300;
    printf("%s seed %llu\n", device.name, (unsigned long long)seed);
    std::mt19937_64 random(seed);
    const DType dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    if (mode == "tiny")  // under compute-sanitizer
        for (DType dtype : dtypes)
            for (uint32_t inputs : {72, 20, 13}) {
                check(linear(dtype, 130, inputs, 70), random, "tiny");
                check(linear(dtype, 3, inputs, 21), random, "tiny");
                check(linear(dtype, 1, inputs, 5), random, "tiny");
                check(convolution(dtype, 9, 7, inputs, 24), random, "tiny");
                check(convolution(dtype, 9, 7, inputs, 129, 2), random, "tiny");
                check(convolution(dtype, 33, 300, inputs, 130), random, "tiny");
            }
    if (mode == "check")
        for (DType dtype : dtypes) {
            for (const Named &named : network(dtype)) check(named.c, random, "network");
            for (uint32_t tokens : other_sizes)
                for (const Named &named : block(dtype, tokens)) check(named.c, random, "network");
            check(linear(dtype, 0, 64, 64), random, "empty");
            check(linear(dtype, 20, 64, 0), random, "empty");
            check(linear(dtype, 20, 0, 64), random, "empty");
            check(linear(dtype, 2, 0, 64), random, "empty");
            // x and y of more than 2^32 bytes.
            check(linear(dtype, 70000, 16, 33000), random, "large");
            check(linear(dtype, 1100000, 2056, 8), random, "large");
            random_cases(dtype, count, random);
        }
    if (mode == "bench") {
        for (const Named &named : network(DTYPE_BF16)) bench(named.name, named.c, random);
        for (uint32_t tokens : other_sizes)
            for (const Named &named : block(DTYPE_BF16, tokens))
                bench((named.name + (", " + std::to_string(tokens))).c_str(), named.c, random);
        bench("MLP in", network(DTYPE_F16)[2].c, random);
        for (int i : {0, 3, 4, 5}) bench(network(DTYPE_F32)[i].name, network(DTYPE_F32)[i].c, random);
        for (uint32_t rows : {1, 2, 4, 8})
            for (auto [inputs, outputs] : {std::pair(2048, 6144), {2048, 8192}, {8192, 2048}}) {
                char name[60];
                snprintf(name, sizeof name, "few rows %u, %d -> %d", rows, inputs, outputs);
                bench(name, linear(DTYPE_F32, rows, inputs, outputs), random);
            }
        bench("few rows 6, 1024 -> 4096", linear(DTYPE_BF16, 6, 1024, 4096), random);
    } else {
        for (auto &t : tallies)
            printf("%-40s %5d cases, worst error %.2e, at most %.2f of its bound\n", t.first.c_str(), t.second.cases,
                   t.second.worst, t.second.of_bound);
        printf("failures %d\n", failures);
    }
    return failures ? 1 : 0;
}
