/* y = x W^T + bias with W in unsigned 8- or 4-bit integers, minus a zero point, times a scale per group of inputs; or
 * with W in codes of 4-bit floats (E2M1), whose doubled values are integers and stand in the place of q - zero.
 *
 *   y[r][o] = bias[o] + sum over groups g, in order, of scale[o][g] * sum over k in g of (q[o][k] - zero[o][g]) * x[r][k]
 *
 * Here each sum is one chain of fused multiply-adds. For 8 bits in one group, rows of x may be rounded to signed bytes
 * first. Then
 *
 *   y[r][o] = bias[o] + scale[o] * (row_scale[r] * sum over k of (q[o][k] - 128) * rounded[r][k])
 *
 * where the sum is of integers and so exact. In both cases a row's bits depend neither on other rows nor on the
 * instructions used.
 *
 * Packed layout: panels of NV * VL columns as in gemm.c. Within a panel, a 32-bit lane holds a column's inputs k ..
 * k + 3 as bytes, or inputs k .. k + 3 in the low and k + 4 .. k + 7 in the high halves of its bytes.
 */
#include "kernels.h"
#include "tiles.h"
#include "vector.h"

#include <stdlib.h>
#if defined(__AVX512BW__) || defined(__AVX2__) || defined(__SSE2__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define PANEL (NV * VL)
/* Kinds of weight: 8 and 4 are integers of so many bits. */
#define E2M1 2
#define BITS(kind) ((kind) == E2M1 ? 4 : (kind))
#define AHEAD 2048 /* bytes of a weight to prefetch ahead */
#define ROW_BLOCK 128

typedef int32_t vi_memory __attribute__((vector_size(VL * 4), aligned(4), may_alias));

struct quantized {
    const float *x;         /* [rows, depth], or null: */
    const int8_t *rounded;  /* [rows, depth], */
    const float *row_scales; /* [rows], */
    const int32_t *sums;    /* [rows] of `rounded` */
    const uint32_t *weight; /* packed */
    const float *scales;    /* [groups, padded] */
    const int32_t *zeros;   /* [groups, padded], or null: 128 for 8 bits; weights of 4 bits are E2M1 */
    const float *bias;
    float *y;
    int64_t rows, columns, depth, group_size, padded; /* padded: columns rounded up to whole vectors */
    int64_t panels, row_block;
    int bits;
};

typedef void (*quantized_tile)(const struct quantized *g, int64_t first_row, int64_t first_column, float *y,
                               int64_t y_stride);

/* Doubled values of the E2M1 codes in the 4 bits of each lane from `shift` on: 0, 1, 2, 3, 4, 6, 8, 12, then the same
 * with a minus sign. */
INLINE vf doubled_e2m1(vu words, int shift) {
#if defined(__AVX512F__)
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12);
    return (vf)_mm512_permutexvar_ps((__m512i)(words >> shift), table); /* looks at 4 bits of each lane */
#elif defined(__AVX2__)
    const __m256 table = _mm256_setr_ps(0, 1, 2, 3, 4, 6, 8, 12);
    vu sizes = (vu)_mm256_permutevar8x32_ps(table, (__m256i)(words >> shift)); /* looks at 3 bits of each lane */
#else
    vi size = (vi)(words >> shift & 7);
    size += ((size > 4) & (size - 4)) - (size == 7) * 2; /* 5, 6, 7 -> 6, 8, 12; a true comparison is -1 */
    vu sizes = (vu)__builtin_convertvector(size, vf);
#endif
#if !defined(__AVX512F__)
    return (vf)(sizes | (words << (28 - shift) & 0x80000000u));
#endif
}

