/* Causal attention directly over the block tables, for prefill chunks and decodes (online softmax: Milakov and
 * Gimelshein, 2018; paged KV: Kwon et al., 2023).
 *
 * A unit of work is up to ROWS query rows (tokens x heads that share a KV head) of one sequence. Keys are divided into
 * splits of SPLIT keys, and these into tiles of TILE keys, both aligned to absolute positions. Each row has a fixed
 * order of operations. A score is one chain of multiply-adds over the head dimension. A tile's sum runs in 16 lanes
 * and a fixed tree. An output element is one chain over a split's keys in order, rescaled at tile borders. Splits are
 * merged in order. Keys that a row must not see have weight exactly zero, and so have tiles and splits outside its
 * window. A row's bits so depend on its position alone, not on the chunk, the rows beside it, the block size or the
 * thread. If one unit would keep other threads waiting, several threads compute its splits (Flash-Decoding: Dao et
 * al., 2023), and the last of them merges.
 *
 * Key pages hold groups of 16 keys (if 16 does not divide the block size: its largest power of two), transposed as
 * [group][key_dim][key], so that 16 scores are one vector. Value pages are [slot][value_dim]. Without value pages, the
 * values are the first value_dim elements of the keys, as in a latent cache (DeepSeek-V2, 2.1).
 */
#include "kernels.h"
#include "vector.h"

#include <stdlib.h>

#define TILE 64                         /* keys */
#define SPLIT (4 * TILE)                /* keys */
#define GROUPS (TILE / LANES)           /* of 16 keys */
#define ROWS 24                         /* query rows in a unit of work */
#define ROW_LANES (ROWS + LANES)        /* ROWS, padded so that whole vectors fit */
#define MAX_DIM 576
#define PARALLEL_FROM 400000            /* multiply-adds; below, waking another thread costs more than it saves */
#define SCORE_GROUPS (VL == 16 ? 4 : 1) /* register tile: TILE_ROWS rows by this many groups of keys, */
#define SCORE_VECTORS (SCORE_GROUPS * PARTS)
#if VL == 4 && !defined(__aarch64__)
#define TILE_ROWS 3
#else
#define TILE_ROWS 6
#endif
#define VALUE_VECTORS (VL == 8 ? 2 : 4) /* or by this many vectors of an output */

/* One call, and how its work is divided. */
struct attention {
    struct paged_attention call;
    const struct share *shares; /* [sequences + 1] */
    float *partials;            /* [units in splits][splits][ROWS][partial_width] */
    int32_t *missing;           /* [units in splits], atomic: splits that are not computed yet */
};

/* The work items of one sequence. */
struct share {
    int64_t first_item;            /* an item is a unit, or one split of a unit */
    int64_t first_split, splits;   /* splits of each unit, if they are the items; 0: a unit is one item */
    int64_t first_unit, first_part; /* indices of its first unit and split in `missing` and `partials` */
};

/* The keys of one tile that some row of the unit sees, and their addresses. */
struct tile {
    int64_t first, last;       /* absolute positions, inclusive; the tile starts at first / TILE * TILE */
    const float *keys[GROUPS]; /* [key_dim][16] each; null if no row sees the group */
    const float *values[TILE];
};

struct scratch {
    _Alignas(64) float q[ROWS * MAX_DIM], out[ROWS * MAX_DIM], scores[ROWS * TILE];
    _Alignas(64) float keys[TILE * MAX_DIM], values[TILE * MAX_DIM]; /* copies of pages that cannot be read in place */
    float maximum[ROW_LANES], sum[ROWS], rescale[ROW_LANES];
    _Alignas(64) float merged[ROWS * MAX_DIM];
    float merged_maximum[ROWS], merged_sum[ROWS];
    int64_t position[ROWS], lowest[ROWS], highest[ROWS]; /* of each row: its own, and the first and last key it sees */
};

