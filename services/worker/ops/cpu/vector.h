/* One vector type per instruction-set level, and the few functions whose bits all other code relies on.
 *
 * The same source is compiled once per level (build.py). Three rules keep a row's bits fixed:
 *   1. An output element is one chain of operations in one order. Rows and threads only decide who computes it.
 *   2. A sum along a row runs in 16 lanes at every vector length, and a fixed tree adds the lanes (sum_lanes).
 *   3. Tails run through the vector code, padded with zeros, never through a scalar loop.
 * Multiply-adds rely on -ffp-contract=fast. If two products meet in one sum, the compiler could fuse either of them, so
 * one goes through ROUNDED first. With that, all levels that have FMA (x86-64-v3, -v4, Armv8) agree bit for bit.
 */
#ifndef QUIRE_VECTOR_H
#define QUIRE_VECTOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* VL: floats in a vector. MR x NV: rows by vectors of the largest register tile, chosen so that it does not spill. */
#if defined(__AVX512F__)
#define VL 16
#define MR 8
#define NV 3
#define REGISTER "v"
#elif defined(__AVX2__)
#define VL 8
#define MR 6
#define NV 2
#define REGISTER "x"
#elif defined(__aarch64__)
#define VL 4
#define MR 8
#define NV 3
#define REGISTER "w"
#elif defined(__SSE2__)
#define VL 4
#define MR 6
#define NV 2
#define REGISTER "x"
#else
#define VL 4
#define MR 4
#define NV 2
#define REGISTER "m"
#endif

#define LANES 16          /* floats that a sum along a row is spread over */
#define PARTS (LANES / VL) /* vectors that hold these lanes */

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define ROUNDED(product) __asm__("" : "+" REGISTER(product))

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef float vf_memory __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef uint32_t vu_memory __attribute__((vector_size(VL * 4), aligned(4), may_alias));

INLINE vf load(const float *p) { return *(const vf_memory *)p; }
INLINE void store(float *p, vf v) { *(vf_memory *)p = v; }
INLINE vf splat(float s) { return s - (vf){0}; }
INLINE vi splat_int(int32_t s) { return s - (vi){0}; }

/* Loads `count` floats, at most a whole vector; the rest is zero. */
INLINE vf load_part(const float *p, int64_t count) {
    if (count >= VL) return load(p);
    float lanes[VL] = {0};
    for (int64_t i = 0; i < count; i++) lanes[i] = p[i];
    return load(lanes);
}

INLINE void store_part(float *p, vf v, int64_t count) {
    if (count >= VL) {
        store(p, v);
        return;
    }
    float lanes[VL];
    store(lanes, v);
    for (int64_t i = 0; i < count; i++) p[i] = lanes[i];
}

INLINE vf choose(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }

/* Adds up sixteen partial sums, always in this tree. */
INLINE float sum_lanes(const vf parts[PARTS]) {
    float lane[LANES];
    UNROLL for (int i = 0; i < PARTS; i++) store(lane + i * VL, parts[i]);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
}

/* e^x, within 1.1 units in the last place of [-87.3, 88.3] (tests measure it); 0 below, infinity above, NaN for NaN.
 * Range reduction by ln 2 in two pieces and a polynomial of degree 6 (coefficients of Cephes' expf, S. Moshier). */
INLINE vf vector_exp(vf x) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, kept in the low mantissa bits */
    vf shifted = x * 1.44269504088896341f + shift;
    vf n = shifted - shift;
    vf r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    vf square = r * r;
    p = p * square + r;
    p = p + 1.0f;
    vf power = (vf)(((vi)shifted - 0x4b400000 + 127) << 23);
    vf result = p * power;
    result = choose(x < -87.3f, (vf){0}, result);
    return choose(x > 88.3f, splat(__builtin_inff()), result);
}

/* tanh x, within 2 units in the last place (tests measure it). A polynomial below 0.625 (Cephes' tanhf, S. Moshier). */
INLINE vf vector_tanh(vf x) {
    vf magnitude = choose(x < 0.0f, -x, x);
    vf large = 1.0f - 2.0f / (vector_exp(magnitude * 2.0f) + 1.0f);
    vf square = x * x;
    vf p = square * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    p = p * square;
    vf small = p * x + x;
    return choose(magnitude < 0.625f, small, choose(x < 0.0f, -large, large));
}

/* ln x of positive normal x, within 1 unit in the last place or 1e-7 of it near 1 (Cephes' logf, S. Moshier). */
INLINE vf vector_log(vf x) {
    vi bits = (vi)x - 0x3f3504f3; /* bits of sqrt(1/2): the mantissa ends up in [sqrt(1/2), sqrt(2)) */
    vf exponent = __builtin_convertvector(bits >> 23, vf);
    vf f = (vf)((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
    vf p = f * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    vf square = f * f;
    ROUNDED(square);
    vf low = exponent * -2.12194440e-4f;
    ROUNDED(low);
    vf cube = p * f;
    ROUNDED(cube);
    vf y = cube * square + low;
    y = y - square * 0.5f;
    vf result = f + y;
    return result + exponent * 0.693359375f;
}

/* Runs `body` over items 0 .. items - 1, `grain` at a time, on up to `threads` threads of torch's pool (threads.c). */
typedef void (*parallel_body)(const void *task, int64_t first, int64_t last);
void parallel(parallel_body body, const void *task, int64_t items, int64_t grain, int threads);

#endif