/* y[rows][vectors] += a panel . x, group by group. y starts at the bias. */
INLINE void float_tile(const int rows, const int vectors, const int kind, const struct quantized *g, int64_t first_row,
                       int64_t first_column, float *y, int64_t y_stride) {
    const int bits = BITS(kind);
    int64_t size = g->group_size, groups = g->depth / size;
    const uint32_t *weights = g->weight + first_column * (g->depth * bits / 32);
    const float *x = g->x + first_row * g->depth;
    for (int64_t group = 0; group < groups; group++) {
        vi zero[NV];
        vf sum[MR][NV];
        UNROLL for (int v = 0; v < vectors; v++) {
            zero[v] = splat_int(1 << (bits - 1));
            if (g->zeros) zero[v] = *(const vi_memory *)(g->zeros + group * g->padded + first_column + v * VL);
            UNROLL for (int r = 0; r < rows; r++) sum[r][v] = (vf){0};
        }
        for (int64_t k = 0; k < size; k += 32 / bits, x += 32 / bits, weights += vectors * VL) {
            UNROLL for (int v = 0; v < vectors; v++) __builtin_prefetch(weights + v * VL + AHEAD / 4, 0, 2);
            UNROLL for (int i = 0; i < 32 / bits; i++) {
                int shift = bits == 8 ? 8 * i : 8 * (i % 4) + 4 * (i / 4);
                UNROLL for (int v = 0; v < vectors; v++) {
                    vu words = *(const vu_memory *)(weights + v * VL);
                    vi q = (vi)(words >> shift & ((1u << bits) - 1)) - zero[v];
                    vf value = kind == E2M1 ? doubled_e2m1(words, shift) : __builtin_convertvector(q, vf);
                    UNROLL for (int r = 0; r < rows; r++) sum[r][v] = splat(x[r * g->depth + i]) * value + sum[r][v];
                }
            }
        }
        UNROLL for (int v = 0; v < vectors; v++) {
            vf scale = load(g->scales + group * g->padded + first_column + v * VL);
            UNROLL for (int r = 0; r < rows; r++)
                store(y + r * y_stride + v * VL, sum[r][v] * scale + load(y + r * y_stride + v * VL));
        }
    }
}

#define TILE_FUNCTION(rows, vectors, kind)                                                                            \
    static void float_tile_##rows##_##vectors##_##kind(const struct quantized *g, int64_t first_row,                  \
                                                       int64_t first_column, float *y, int64_t y_stride) {            \
        float_tile(rows, vectors, kind, g, first_row, first_column, y, y_stride);                                     \
    }
EACH_TILE(TILE_FUNCTION, 8)
EACH_TILE(TILE_FUNCTION, 4)
EACH_TILE(TILE_FUNCTION, 2)
#define TILE_ENTRY(rows, vectors, kind) [(kind) / 4][(rows)-1][(vectors)-1] = float_tile_##rows##_##vectors##_##kind,
static const quantized_tile float_tiles[3][MR][NV] = {EACH_TILE(TILE_ENTRY, 8) EACH_TILE(TILE_ENTRY, 4)
                                                      EACH_TILE(TILE_ENTRY, 2)};
#undef TILE_FUNCTION
#undef TILE_ENTRY

/* Multiplies bytes 0 and 2 of each lane with those of x, then 1 and 3, in 16 bits, which a product of bytes fits. */
INLINE vi dot_words(vi sum, vu weights, const int8_t *x) {
    vi even = (vi)(weights & 0x00ff00ffu), odd = (vi)((weights >> 8) & 0x00ff00ffu);
    int32_t x_even = (uint16_t)(int16_t)x[0] | (int32_t)((uint32_t)(uint16_t)(int16_t)x[2] << 16);
    int32_t x_odd = (uint16_t)(int16_t)x[1] | (int32_t)((uint32_t)(uint16_t)(int16_t)x[3] << 16);
#if defined(__AVX512BW__)
    sum += (vi)_mm512_madd_epi16((__m512i)even, (__m512i)splat_int(x_even));
    return sum + (vi)_mm512_madd_epi16((__m512i)odd, (__m512i)splat_int(x_odd));
#elif defined(__AVX2__)
    sum += (vi)_mm256_madd_epi16((__m256i)even, (__m256i)splat_int(x_even));
    return sum + (vi)_mm256_madd_epi16((__m256i)odd, (__m256i)splat_int(x_odd));
#elif defined(__SSE2__)
    sum += (vi)_mm_madd_epi16((__m128i)even, (__m128i)splat_int(x_even));
    return sum + (vi)_mm_madd_epi16((__m128i)odd, (__m128i)splat_int(x_odd));
#else
    sum += (even & 0xffff) * (int32_t)x[0] + (even >> 16) * (int32_t)x[2];
    (void)x_even, (void)x_odd;
    return sum + (odd & 0xffff) * (int32_t)x[1] + (odd >> 16) * (int32_t)x[3];
#endif
}

#define NAME(x) words_##x
#define TARGET
#define DOT(sum, weights, x) sum = dot_words(sum, weights, x)
#include "quantized_tile.h"

#if defined(__AVX512BW__)
INLINE int32_t four_bytes(const int8_t *x) {
    int32_t word;
    memcpy(&word, x, 4);
    return word;
}

#define NAME(x) vnni_##x
#define TARGET __attribute__((target("avx512vnni")))
#define DOT(sum, weights, x)                                                                                          \
    sum = (vi)_mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(weights), _mm512_set1_epi32(four_bytes(x)))
