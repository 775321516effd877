/* The inner loop of quantized.c's integer products. It is included once per instruction that multiplies bytes:
 *   NAME(x)                      name of a definition
 *   TARGET                       attributes that DOT needs to compile
 *   DOT(sum, weights, x)         sum[lane] += four unsigned bytes of weights[lane] . four signed bytes at x
 */

/* y[rows][vectors] = a panel . x, scaled, plus the bias, which y holds before. */
static inline __attribute__((always_inline)) TARGET void NAME(tile)(const int rows, const int vectors,
                                                                    const struct quantized *g, int64_t first_row,
                                                                    int64_t first_column, float *y, int64_t y_stride) {
    const uint32_t *weights = g->weight + first_column * (g->depth / 4);
    const int8_t *x = g->rounded + first_row * g->depth;
    vi sum[MR][NV];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = (vi){0};
    for (int64_t k = 0; k < g->depth; k += 4, weights += vectors * VL) {
        vu w[NV];
        UNROLL for (int v = 0; v < vectors; v++) __builtin_prefetch(weights + v * VL + AHEAD / 4, 0, 2);
        UNROLL for (int v = 0; v < vectors; v++) w[v] = *(const vu_memory *)(weights + v * VL);
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < vectors; v++) DOT(sum[r][v], w[v], x + r * g->depth + k);
    }
    UNROLL for (int v = 0; v < vectors; v++) {
        vf scale = load(g->scales + first_column + v * VL);
        UNROLL for (int r = 0; r < rows; r++) {
            vi exact = sum[r][v] - 128 * g->sums[first_row + r];
            vf scaled = __builtin_convertvector(exact, vf) * g->row_scales[first_row + r];
            ROUNDED(scaled);
            store(y + r * y_stride + v * VL, scaled * scale + load(y + r * y_stride + v * VL));
        }
    }
}

#define TILE_FUNCTION(rows, vectors, unused)                                                                          \
    static TARGET void NAME(tile_##rows##_##vectors)(const struct quantized *g, int64_t first_row,                    \
                                                     int64_t first_column, float *y, int64_t y_stride) {              \
        NAME(tile)(rows, vectors, g, first_row, first_column, y, y_stride);                                           \
    }
EACH_TILE(TILE_FUNCTION, )
#define TILE_ENTRY(rows, vectors, unused) [(rows)-1][(vectors)-1] = NAME(tile_##rows##_##vectors),
static const quantized_tile NAME(tiles)[MR][NV] = {EACH_TILE(TILE_ENTRY, )};
#undef TILE_FUNCTION
#undef TILE_ENTRY
#undef NAME
#undef TARGET
#undef DOT
