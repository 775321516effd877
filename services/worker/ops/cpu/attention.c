/* Causal attention straight over the block tables, for prefill chunks and decodes alike (online softmax: Milakov and
 * Gimelshein, 2018; paged KV: Kwon et al., 2023).
 *
 * A unit of work is up to ROWS query rows (tokens x heads that share a KV head) of one sequence. Keys come in tiles of
 * TILE, aligned to absolute positions. For every row: a score is one chain of multiply-adds over the head dimension, a
 * tile's sum runs in 16 lanes and a fixed tree, an output element is one chain over the keys in order, rescaled at tile
 * borders. Keys a row must not see weigh exactly zero, and so do tiles before its window: a row's bits depend on its
 * position alone, not on the chunk, on the rows beside it, on the block size or on the thread.
 *
 * Key pages hold groups of 16 keys (of fewer where 16 does not divide the block size: its largest power of two)
 * transposed, [group][head_dim][key], so that 16 scores are one vector. Value pages are [slot][head_dim].
 */
#include "vector.h"

#define TILE 64                         /* keys */
#define GROUPS (TILE / LANES)           /* of 16 keys */
#define ROWS 24                         /* query rows in a unit of work */
#define MAX_DIM 256
#define PARALLEL_FROM 400000            /* multiply-adds; below, waking another thread costs more than it brings */
#define SCORE_GROUPS (VL == 16 ? 4 : 1) /* register tile: TILE_ROWS rows by this many groups of keys, */
#define SCORE_VECTORS (SCORE_GROUPS * PARTS)
#if VL == 4 && !defined(__aarch64__)
#define TILE_ROWS 3
#else
#define TILE_ROWS 6
#endif
#define VALUE_VECTORS (VL == 8 ? 2 : 4) /* or by this many vectors of an output */

struct attention {
    const float *q, *key_pages, *value_pages;
    float *out;
    const int32_t *positions, *query_starts, *block_tables;
    const int64_t *unit_starts; /* [sequences + 1] */
    int64_t q_row, q_head, key_block, value_block; /* strides in floats */
    int64_t heads, kv_heads, head_dim, block_size, max_blocks;
    int64_t window; /* keys a query sees; 0: all */
    float scale;
};

/* The keys of one tile that some row of the unit sees, and where they are. */
struct tile {
    int64_t first, last;       /* absolute positions, inclusive; the tile starts at first / TILE * TILE */
    const float *keys[GROUPS]; /* [head_dim][16] each; null where no row looks */
    const float *values[TILE];
};

struct scratch {
    _Alignas(64) float q[ROWS * MAX_DIM], out[ROWS * MAX_DIM], scores[ROWS * TILE];
    _Alignas(64) float keys[TILE * MAX_DIM], values[TILE * MAX_DIM]; /* where pages cannot be read in place */
    float maximum[ROWS], sum[ROWS], rescale[ROWS];
};

static void find_tile(const struct attention *a, const int32_t *table, int64_t kv_head, struct tile *tile,
                      struct scratch *scratch) {
    int64_t start = tile->first / TILE * TILE, size = a->block_size, dim = a->head_dim;
    int64_t padded = (dim + VL - 1) / VL * VL, group = size & -size;
    if (group > LANES) group = LANES;
    for (int64_t g = 0; g < GROUPS; g++) {
        int64_t first = start + g * LANES, last = first + LANES - 1;
        if (first < tile->first) first = tile->first;
        if (last > tile->last) last = tile->last;
        tile->keys[g] = NULL;
        if (first > last) continue;
        if (group == LANES) {
            const float *page = a->key_pages + table[first / size] * a->key_block + kv_head * size * dim;
            tile->keys[g] = page + first % size / LANES * LANES * dim;
            continue;
        }
        float *copy = scratch->keys + g * LANES * dim;
        for (int64_t position = first; position <= last; position++) {
            int64_t slot = position % size;
            const float *page = a->key_pages + table[position / size] * a->key_block + kv_head * size * dim;
            const float *key = page + slot / group * group * dim + slot % group;
            for (int64_t d = 0; d < dim; d++) copy[d * LANES + position % LANES] = key[d * group];
        }
        tile->keys[g] = copy;
    }
    for (int64_t position = tile->first; position <= tile->last;) {
        int64_t slot = position % size, next = position - slot + size;
        const float *value = a->value_pages + table[position / size] * a->value_block + (kv_head * size + slot) * dim;
        for (; position < next && position <= tile->last; position++, value += dim) {
            tile->values[position - start] = value;
            if (padded == dim) continue;
            float *copy = scratch->values + (position - start) * padded; /* whole vectors are read below */
            memcpy(copy, value, (size_t)dim * 4);
            memset(copy + dim, 0, (size_t)(padded - dim) * 4);
            tile->values[position - start] = copy;
        }
    }
}