#include "quantized_tile.h"

static int has_vnni(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c >> 11 & 1);
}
#endif

static quantized_tile find_tile_function(const struct quantized *g, int64_t rows, int64_t vectors) {
    if (g->x) return float_tiles[(g->bits == 4 && !g->zeros ? E2M1 : g->bits) / 4][rows - 1][vectors - 1];
#if defined(__AVX512BW__)
    static int vnni = -1; /* several threads may set it at once, all to the same value */
    if (vnni < 0) vnni = has_vnni();
    if (vnni) return vnni_tiles[rows - 1][vectors - 1];
#endif
    return words_tiles[rows - 1][vectors - 1];
}

static void multiply_panel(const struct quantized *g, int64_t first_row, int64_t rows, int64_t panel) {
    int64_t first_column = panel * PANEL, columns = smaller(PANEL, g->columns - first_column);
    int64_t vectors = (columns + VL - 1) / VL, width = vectors * VL;
    int64_t tiles = (rows + MR - 1) / MR;
    for (int64_t index = 0, row = first_row; index < tiles; index++) {
        int64_t height = rows / tiles + (index < rows % tiles);
        float ragged[MR * PANEL]; /* result of a narrower last panel, so that nothing is written past a row's end */
        float *y = g->y + row * g->columns + first_column, *c = columns == width ? y : ragged;
        int64_t c_stride = columns == width ? g->columns : PANEL;
        for (int64_t r = 0; r < height; r++) {
            memset(c + r * c_stride, 0, (size_t)width * 4);
            if (g->bias) memcpy(c + r * c_stride, g->bias + first_column, (size_t)columns * 4);
        }
        find_tile_function(g, height, vectors)(g, row, first_column, c, c_stride);
        if (c == ragged)
            for (int64_t r = 0; r < height; r++) memcpy(y + r * g->columns, c + r * c_stride, (size_t)columns * 4);
        row += height;
    }
}

static void multiply_items(const void *task, int64_t first, int64_t last) {
    const struct quantized *g = task;
    for (int64_t i = first; i < last; i++) {
        int64_t first_row = i / g->panels * g->row_block;
        multiply_panel(g, first_row, smaller(g->row_block, g->rows - first_row), i % g->panels);
    }
}

struct rounding {
    const float *x;
    int8_t *rounded;
    float *scales;
    int32_t *sums;
    int64_t features, depth;
};

/* With a = max(|x|, 1e-10) of a row: rounded = round(x * (127 / a)), halves to even, and scale = a / 127. Features past
 * the end are zero. If a row has a NaN or an infinity, its scale is not finite either. */
static void round_items(const void *task, int64_t first, int64_t last) {
    const struct rounding *t = task;
    for (int64_t row = first; row < last; row++) {
        const float *x = t->x + row * t->features;
        int8_t *rounded = t->rounded + row * t->depth;
        vf largest = splat(1e-10f), odd = {0};
        for (int64_t k = 0; k < t->features; k += VL) {
            vf value = load_part(x + k, t->features - k), size = (vf)((vi)value & 0x7fffffff);
            largest = choose(size > largest, size, largest);
            odd += value * 0.0f;
        }
        float most = largest[0], check = odd[0];
        for (int i = 1; i < VL; i++) most = largest[i] > most ? largest[i] : most, check += odd[i];
        float inverse = 127.0f / most;
        t->scales[row] = most / 127.0f + check;
        memset(rounded + t->features, 0, (size_t)(t->depth - t->features));
        vi sum = {0};
        for (int64_t k = 0; k < t->features; k += VL) {
            vf scaled = load_part(x + k, t->features - k) * inverse;
            ROUNDED(scaled);
            scaled += 12582912.0f; /* 1.5 * 2^23: rounds to an integer, kept in the low mantissa bits */
            vi whole = (vi)scaled - 0x4b400000;
            sum += whole;
            for (int64_t i = 0; i < VL && k + i < t->features; i++) rounded[k + i] = (int8_t)whole[i];
        }
        t->sums[row] = 0;
        for (int i = 0; i < VL; i++) t->sums[row] += sum[i];
    }
}

static void order_features(const float *x, const int32_t *order, float *out, int64_t rows, int64_t features,
                           int64_t depth) {
    for (int64_t row = 0; row < rows; row++, x += features, out += depth) {
        for (int64_t k = 0; k < features; k++) out[k] = x[order ? order[k] : k];
        memset(out + features, 0, (size_t)(depth - features) * 4);
    }
}

