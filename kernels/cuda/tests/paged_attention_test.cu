// Check of the attention kernels with random cases against float64, and their benchmark.
#include "harness.h"
#include <map>
static int failures = 0;
struct Tally {
    int n = 0;
    double worst = 0, sum = 0, most = 0;
    double of_bound = 0;  // the largest error relative to its bound
};
static std::map<std::string, Tally> tallies;
static int sms;
struct Kernel {
    const char *name;
    Run run;
    void (*plan)(PagedAttention *, uint32_t);
};
static Kernel hopper = {"hopper", periplus_paged_attention_hopper, periplus_paged_attention_hopper_plan},
              portable = {"portable", periplus_paged_attention, periplus_paged_attention_plan};
static const char *names[] = {"f32", "f16", "bf16"};
void check(const Case &c, const Kernel &k, std::mt19937_64 &random, const char *what) {
    Built b;
    build(b, c, random);
    if (b.a.table && random() % 2) b.a.frame_pages += random() % 3;  // kernels must use the counts in the table
    k.plan(&b.a, c.multiprocessors ? c.multiprocessors : sms);
    if (c.splits) b.a.whole = c.whole, b.a.splits = c.splits;
    prepare(b);
    Reference r = reference(b, c);
    Verdict v = judge(b, c, k.run, r);
    Tally &t = tallies[std::string(k.name) + " " + names[c.dtype] + " " + std::to_string(c.dim) + " " + what];
    t.n++;
    t.worst = std::max(t.worst, v.error);
    t.sum += v.error;
    t.most = std::max(t.most, v.most);
    t.of_bound = std::max({t.of_bound, v.error / tolerance(c), v.most / row_tolerance(c)});
    if (!v.good) {
        failures++;
        if (failures < 30)
            printf("FAIL %s [%s] whole %u splits %u: %s, error %.3g, of a row %.3g\n", k.name, c.text().c_str(), b.a.whole, b.a.splits,
                   v.why.c_str(), v.error, v.most);
        fflush(stdout);
    }
}
struct Pick {
    DType dtype;
    uint32_t dim;
    Kernel *k;
};
void bench(const char *name, Case c, const Kernel &k, int sets, std::mt19937_64 &random,
           std::vector<uint32_t> splits = {0}) {
    std::vector<Built> built(sets);
    for (auto &b : built) build(b, c, random);
    for (uint32_t s : splits) {
        std::vector<PagedAttention> in;
        for (auto &b : built) {
            k.plan(&b.a, sms);
            if (s) b.a.whole = 0, b.a.splits = s;
            prepare(b);
            in.push_back(b.a);
        }
        double spread, ms = time_ms(in, k.run, 30, &spread), again = time_ms(in, k.run, 30);
        double flops = 4. * c.batch * c.tokens * c.keys() * c.heads * c.dim;
        printf("%-34s %-8s %-4s whole %3u splits %2u%s %9.2f us (again %9.2f, spread %6.2f) %6.1f TFLOP/s\n", name, k.name,
               names[c.dtype], in[0].whole, in[0].splits, s ? " " : "*", ms * 1e3, again * 1e3, spread * 1e3, flops / ms * 1e-9);
        fflush(stdout);
    }
}
int main(int argc, char **argv) {
    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, 0));
    sms = p.multiProcessorCount;
    std::string mode = argc > 1 ? argv[1] : "all";
    uint64_t seed = argc > 2 ? atoll(argv[2]) : std::random_device{}();
    int count = argc > 3 ? atoi(argv[3]) : 300;
    printf("%s seed %llu\n", p.name, (unsigned long long)seed);
    fflush(stdout);
    std::mt19937_64 random(seed);
    std::vector<Pick> picks = {
        {DTYPE_BF16, 64, &hopper},  {DTYPE_F16, 64, &hopper},     {DTYPE_BF16, 64, &portable},
        {DTYPE_F16, 64, &portable}, {DTYPE_BF16, 128, &portable}, {DTYPE_F16, 128, &portable},
        {DTYPE_F32, 32, &portable}, {DTYPE_F32, 64, &portable},   {DTYPE_F32, 128, &portable}};
    auto uniform = [&](uint32_t lo, uint32_t hi) { return lo + (uint32_t)(random() % (hi - lo + 1)); };
    auto log_uniform = [&](double lo, double hi) {
        return (uint32_t)(std::exp(std::log(lo) + (std::log(hi) - std::log(lo)) * (random() % 100001 / 100000.)));
    };
    if (mode == "tiny") {  // under compute-sanitizer
        for (auto &k : picks) {
            Case c;
            c.dtype = k.dtype;
            c.dim = k.dim;
            c.heads = 2;
            c.tokens = 130;
            c.page_size = 150;
            c.frames = 2;
            c.special = 1;
            c.last_rows = 77;
            check(c, *k.k, random, "tiny");
            c.splits = 2;
            c.tokens = 3;
            check(c, *k.k, random, "tiny");
            c.whole = 1;  // the others are split
            c.heads = 3;
            c.tokens = 70;
            c.frames = 9;
            check(c, *k.k, random, "tiny");
            c = Case();
            c.dtype = k.dtype;
            c.dim = k.dim;
            c.heads = 2;
            c.contiguous = true;
            c.batch = 2;
            c.tokens = c.page_size = c.last_rows = 70;
            check(c, *k.k, random, "tiny");
            c.batch = 1;
            c.tokens = 140;
            c.frames = 2;
            c.surge = 300;
            c.spread = 30;
            check(c, *k.k, random, "tiny");
        }
    }
    if (mode == "all" || mode == "check") {
        for (auto &k : picks) {
            for (int i = 0; i < count; i++) {
                Case c;
                c.dtype = k.dtype;
                c.dim = k.dim;
                c.heads = uniform(1, 16);
                c.tokens = i % 5 == 0 ? 1 : i % 5 == 1 ? uniform(1, 2010) : log_uniform(1, 2010);
                c.page_size = i % 2 ? uniform(1, 1500) : log_uniform(1, 1500);
                uint32_t keys = log_uniform(1, 20000.99), pages = (keys + c.page_size - 1) / c.page_size;
                c.last_rows = keys - (pages - 1) * c.page_size;
                c.special = uniform(0, pages);
                c.frames = pages - c.special;
                c.splits = i % 3 ? 0 : uniform(1, 9);
                c.multiprocessors = i % 2 ? 0 : uniform(1, 30);
                c.spread = i % 4 == 0 ? 3 : i % 4 == 1 ? .2f : 1;
                check(c, *k.k, random, "random pages");
            }
            for (int i = 0; i < count / 10; i++) {  // scores that become much larger than those of the first tile
                Case c;
                c.dtype = k.dtype;
                c.dim = k.dim;
                c.heads = uniform(1, 4);
                c.tokens = uniform(1, 300);
                c.page_size = uniform(50, 400);
                c.frames = uniform(2, 9);
                c.special = uniform(0, 3);
                c.last_rows = uniform(1, c.page_size);
                c.splits = uniform(0, 3);
                c.multiprocessors = uniform(1, 9);
                c.spread = 6;
                c.surge = i % 2 ? 40 : 8;
                check(c, *k.k, random, "surge");
            }
            for (int i = 0; i < count / 10; i++) {
                Case c;
                c.dtype = k.dtype;
                c.dim = k.dim;
                c.heads = uniform(1, 16);
                c.contiguous = true;
                c.batch = uniform(1, 9);
                c.frames = 1;
                c.tokens = c.page_size = c.last_rows = log_uniform(1, 1100);
                check(c, *k.k, random, "frames");
                c.frames = c.batch;
                c.batch = 1;
                c.tokens = c.frames * c.page_size;
                if (c.tokens < 4000) check(c, *k.k, random, "scale pass");
            }
            Case c;
            c.dtype = k.dtype;
            c.dim = k.dim;
            c.frames = 0;
            c.special = 0;
            c.last_rows = 0;
            c.tokens = 77;
            check(c, *k.k, random, "no keys");
        }
        for (auto &k : picks)
            if (k.dim == 64 && k.dtype != DTYPE_F16)
                for (uint32_t last = 1; last <= 250; last++) {
                    Case c;
                    c.dtype = k.dtype;
                    c.dim = k.dim;
                    c.heads = 1;
                    c.tokens = 129;
                    c.page_size = 250;
                    c.frames = last % 3;
                    c.special = 1;
                    c.last_rows = last;
                    check(c, *k.k, random, "every tail");
                }
    }
    if (mode != "bench") {
        for (auto &t : tallies)
            printf("%-34s %5d cases, error mean %.2e worst %.2e, of a row %.2e; at most %.2f of its bound\n", t.first.c_str(),
                   t.second.n, t.second.sum / t.second.n, t.second.worst, t.second.most, t.second.of_bound);
        printf("failures %d\n", failures);
        fflush(stdout);
    }
    if (mode == "all" || mode == "bench") {
        Case full;
        full.frames = 72;
        full.special = 3;
        full.last_rows = 499;
        for (int i = 0; i < 2; i++) {
            bench("full window 1005 x 74425", full, hopper, 3, random);
        }
        {
            Case c = full;
            c.dtype = DTYPE_F16;
            bench("full window 1005 x 74425", c, hopper, 3, random);
        }
        bench("full window 1005 x 74425", full, portable, 3, random);
        for (uint32_t tokens : {783, 1041, 1375}) {  // 518 x 294, 518 x 392 and 518 x 518 pixels
            Case c = full;
            c.tokens = c.page_size = tokens;
            c.last_rows = tokens / 2;
            char name[60];
            snprintf(name, sizeof name, "full window %u x %llu", tokens, (unsigned long long)c.keys());
            bench(name, c, hopper, 3, random);
        }
        {
            Case c = full;
            c.special = 19;
            bench("3000 frames, 1005 x 90409", c, hopper, 3, random);
        }
        {
            Case c = full;
            c.tokens = 6;
            bench("6 queries x 74425", c, hopper, 3, random, {0, 8, 32});
            bench("6 queries x 74425", c, portable, 3, random);
        }
        {
            Case c;
            c.contiguous = true;
            c.tokens = c.page_size = c.last_rows = 1005;
            bench("frame block 1005", c, hopper, 8, random, {0, 1, 2});
            bench("frame block 1005", c, portable, 8, random);
        }
        {
            Case c;
            c.contiguous = true;
            c.batch = 8;
            c.tokens = c.page_size = c.last_rows = 1004;
            bench("ViT block, 8 frames", c, hopper, 4, random);
        }
        {
            Case c;
            c.contiguous = true;
            c.frames = 8;
            c.tokens = 8040;
            c.page_size = c.last_rows = 1005;
            bench("scale pass 8040 x 8040", c, hopper, 4, random);
        }
        {
            Case c;
            c.dtype = DTYPE_F32;
            c.dim = 128;
            c.tokens = 1;
            c.page_size = c.last_rows = 72;
            bench("camera head, 1 x 72", c, portable, 8, random);
            c.page_size = 4096;
            c.last_rows = 1000;
            bench("camera head, 1 x 1000", c, portable, 8, random, {0, 4, 16});
            c.last_rows = 3000;
            bench("camera head, 1 x 3000", c, portable, 8, random, {0, 8, 32});
            c.tokens = 8;
            c.last_rows = 8;
            bench("camera head, 8 x 8", c, portable, 8, random);
        }
        {
            Case c;
            c.dtype = DTYPE_F32;
            c.frames = 14;
            c.special = 1;
            c.last_rows = 36;
            bench("float32 1005 x 14022", c, portable, 2, random);
        }
        bench("full window 1005 x 74425", full, hopper, 3, random);
    }
    return failures ? 1 : 0;
}