/* Query rows first .. first + rows of a sequence: row r is token r / group, head kv_head * group + r % group. */
struct unit {
    int64_t sequence, kv_head, first, rows;
    int64_t begin, end; /* first and last key that some row sees */
};

static int64_t padded_dim(const struct paged_attention *a) { return (a->value_dim + VL - 1) / VL * VL; }

/* Copies the tile's values out of its transposed keys. */
static void values_of_keys(const struct paged_attention *a, struct tile *tile, struct scratch *scratch) {
    int64_t start = tile->first / TILE * TILE, padded = padded_dim(a);
    for (int64_t position = tile->first; position <= tile->last; position++) {
        int64_t at = position - start;
        const float *key = tile->keys[at / LANES] + at % LANES;
        float *copy = scratch->values + at * padded;
        for (int64_t d = 0; d < a->value_dim; d++) copy[d] = key[d * LANES];
        memset(copy + a->value_dim, 0, (size_t)(padded - a->value_dim) * 4);
        tile->values[at] = copy;
    }
}

static void find_tile(const struct paged_attention *a, const int32_t *table, int64_t kv_head, struct tile *tile,
                      struct scratch *scratch) {
    int64_t start = tile->first / TILE * TILE, size = a->block_size, dim = a->key_dim;
    int64_t value_dim = a->value_dim, padded = padded_dim(a), group = size & -size;
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
    if (!a->value_pages) {
        values_of_keys(a, tile, scratch);
        return;
    }
    for (int64_t position = tile->first; position <= tile->last;) {
        int64_t slot = position % size, next = position - slot + size;
        const float *value =
            a->value_pages + table[position / size] * a->value_block + (kv_head * size + slot) * value_dim;
        for (; position < next && position <= tile->last; position++, value += value_dim) {
            tile->values[position - start] = value;
            if (padded == value_dim) continue;
            float *copy = scratch->values + (position - start) * padded; /* whole vectors are read below */
            memcpy(copy, value, (size_t)value_dim * 4);
            memset(copy + value_dim, 0, (size_t)(padded - value_dim) * 4);
            tile->values[position - start] = copy;
        }
    }
}

/* Prefetches the keys and values of positions first .. last. The processor's own prefetcher follows consecutive
 * addresses, and pages are not consecutive. */