/* x [rows, features] f32 -> y [rows, columns]. Input k of the weight is feature order[k], or k without an order; inputs
 * from `features` to `depth` are padding. The weight is packed by quire_pack_quantized; scales and zeros (or null) are
 * [groups, padded], `padded` being columns in whole vectors; bias is [columns] or null. Weights of 4 bits without
 * zeros are E2M1 codes, and scales hold half of their scales. depth is a multiple of group_size, which is a multiple of
 * 32 / bits. `round`: rounds x to bytes first, only for 8 bits in one group without zeros and order. Returns 0, or -1 if
 * memory runs out. */
int quire_gemm_quantized(const float *x, const int32_t *order, const uint32_t *weight, const float *scales,
                         const int32_t *zeros, const float *bias, float *y, int64_t rows, int64_t features,
                         int64_t columns, int64_t depth, int64_t group_size, int bits, int round, int threads) {
    void *scratch = NULL;
    struct quantized g = {.x = x, .weight = weight, .scales = scales, .zeros = zeros, .bias = bias, .y = y, .rows = rows,
                          .columns = columns, .depth = depth, .group_size = group_size, .padded = round_up(columns, VL),
                          .panels = (columns + PANEL - 1) / PANEL, .row_block = ROW_BLOCK, .bits = bits};
    if (round || order || features != depth) {
        scratch = malloc((size_t)(round ? rows * (depth + 8) : rows * depth * 4));
        if (!scratch) return -1;
    }
    if (round) {
        int8_t *rounded = scratch;
        float *row_scales = (float *)(rounded + rows * depth); /* depth is a multiple of 4 */
        int32_t *sums = (int32_t *)(row_scales + rows);
        struct rounding t = {x, rounded, row_scales, sums, features, depth};
        parallel(round_items, &t, rows, 1, rows * features < 40000 ? 1 : threads);
        g.x = NULL, g.rounded = rounded, g.row_scales = row_scales, g.sums = sums;
    } else if (scratch) {
        order_features(x, order, scratch, rows, features, depth);
        g.x = scratch;
    }
    if ((rows + 12) * columns * depth < 2400000) threads = 1;
    while (g.row_block > MR && (rows + g.row_block - 1) / g.row_block * g.panels < 4 * (int64_t)threads &&
           rows > g.row_block / 2)
        g.row_block /= 2;
    parallel(multiply_items, &g, (rows + g.row_block - 1) / g.row_block * g.panels, 1, threads);
    free(scratch);
    return 0;
}

/* Packs columns first .. last of q [columns, depth], which has one value below 2^bits per byte. */
void quire_pack_quantized(const uint8_t *q, uint32_t *packed, int64_t first, int64_t last, int64_t columns,
                          int64_t depth, int bits) {
    int64_t words = depth * bits / 32;
    for (int64_t column = first; column < last; column++) {
        int64_t start = column / PANEL * PANEL, width = smaller(PANEL, round_up(columns, VL) - start);
        uint32_t *out = packed + start * words + column % PANEL;
        const uint8_t *in = q + (column - first) * depth;
        for (int64_t w = 0; w < words; w++) {
            uint32_t word = 0;
            for (int64_t i = 0; i < 32 / bits; i++) {
                int shift = (int)(bits == 8 ? 8 * i : 8 * (i % 4) + 4 * (i / 4));
                word |= (uint32_t)in[w * (32 / bits) + i] << shift;
            }
            out[w * width] = word;
        }
    }
}

/* Unpacks columns `ids` to the values that quire_pack_quantized took: out [count, depth]; ids in range. */
void quire_unpack_quantized(const int64_t *ids, const uint32_t *packed, uint8_t *out, int64_t count, int64_t columns,
                            int64_t depth, int bits) {
    int64_t words = depth * bits / 32;
    for (int64_t i = 0; i < count; i++) {
        int64_t start = ids[i] / PANEL * PANEL, width = smaller(PANEL, round_up(columns, VL) - start);
        const uint32_t *in = packed + start * words + ids[i] % PANEL;
        for (int64_t k = 0; k < depth; k++) {
            int64_t w = k / (32 / bits), at = k % (32 / bits);
            int shift = (int)(bits == 8 ? 8 * at : 8 * (at % 4) + 4 * (at / 4));
            out[i * depth + k] = (uint8_t)(in[w * width] >> shift & ((1u << bits) - 1));
        }
    }
}

/* Returns the columns rounded up to whole vectors, to which scales and zeros are padded. */
int64_t quire_padded_columns(int64_t columns) { return round_up(columns, VL); }
