/* y = x W^T + bias with W packed once. A row's bits never depend on the other rows.
 *
 * Every y[row][column] is one chain of fused multiply-adds over k = 0, 1, 2, ... that starts at the bias. The register
 * tile (rows x vectors of columns) only decides which chains run side by side. Cutting k into blocks stores the chain's
 * value in y in between, which is exact. So bits cannot depend on row counts, threads or vector lengths.
 *
 * Packed layout: panels of NV * VL columns (the last one narrower, a multiple of VL, zero-padded). Within a panel, the
 * columns of each k are adjacent, so that one row of x reads the weight once from front to end. If bfloat16 holds all
 * values of a weight exactly, it is stored so, which halves the bytes. A 32-bit lane then holds column c at k (low
 * half) and at k + 1 (high half), with k padded to even.
 */
#include "kernels.h"
#include "tiles.h"
#include "vector.h"

#define PANEL (NV * VL)
#define K_BLOCK 640   /* so that a panel's slice fits into the second-level cache, its rows' slices into the first */
#define AHEAD 2048    /* bytes to prefetch ahead */
#define ROW_BLOCK 128 /* rows between two visits to the same panel */

struct gemm {
    const float *x;
    const void *weight;
    const float *bias;
    float *y;
    int64_t rows, columns, depth;
    int64_t x_row, y_row; /* floats from one row to the next */
    int half;             /* whether the weight is in pairs of bfloat16 */
    int64_t panels, row_block;
};

/* c[rows][vectors] += x[rows][depth] * slice of a panel. All but the loop over k is unrolled into registers. Prefetches
 * the data that is read next from `ahead` on, `ahead_step` bytes further for each vector row. */