/* Asks for the keys and values of positions first .. last ahead of their turn: pages lie anywhere, so the processor's
 * own prefetcher, which follows addresses, cannot. */
static void prefetch(const struct attention *a, const int32_t *table, int64_t kv_head, int64_t first, int64_t last) {
    int64_t size = a->block_size, dim = a->head_dim;
    for (int64_t position = first; position <= last;) {
        int64_t slot = position % size, count = size - slot < last - position + 1 ? size - slot : last - position + 1;
        int64_t page = (kv_head * size + slot) * dim, block = table[position / size];
        const float *keys = a->key_pages + block * a->key_block + page;
        const float *values = a->value_pages + block * a->value_block + page;
        for (int64_t i = 0; i < count * dim; i += 16) {
            __builtin_prefetch(keys + i, 0, 2);
            __builtin_prefetch(values + i, 0, 2);
        }
        position += count;
    }
}

/* scores[rows][SCORE_GROUPS * 16] = q . keys */
INLINE void score(const int rows, const float *q, int64_t dim, const float *const *keys, float *scores) {
    vf sum[TILE_ROWS][SCORE_VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < SCORE_VECTORS; v++) sum[r][v] = (vf){0};
    for (int64_t d = 0; d < dim; d++) {
        vf key[SCORE_VECTORS];
        UNROLL for (int v = 0; v < SCORE_VECTORS; v++) key[v] = load(keys[v / PARTS] + d * LANES + v % PARTS * VL);
        UNROLL for (int r = 0; r < rows; r++) {
            vf query = splat(q[r * dim + d]);
            UNROLL for (int v = 0; v < SCORE_VECTORS; v++) sum[r][v] = query * key[v] + sum[r][v];
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < SCORE_VECTORS; v++) store(scores + r * TILE + v * VL, sum[r][v]);
}

/* out[rows][vectors] = out * rescale + weights . values over keys first .. last of the tile */
INLINE void weigh(const int rows, const int vectors, const float *weights, const float *rescale,
                  const float *const *values, int64_t column, int64_t first, int64_t last, float *out, int64_t stride) {
    vf sum[TILE_ROWS][VALUE_VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) {
            sum[r][v] = load(out + r * stride + v * VL) * rescale[r];
            ROUNDED(sum[r][v]);
        }
    for (int64_t j = first; j <= last; j++) {
        vf value[VALUE_VECTORS];
        UNROLL for (int v = 0; v < vectors; v++) value[v] = load(values[j] + column + v * VL);
        UNROLL for (int r = 0; r < rows; r++) {
            vf weight = splat(weights[r * TILE + j]);
            UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = weight * value[v] + sum[r][v];
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) store(out + r * stride + v * VL, sum[r][v]);
}

#define WITH_ROWS(call)                                                                                               \
    switch (rows) {                                                                                                   \
    case 1: call(1) break;                                                                                            \
    case 2: call(2) break;                                                                                            \
    case 3: call(3) break;                                                                                            \
    case 4: call(AT_MOST(4)) break;                                                                                   \
    case 5: call(AT_MOST(5)) break;                                                                                   \
    case 6: call(AT_MOST(6)) break;                                                                                   \
    }
#define AT_MOST(n) ((n) <= TILE_ROWS ? (n) : 1) /* the case cannot come up, but has to compile */

static void score_tile(int64_t rows, const float *q, int64_t dim, const float *const *keys, float *scores) {
#define CALL(n) score(n, q, dim, keys, scores);
    WITH_ROWS(CALL)
#undef CALL
}

static void weigh_tile(int64_t rows, int64_t vectors, const float *weights, const float *rescale,
                       const float *const *values, int64_t column, int64_t first, int64_t last, float *out,
                       int64_t stride) {
    if (vectors == VALUE_VECTORS) {
#define CALL(n) weigh(n, VALUE_VECTORS, weights, rescale, values, column, first, last, out, stride);
        WITH_ROWS(CALL)
#undef CALL
        return;
    }
    for (int64_t v = 0; v < vectors; v++) {
#define CALL(n) weigh(n, 1, weights, rescale, values, column + v * VL, first, last, out + v * VL, stride);
        WITH_ROWS(CALL)
#undef CALL
    }
}

/* Scores to weights of one row: masks, moves the running maximum, adds to the running sum. */
INLINE void soften(float *scores, int64_t start, int64_t first, int64_t last, float *maximum, float *sum,
                   float *rescale) {
    static const int32_t count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vi lane;
    memcpy(&lane, count, sizeof lane);
    vf highest = splat(*maximum), total[PARTS] = {0};
    for (int i = 0; i < TILE; i += VL) {
        vi position = lane + (int32_t)(start + i);
        vi seen = (position >= (int32_t)first) & (position <= (int32_t)last);
        vf s = select(seen, load(scores + i), splat(-__builtin_inff()));
        store(scores + i, s);
        highest = select(s > highest, s, highest); /* a NaN is passed over here, and makes the sum NaN below */
    }
    float top = highest[0];
    for (int i = 1; i < VL; i++) top = highest[i] > top ? highest[i] : top;
    for (int i = 0; i < TILE; i += LANES)
        UNROLL for (int part = 0; part < PARTS; part++) {
            vf weight = vector_exp(load(scores + i + part * VL) - top);
            store(scores + i + part * VL, weight);
            total[part] += weight;
        }
    *rescale = vector_exp(splat(*maximum - top))[0];
    *sum = *sum * *rescale + sum_lanes(total);
    *maximum = top;
}

/* Query rows first .. first + rows of a sequence: row r is token r / group, head kv_head * group + r % group. */
static void attend(const struct attention *a, int64_t sequence, int64_t kv_head, int64_t first_row, int64_t rows,
                   struct scratch *scratch) {
    int64_t dim = a->head_dim, padded = (dim + VL - 1) / VL * VL, group = a->heads / a->kv_heads;
    int64_t token = a->query_starts[sequence];
    const int32_t *table = a->block_tables + sequence * a->max_blocks;
    int64_t lowest[ROWS], highest[ROWS], begin = INT64_MAX, end = -1; /* keys that each row sees, and their union */
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = token + (first_row + r) / group, head = kv_head * group + (first_row + r) % group;
        const float *q = a->q + t * a->q_row + head * a->q_head;
        for (int64_t d = 0; d < dim; d++) scratch->q[r * dim + d] = q[d] * a->scale;
        memset(scratch->out + r * padded, 0, (size_t)padded * 4);
        highest[r] = a->positions[t];
        lowest[r] = a->window && highest[r] >= a->window ? highest[r] - a->window + 1 : 0;
        if (lowest[r] < begin) begin = lowest[r];
        if (highest[r] > end) end = highest[r];
        scratch->maximum[r] = -1e30f; /* finite: a tile a row does not see leaves it as it is */
        scratch->sum[r] = 0;
    }
    for (int64_t start = begin / TILE * TILE; start <= end; start += TILE) {
        struct tile tile = {.first = start < begin ? begin : start};
        tile.last = end < start + TILE ? end : start + TILE - 1;
        find_tile(a, table, kv_head, &tile, scratch);
        if (tile.last < end && rows <= TILE_ROWS) /* more rows have work enough to hide behind */
            prefetch(a, table, kv_head, start + TILE, end < start + 2 * TILE ? end : start + 2 * TILE - 1);
        for (int64_t g = 0; g < GROUPS; g += SCORE_GROUPS) {
            const float *keys[SCORE_GROUPS], *any = NULL; /* a group no row sees is scored as another and masked */
            for (int i = 0; i < SCORE_GROUPS; i++) any = tile.keys[g + i] ? tile.keys[g + i] : any;
            if (!any) continue;
            for (int i = 0; i < SCORE_GROUPS; i++) keys[i] = tile.keys[g + i] ? tile.keys[g + i] : any;
            for (int64_t r = 0; r < rows; r += TILE_ROWS)
                score_tile(rows - r < TILE_ROWS ? rows - r : TILE_ROWS, scratch->q + r * dim, dim, keys,
                           scratch->scores + r * TILE + g * LANES);
        }
        for (int64_t r = 0; r < rows; r++)
            soften(scratch->scores + r * TILE, start, lowest[r], highest[r], scratch->maximum + r, scratch->sum + r,
                   scratch->rescale + r);
        for (int64_t column = 0; column < padded; column += VALUE_VECTORS * VL) {
            int64_t vectors = (padded - column) / VL < VALUE_VECTORS ? (padded - column) / VL : VALUE_VECTORS;
            for (int64_t r = 0; r < rows; r += TILE_ROWS)
                weigh_tile(rows - r < TILE_ROWS ? rows - r : TILE_ROWS, vectors, scratch->scores + r * TILE,
                           scratch->rescale + r, tile.values, column, tile.first - start, tile.last - start,
                           scratch->out + r * padded + column, padded);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = token + (first_row + r) / group, head = kv_head * group + (first_row + r) % group;
        float *out = a->out + (t * a->heads + head) * dim;
        for (int64_t at = 0; at < dim; at += VL)
            store_part(out + at, load(scratch->out + r * padded + at) / scratch->sum[r], dim - at);
    }
}

/* Units first .. last of all; those of sequence s start at unit_starts[s], KV head by KV head. */
static void attend_items(const void *task, int64_t first, int64_t last) {
    const struct attention *a = task;
    struct scratch scratch;
    int64_t group = a->heads / a->kv_heads, sequence = 0;
    for (int64_t unit = first; unit < last; unit++) {
        while (a->unit_starts[sequence + 1] <= unit) sequence++;
        int64_t rows = (a->query_starts[sequence + 1] - a->query_starts[sequence]) * group;
        int64_t per_head = (rows + ROWS - 1) / ROWS, index = unit - a->unit_starts[sequence];
        int64_t first_row = index % per_head * ROWS;
        attend(a, sequence, index / per_head, first_row, rows - first_row < ROWS ? rows - first_row : ROWS, &scratch);
    }
}

/* q [tokens, heads, head_dim] (strides q_row, q_head) -> out [tokens, heads * head_dim]. head_dim <= 256. */
void quire_paged_attention(const float *q, const float *key_pages, const float *value_pages, float *out,
                           const int32_t *positions, const int32_t *query_starts, const int32_t *block_tables,
                           int64_t q_row, int64_t q_head, int64_t key_block, int64_t value_block, int64_t sequences,
                           int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size, int64_t max_blocks,
                           int64_t window, float scale, int threads) {
    int64_t unit_starts[sequences + 1], work = 0; /* multiply-adds */
    unit_starts[0] = 0;
    for (int64_t s = 0; s < sequences; s++) {
        int64_t tokens = query_starts[s + 1] - query_starts[s], seen = 0;
        unit_starts[s + 1] = unit_starts[s] + (tokens * (heads / kv_heads) + ROWS - 1) / ROWS * kv_heads;
        if (tokens) seen = positions[query_starts[s + 1] - 1] + 1;
        work += tokens * (window && window < seen ? window : seen) * heads * head_dim * 2;
    }
    struct attention a = {q, key_pages, value_pages, out, positions, query_starts, block_tables, unit_starts, q_row,
                          q_head, key_block, value_block, heads, kv_heads, head_dim, block_size, max_blocks, window,
                          scale};
    parallel(attend_items, &a, unit_starts[sequences], 1, work < PARALLEL_FROM ? 1 : threads);
}