static void prefetch(const struct paged_attention *a, const int32_t *table, int64_t kv_head, int64_t first,
                     int64_t last) {
    int64_t size = a->block_size;
    for (int64_t position = first; position <= last;) {
        int64_t slot = position % size, count = size - slot < last - position + 1 ? size - slot : last - position + 1;
        int64_t in_page = kv_head * size + slot, block = table[position / size];
        const float *keys = a->key_pages + block * a->key_block + in_page * a->key_dim;
        for (int64_t i = 0; i < count * a->key_dim; i += 16) __builtin_prefetch(keys + i, 0, 2);
        if (a->value_pages) {
            const float *values = a->value_pages + block * a->value_block + in_page * a->value_dim;
            for (int64_t i = 0; i < count * a->value_dim; i += 16) __builtin_prefetch(values + i, 0, 2);
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
#define AT_MOST(n) ((n) <= TILE_ROWS ? (n) : 1) /* the 1 never runs; it only has to compile */

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

/* Sets scores of the tile at `start` to -infinity outside of first .. last. */
INLINE void hide(float *scores, int64_t start, int64_t first, int64_t last) {
    static const int32_t count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vi lane;
    memcpy(&lane, count, sizeof lane);
    for (int i = 0; i < TILE; i += VL) {
        vi position = lane + (int32_t)(start + i);
        vi seen = (position >= (int32_t)first) & (position <= (int32_t)last);
        store(scores + i, choose(seen, load(scores + i), splat(-__builtin_inff())));
    }
}

INLINE float highest_of(const float *scores) {
    vf highest[PARTS];
    UNROLL for (int part = 0; part < PARTS; part++) highest[part] = load(scores + part * VL);
    for (int i = LANES; i < TILE; i += LANES)
        UNROLL for (int part = 0; part < PARTS; part++) {
            vf s = load(scores + i + part * VL);
            highest[part] = choose(s > highest[part], s, highest[part]);
        }
    float lane[LANES];
    UNROLL for (int part = 0; part < PARTS; part++) store(lane + part * VL, highest[part]);
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lane[i] = lane[i + width] > lane[i] ? lane[i + width] : lane[i];
    return lane[0];
}

static int64_t token_of(const struct paged_attention *a, const struct unit *u, int64_t row) {
    return a->query_starts[u->sequence] + (u->first + row) / (a->heads / a->kv_heads);
}

static int64_t head_of(const struct paged_attention *a, const struct unit *u, int64_t row) {
    int64_t group = a->heads / a->kv_heads;
    return u->kv_head * group + (u->first + row) % group;
}

/* score = cap * tanh(score / cap) (Gemma 2, section 2) */
INLINE void cap_scores(float *scores, float cap) {
    for (int i = 0; i < TILE; i += VL) store(scores + i, vector_tanh(load(scores + i) / cap) * cap);
}

/* Adds slope * (key position - query position) (ALiBi: Press et al., 2022, section 3). `distance`: that of key 0. */
INLINE void slope_scores(float *scores, float slope, int64_t distance) {
    static const float count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (int i = 0; i < TILE; i += VL)
        store(scores + i, (load(count + i % LANES) + (float)(distance + i - i % LANES)) * slope + load(scores + i));
}

/* Adds the bias of each key's distance from the query. `distance`: that of key 0. */
INLINE void bias_scores(float *scores, const float *bias, int64_t farthest, int64_t distance) {
    for (int i = 0; i < TILE; i++) {
        int64_t d = distance + i;
        d = d < -farthest ? -farthest : d > farthest ? farthest : d;
        scores[i] += bias[farthest + d];
    }
}

/* Turns the scores of all rows into weights, and updates the running maxima and sums. */
static void soften(const struct paged_attention *a, const struct unit *u, struct scratch *scratch, int64_t start) {
    int64_t rows = u->rows;
    float top[ROW_LANES];
    for (int64_t r = 0; r < rows; r++) {
        float *scores = scratch->scores + r * TILE;
        if (a->soft_cap > 0) cap_scores(scores, a->soft_cap);
        if (a->slopes) slope_scores(scores, a->slopes[head_of(a, u, r)], start - scratch->position[r]);
        if (a->distance_bias)
            bias_scores(scores, a->distance_bias + head_of(a, u, r) * (2 * a->farthest + 1), a->farthest,
                        start - scratch->position[r]);
        if (start < scratch->lowest[r] || start + TILE - 1 > scratch->highest[r])
            hide(scores, start, scratch->lowest[r], scratch->highest[r]);
        float highest = highest_of(scores); /* may skip a NaN, which then makes the sum NaN below */
        top[r] = highest > scratch->maximum[r] ? highest : scratch->maximum[r];
    }
    for (int64_t r = 0; r < rows; r += VL)
        store(scratch->rescale + r, vector_exp(load(scratch->maximum + r) - load(top + r)));
    for (int64_t r = 0; r < rows; r++) {
        float *scores = scratch->scores + r * TILE;
        vf total[PARTS] = {0};
        for (int i = 0; i < TILE; i += LANES)
            UNROLL for (int part = 0; part < PARTS; part++) {
                vf weight = vector_exp(load(scores + i + part * VL) - top[r]);
                store(scores + i + part * VL, weight);
                total[part] += weight;
            }
        scratch->sum[r] = scratch->sum[r] * scratch->rescale[r] + sum_lanes(total);
        scratch->maximum[r] = top[r];
    }
}

/* Returns the first key that a query at `position` sees. */
static int64_t first_seen(const struct paged_attention *a, int64_t position) {
    if (a->chunk) return position / a->chunk * a->chunk;
    return a->window && position >= a->window ? position - a->window + 1 : 0;
}

/* Returns unit `index` of a sequence. Scales its queries, and finds the keys that its rows see. */
static struct unit open_unit(const struct paged_attention *a, int64_t sequence, int64_t index, struct scratch *scratch) {
    int64_t dim = a->key_dim, group = a->heads / a->kv_heads;
    int64_t all = (a->query_starts[sequence + 1] - a->query_starts[sequence]) * group, per_head = (all + ROWS - 1) / ROWS;
    struct unit u = {sequence, index / per_head, index % per_head * ROWS, ROWS, INT64_MAX, -1};
    if (all - u.first < ROWS) u.rows = all - u.first;
    for (int64_t r = 0; r < u.rows; r++) {
        int64_t t = token_of(a, &u, r);
        const float *q = a->q + t * a->q_row + head_of(a, &u, r) * a->q_head;
        for (int64_t d = 0; d < dim; d++) scratch->q[r * dim + d] = q[d] * a->scale;
        int64_t position = a->positions[t], first = first_seen(a, position), last = position;
        if (a->lookahead) {
            int64_t end = a->positions[a->query_starts[sequence + 1] - 1];
            last = position + a->lookahead < end ? position + a->lookahead : end;
        }
        scratch->position[r] = position;
        scratch->lowest[r] = first;
        scratch->highest[r] = last;
        if (first < u.begin) u.begin = first;
        if (last > u.end) u.end = last;
    }
    return u;
}

/* Computes one split of the unit's keys into scratch: out (not yet divided by the sum), maximum and sum. */
static void attend(const struct paged_attention *a, const struct unit *u, int64_t split, struct scratch *scratch) {
    int64_t dim = a->key_dim, padded = padded_dim(a), rows = u->rows;
    const int32_t *table = a->block_tables + u->sequence * a->max_blocks;
    int64_t begin = split * SPLIT < u->begin ? u->begin : split * SPLIT;
    int64_t end = split * SPLIT + SPLIT - 1 < u->end ? split * SPLIT + SPLIT - 1 : u->end;
    memset(scratch->out, 0, (size_t)(rows * padded) * 4);
    for (int64_t r = 0; r < rows; r++) {
        scratch->maximum[r] = -1e30f; /* finite, so that a tile that the row does not see changes nothing */
        scratch->sum[r] = 0;
    }
    for (int64_t start = begin / TILE * TILE; start <= end; start += TILE) {
        struct tile tile = {.first = start < begin ? begin : start};
        tile.last = end < start + TILE ? end : start + TILE - 1;
        find_tile(a, table, u->kv_head, &tile, scratch);
        if (tile.last < u->end && rows <= TILE_ROWS) /* with more rows, the arithmetic hides the latency */
            prefetch(a, table, u->kv_head, start + TILE, u->end < start + 2 * TILE ? u->end : start + 2 * TILE - 1);
        for (int64_t g = 0; g < GROUPS; g += SCORE_GROUPS) {
            const float *keys[SCORE_GROUPS], *any = NULL; /* an unseen group repeats another and is masked below */
            for (int i = 0; i < SCORE_GROUPS; i++) any = tile.keys[g + i] ? tile.keys[g + i] : any;
            if (!any) continue;
            for (int i = 0; i < SCORE_GROUPS; i++) keys[i] = tile.keys[g + i] ? tile.keys[g + i] : any;
            for (int64_t r = 0; r < rows; r += TILE_ROWS)
                score_tile(rows - r < TILE_ROWS ? rows - r : TILE_ROWS, scratch->q + r * dim, dim, keys,
                           scratch->scores + r * TILE + g * LANES);
        }
        soften(a, u, scratch, start);
        for (int64_t column = 0; column < padded; column += VALUE_VECTORS * VL) {
            int64_t vectors = (padded - column) / VL < VALUE_VECTORS ? (padded - column) / VL : VALUE_VECTORS;
            for (int64_t r = 0; r < rows; r += TILE_ROWS)
                weigh_tile(rows - r < TILE_ROWS ? rows - r : TILE_ROWS, vectors, scratch->scores + r * TILE,
                           scratch->rescale + r, tile.values, column, tile.first - start, tile.last - start,
                           scratch->out + r * padded + column, padded);
        }
    }
}

/* A sink is a score without a key: it takes weight and adds no value (gpt-oss model card, section 2.2). */
static void start_merge(const struct paged_attention *a, const struct unit *u, struct scratch *scratch) {
    memset(scratch->merged, 0, (size_t)(u->rows * padded_dim(a)) * 4);
    for (int64_t r = 0; r < u->rows; r++) {
        scratch->merged_maximum[r] = a->sinks ? a->sinks[head_of(a, u, r)] : -1e30f;
        scratch->merged_sum[r] = a->sinks ? 1.0f : 0.0f;
    }
}

/* Merges the next split. A split that a row does not see leaves the row's bits unchanged. */
static void merge(const struct paged_attention *a, const struct unit *u, const float *out, const float *maximum,
                  const float *sum, struct scratch *scratch) {
    int64_t padded = padded_dim(a);
    for (int64_t r = 0; r < u->rows; r++) {
        float *top = scratch->merged_maximum + r, highest = maximum[r] > *top ? maximum[r] : *top;
        float before = vector_exp(splat(*top - highest))[0], now = vector_exp(splat(maximum[r] - highest))[0];
        float old_sum = scratch->merged_sum[r] * before, new_sum = sum[r] * now;
        ROUNDED(old_sum);
        ROUNDED(new_sum);
        *top = highest;
        scratch->merged_sum[r] = old_sum + new_sum;
        float *total = scratch->merged + r * padded;
        for (int64_t at = 0; at < padded; at += VL) {
            vf old = load(total + at) * before, new = load(out + r * padded + at) * now;
            ROUNDED(old);
            ROUNDED(new);
            store(total + at, old + new);
        }
    }
}

static void write_out(const struct paged_attention *a, const struct unit *u, const struct scratch *scratch) {
    int64_t dim = a->value_dim, padded = padded_dim(a);
    for (int64_t r = 0; r < u->rows; r++) {
        float *out = a->out + (token_of(a, u, r) * a->heads + head_of(a, u, r)) * dim;
        for (int64_t at = 0; at < dim; at += VL)
            store_part(out + at, load(scratch->merged + r * padded + at) / scratch->merged_sum[r], dim - at);
    }
}

static void attend_unit(const struct paged_attention *a, int64_t sequence, int64_t index, struct scratch *scratch) {
    struct unit u = open_unit(a, sequence, index, scratch);
    start_merge(a, &u, scratch);
    for (int64_t split = u.begin / SPLIT; split <= u.end / SPLIT; split++) {
        attend(a, &u, split, scratch);
        merge(a, &u, scratch->out, scratch->maximum, scratch->sum, scratch);
    }
    write_out(a, &u, scratch);
}

static int64_t partial_width(const struct paged_attention *a) { return ROWS * (padded_dim(a) + 2); }

/* Computes one split of a unit whose other splits are separate items. A split that no row sees is empty. */
static void attend_part(const struct attention *all, int64_t sequence, int64_t index, int64_t split,
                        struct scratch *scratch) {
    const struct paged_attention *a = &all->call;
    const struct share *share = all->shares + sequence;
    int64_t padded = padded_dim(a), splits = share->splits;
    struct unit u = open_unit(a, sequence, index, scratch);
    float *parts = all->partials + (share->first_part + index * splits) * partial_width(a);
    float *part = parts + split * partial_width(a);
    attend(a, &u, share->first_split + split, scratch);
    memcpy(part, scratch->out, (size_t)(u.rows * padded) * 4);
    memcpy(part + ROWS * padded, scratch->maximum, ROWS * sizeof(float));
    memcpy(part + ROWS * padded + ROWS, scratch->sum, ROWS * sizeof(float));
    if (__atomic_sub_fetch(all->missing + share->first_unit + index, 1, __ATOMIC_ACQ_REL)) return;
    start_merge(a, &u, scratch);
    for (int64_t s = 0; s < splits; s++) {
        part = parts + s * partial_width(a);
        merge(a, &u, part, part + ROWS * padded, part + ROWS * padded + ROWS, scratch);
    }
    write_out(a, &u, scratch);
}

/* Computes items first .. last, in the order of sequences, then KV heads, then splits. */
static void attend_items(const void *task, int64_t first, int64_t last) {
    const struct attention *a = task;
    struct scratch scratch;
    int64_t sequence = 0;
    for (int64_t item = first; item < last; item++) {
        while (a->shares[sequence + 1].first_item <= item) sequence++;
        int64_t index = item - a->shares[sequence].first_item, splits = a->shares[sequence].splits;
        if (splits)
            attend_part(a, sequence, index / splits, index % splits, &scratch);
        else
            attend_unit(&a->call, sequence, index, &scratch);
    }
}

/* Returns about how many pairs of query token and key a sequence has. */
static int64_t count_pairs(const struct paged_attention *a, int64_t sequence) {
    int64_t first = a->query_starts[sequence], tokens = a->query_starts[sequence + 1] - first;
    if (!tokens) return 0;
    int64_t seen = a->positions[first + tokens - 1] + 1, most = seen;
    if (a->chunk || a->window) most = (a->chunk ? a->chunk : a->window) + a->lookahead;
    return tokens * (most < seen ? most : seen);
}

/* Divides the work into items for `threads` threads. Returns the totals of all sequences. */
static struct share share_out(const struct paged_attention *a, int64_t sequences, int64_t pairs, int threads,
                              struct share *shares) {
    struct share next = {0};
    for (int64_t s = 0; s < sequences; s++) {
        int64_t first = a->query_starts[s], tokens = a->query_starts[s + 1] - first;
        int64_t per_head = (tokens * (a->heads / a->kv_heads) + ROWS - 1) / ROWS, units = per_head * a->kv_heads;
        shares[s] = next;
        if (!units) continue;
        /* A unit of more than an eighth of a thread's share could end long after all others, so it is split. */
        int64_t last = a->positions[first + tokens - 1], per_unit = count_pairs(a, s) / per_head;
        if (threads > 1 && per_unit * threads * 8 > pairs * a->kv_heads) {
            int64_t lowest = first_seen(a, a->positions[first]);
            shares[s].first_split = lowest / SPLIT;
            shares[s].splits = last / SPLIT - lowest / SPLIT + 1;
            next.first_unit += units;
            next.first_part += units * shares[s].splits;
        }
        next.first_item += units * (shares[s].splits ? shares[s].splits : 1);
    }
    return shares[sequences] = next;
}

/* See struct paged_attention in kernels.h. */
void quire_paged_attention(const struct paged_attention *call) {
    int64_t sequences = call->sequences, pairs = 0;
    int threads = call->threads;
    struct share shares[sequences + 1];
    struct attention a = {*call, shares, NULL, NULL};
    for (int64_t s = 0; s < sequences; s++) pairs += count_pairs(call, s);
    if (pairs * call->heads * (call->key_dim + call->value_dim) < PARALLEL_FROM) threads = 1;
    struct share all = share_out(call, sequences, pairs, threads, shares);
    if (all.first_part) {
        a.partials = malloc((size_t)(all.first_part * partial_width(call)) * sizeof *a.partials);
        a.missing = malloc((size_t)all.first_unit * sizeof *a.missing);
        if (!a.partials || !a.missing) all = share_out(call, sequences, pairs, 1, shares);
        for (int64_t s = 0; s < sequences && all.first_part; s++)
            for (int64_t unit = shares[s].first_unit; unit < shares[s + 1].first_unit; unit++)
                a.missing[unit] = (int32_t)shares[s].splits;
    }
    parallel(attend_items, &a, all.first_item, 1, threads);
    free(a.partials);
    free(a.missing);
}