INLINE void tile(const int rows, const int vectors, const int half, const float *x, int64_t x_stride,
                 const void *weight, int64_t depth, float *c, int64_t c_stride, const char *ahead,
                 int64_t ahead_step) {
    vf sum[MR][NV];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = load(c + r * c_stride + v * VL);
    if (half) {
        const uint32_t *w = weight;
        int64_t k = 0;
        for (; k + 1 < depth; k += 2, w += vectors * VL, ahead += ahead_step) {
            vf b[NV];
            UNROLL for (int v = 0; v < vectors; v++) __builtin_prefetch(ahead + v * VL * 4, 0, 2);
            UNROLL for (int v = 0; v < vectors; v++) b[v] = (vf)(*(const vu_memory *)(w + v * VL) << 16);
            UNROLL for (int r = 0; r < rows; r++) {
                vf a = splat(x[r * x_stride + k]);
                UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = a * b[v] + sum[r][v];
            }
            __asm__("" : "+r"(w)); /* makes the compiler load the pair again: registers are scarcer than loads */
            UNROLL for (int v = 0; v < vectors; v++) b[v] = (vf)(*(const vu_memory *)(w + v * VL) & 0xffff0000u);
            UNROLL for (int r = 0; r < rows; r++) {
                vf a = splat(x[r * x_stride + k + 1]);
                UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = a * b[v] + sum[r][v];
            }
        }
        if (k < depth)
            UNROLL for (int v = 0; v < vectors; v++) {
                vf even = (vf)(*(const vu_memory *)(w + v * VL) << 16);
                UNROLL for (int r = 0; r < rows; r++) sum[r][v] = splat(x[r * x_stride + k]) * even + sum[r][v];
            }
    } else {
        const float *w = weight;
        for (int64_t k = 0; k < depth; k++, w += vectors * VL, ahead += ahead_step) {
            vf b[NV];
            UNROLL for (int v = 0; v < vectors; v++) __builtin_prefetch(ahead + v * VL * 4, 0, 2);
            UNROLL for (int v = 0; v < vectors; v++) b[v] = load(w + v * VL);
            UNROLL for (int r = 0; r < rows; r++) {
                vf a = splat(x[r * x_stride + k]);
                UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = a * b[v] + sum[r][v];
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) store(c + r * c_stride + v * VL, sum[r][v]);
}

typedef void (*tile_function)(const float *, int64_t, const void *, int64_t, float *, int64_t, const char *, int64_t);

#define TILE(rows, vectors, half)                                                                                     \
    static void tile_##rows##_##vectors##_##half(const float *x, int64_t x_stride, const void *w, int64_t depth,      \
                                                 float *c, int64_t c_stride, const char *ahead,                      \
                                                 int64_t ahead_step) {                                                \
        tile(rows, vectors, half, x, x_stride, w, depth, c, c_stride, ahead, ahead_step);                             \
    }
EACH_TILE(TILE, 0)
EACH_TILE(TILE, 1)

#define TILE_ENTRY(rows, vectors, half) [half][(rows)-1][(vectors)-1] = tile_##rows##_##vectors##_##half,
static const tile_function tiles[2][MR][NV] = {EACH_TILE(TILE_ENTRY, 0) EACH_TILE(TILE_ENTRY, 1)};

/* Multiplies one block of rows by one panel. */
static void multiply_panel(const struct gemm *g, int64_t first_row, int64_t rows, int64_t panel) {
    int64_t first_column = panel * PANEL;
    int64_t columns = smaller(PANEL, g->columns - first_column);
    int64_t vectors = (columns + VL - 1) / VL, width = vectors * VL;
    int64_t k_blocks = (g->depth + K_BLOCK - 1) / K_BLOCK;
    int64_t k_block = round_up((g->depth + k_blocks - 1) / k_blocks, 2);
    int64_t stored_depth = g->half ? round_up(g->depth, 2) / 2 : g->depth; /* 32-bit words per column */
    const uint32_t *weight = (const uint32_t *)g->weight + first_column * stored_depth;
    int64_t tiles_high = (rows + MR - 1) / MR, tile_rows = rows / tiles_high, taller = rows % tiles_high;

    for (int64_t k = 0; k < g->depth; k += k_block) {
        int64_t depth = smaller(k_block, g->depth - k);
        const uint32_t *slice = weight + (g->half ? k / 2 : k) * width;
        /* The first tile brings the slice into the cache for all others. So all tiles share in prefetching the next
         * slice, which follows this one. A single tile prefetches a little ahead of itself. */
        int64_t vector_row = width * 4, slice_bytes = (g->half ? (depth + 1) / 2 : depth) * vector_row;
        for (int64_t row = 0, index = 0; row < rows; index++) {
            int64_t height = tile_rows + (index < taller);
            const float *x = g->x + (first_row + row) * g->x_row + k;
            float *y = g->y + (first_row + row) * g->y_row + first_column;
            float ragged[MR * PANEL]; /* result of a narrower last panel, so that nothing is written past a row's end */
            float *c = columns == width ? y : ragged;
            int64_t c_stride = columns == width ? g->y_row : PANEL;
            for (int64_t r = 0; r < height; r++) {
                if (k == 0 && g->bias)
                    memcpy(c + r * c_stride, g->bias + first_column, (size_t)columns * 4);
                else if (k == 0)
                    memset(c + r * c_stride, 0, (size_t)columns * 4);
                else if (c == ragged)
                    memcpy(c + r * c_stride, y + r * g->y_row, (size_t)columns * 4);
                if (c == ragged) memset(c + r * c_stride + columns, 0, (size_t)(width - columns) * 4);
            }
            const char *ahead = (const char *)slice + AHEAD;
            if (tiles_high > 1) ahead = (const char *)slice + slice_bytes + index * (slice_bytes / tiles_high);
            tiles[g->half][height - 1][vectors - 1](x, g->x_row, slice, depth, c, c_stride, ahead,
                                                    vector_row / tiles_high);
            if (c == ragged)
                for (int64_t r = 0; r < height; r++)
                    memcpy(y + r * g->y_row, c + r * c_stride, (size_t)columns * 4);
            row += height;
        }
    }
}

static void multiply_items(const void *task, int64_t first, int64_t last) {
    const struct gemm *g = task;
    for (int64_t i = first; i < last; i++) {
        int64_t first_row = i / g->panels * g->row_block;
        multiply_panel(g, first_row, smaller(g->row_block, g->rows - first_row), i % g->panels);
    }
}

/* x [rows, depth] f32, weight packed by quire_pack, bias [columns] or null -> y [rows, columns]. */
void quire_gemm(const float *x, const void *weight, const float *bias, float *y, int64_t rows, int64_t columns,
                int64_t depth, int half, int threads) {
    struct gemm g = {.x = x, .weight = weight, .bias = bias, .y = y, .rows = rows, .columns = columns, .depth = depth,
                     .x_row = depth, .y_row = columns, .half = half, .panels = (columns + PANEL - 1) / PANEL,
                     .row_block = ROW_BLOCK};
    /* Reading a weight takes as long as about six multiplications with it. Below 12 us, threads do not pay off. */
    if ((rows + 6) * columns * depth < 600000) threads = 1;
    /* With few panels and many rows, the rows are cut finer, so that every thread has work. */
    while (g.row_block > MR && (rows + g.row_block - 1) / g.row_block * g.panels < 4 * (int64_t)threads &&
           rows > g.row_block / 2)
        g.row_block /= 2;
    int64_t row_blocks = (rows + g.row_block - 1) / g.row_block;
    parallel(multiply_items, &g, row_blocks * g.panels, 1, threads);
}

/* Returns the number of 32-bit words of a packed weight. */
int64_t quire_packed_words(int64_t columns, int64_t depth, int half) {
    return round_up(columns, VL) * (half ? round_up(depth, 2) / 2 : depth);
}

struct gemm_heads {
    struct gemm one; /* of the first head */
    int64_t items;   /* of each head */
    int64_t x_head, weight_head;
};

static void multiply_heads(const void *task, int64_t first, int64_t last) {
    const struct gemm_heads *all = task;
    for (int64_t i = first; i < last; i++) {
        int64_t head = i / all->items;
        struct gemm g = all->one;
        g.x += head * all->x_head;
        g.weight = (const uint32_t *)g.weight + head * all->weight_head;
        g.y += head * g.columns;
        multiply_items(&g, i % all->items, i % all->items + 1);
    }
}

/* Multiplies each head by a weight of its own. x [rows][heads][depth] f32, with strides in floats; weights packed one
 * after the other, each by quire_pack -> y [rows][heads][columns]. */
void quire_gemm_heads(const float *x, const void *weights, float *y, int64_t rows, int64_t heads, int64_t columns,
                      int64_t depth, int64_t x_row, int64_t x_head, int half, int threads) {
    struct gemm g = {.x = x, .weight = weights, .y = y, .rows = rows, .columns = columns, .depth = depth,
                     .x_row = x_row, .y_row = heads * columns, .half = half, .panels = (columns + PANEL - 1) / PANEL,
                     .row_block = ROW_BLOCK};
    struct gemm_heads all = {g, (rows + ROW_BLOCK - 1) / ROW_BLOCK * g.panels, x_head,
                             quire_packed_words(columns, depth, half)};
    if ((rows + 6) * heads * columns * depth < 600000) threads = 1; /* as in quire_gemm */
    parallel(multiply_heads, &all, heads * all.items, 1, threads);
}

INLINE uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

/* Packs columns first .. last of weight [columns, depth] f32 (`weight` points at column `first`). With `half` values
 * must be exact in bfloat16. */
void quire_pack(const float *weight, uint32_t *packed, int64_t first, int64_t last, int64_t columns, int64_t depth,
                int half) {
    int64_t stored_depth = half ? round_up(depth, 2) / 2 : depth;
    for (int64_t column = first; column < last; column++) {
        int64_t start = column / PANEL * PANEL, width = smaller(PANEL, round_up(columns, VL) - start);
        uint32_t *out = packed + start * stored_depth + column % PANEL;
        const float *in = weight + (column - first) * depth;
        if (half)
            for (int64_t k = 0; k < depth; k += 2) {
                uint32_t high = k + 1 < depth ? float_bits(in[k + 1]) & 0xffff0000u : 0;
                out[k / 2 * width] = float_bits(in[k]) >> 16 | high;
            }
        else
            for (int64_t k = 0; k < depth; k++) out[k * width] = float_bits(in[k]);
    }
}

struct lookup {
    const int64_t *ids;
    const uint32_t *packed;
    uint32_t *out;
    int64_t columns, depth;
    int half;
};

static void lookup_items(const void *task, int64_t first, int64_t last) {
    const struct lookup *l = task;
    int64_t stored_depth = l->half ? round_up(l->depth, 2) / 2 : l->depth;
    for (int64_t i = first; i < last; i++) {
        int64_t start = l->ids[i] / PANEL * PANEL, width = smaller(PANEL, round_up(l->columns, VL) - start);
        const uint32_t *in = l->packed + start * stored_depth + l->ids[i] % PANEL;
        uint32_t *out = l->out + i * l->depth;
        if (l->half)
            for (int64_t k = 0; k < l->depth; k++)
                out[k] = k % 2 ? in[k / 2 * width] & 0xffff0000u : in[k / 2 * width] << 16;
        else
            for (int64_t k = 0; k < l->depth; k++) out[k] = in[k * width];
    }
}

/* Unpacks columns `ids` of a weight (rows of the [columns, depth] matrix) to f32 [count, depth]; ids in range. */
void quire_embedding(const int64_t *ids, const uint32_t *packed, uint32_t *out, int64_t count, int64_t columns,
                     int64_t depth, int half, int threads) {
    struct lookup l = {ids, packed, out, columns, depth, half};
    parallel(lookup_items, &l, count, 8, threads);
}
