/* Norms, activations, rotation. Each row is computed by itself, in 16 lanes and a fixed tree (vector.h). */
#include "kernels.h"
#include "vector.h"

#define GRAIN 16384 /* least elements per thread: for fewer, waking a thread costs more than it saves */

INLINE int64_t rows_per_grain(int64_t row_elements) { return (GRAIN + row_elements - 1) / row_elements; }

struct norm {
    const float *x, *weight;
    float *residual, *y;
    int64_t features;
    float eps;
};

static void norm_items(const void *task, int64_t first, int64_t last) {
    const struct norm *n = task;
    for (int64_t row = first; row < last; row++) {
        const float *x = n->x + row * n->features;
        float *residual = n->residual ? n->residual + row * n->features : NULL, *y = n->y + row * n->features;
        vf squares[PARTS] = {0};
        for (int64_t i = 0; i < n->features; i += LANES)
            UNROLL for (int part = 0; part < PARTS; part++) {
                int64_t at = i + part * VL, left = n->features - at;
                if (left <= 0) break;
                vf v = load_part(x + at, left);
                if (residual) {
                    v = v + load_part(residual + at, left);
                    store_part(residual + at, v, left);
                }
                squares[part] = v * v + squares[part];
            }
        float mean = sum_lanes(squares) / (float)n->features;
        vf scale = splat(1.0f / __builtin_sqrtf(mean + n->eps));
        const float *input = residual ? residual : x;
        for (int64_t at = 0; at < n->features; at += VL) {
            int64_t left = n->features - at;
            store_part(y + at, load_part(input + at, left) * scale * load_part(n->weight + at, left), left);
        }
    }
}

/* y = rms_norm(x) * weight over rows of `features`; with a residual, residual += x first and its norm is returned. */
void quire_rms_norm(const float *x, float *residual, const float *weight, float *y, int64_t rows, int64_t features,
                    float eps, int threads) {
    struct norm n = {x, weight, residual, y, features, eps};
    parallel(norm_items, &n, rows, rows_per_grain(features), threads);
}

struct layer_norm {
    const float *x, *residual, *weight, *bias;
    float *y;
    int64_t features;
    float eps;
};

/* Keeps the first `count` lanes and sets the others to zero. */
INLINE vf keep_part(vf v, int64_t count) {
    float lanes[VL];
    store(lanes, v);
    return load_part(lanes, count);
}

static void layer_norm_items(const void *task, int64_t first, int64_t last) {
    const struct layer_norm *n = task;
    for (int64_t row = first; row < last; row++) {
        const float *x = n->x + row * n->features, *residual = n->residual ? n->residual + row * n->features : NULL;
        float *y = n->y + row * n->features; /* first holds the sum x + residual */
        vf sums[PARTS] = {0}, squares[PARTS] = {0};
        for (int64_t i = 0; i < n->features; i += LANES)
            UNROLL for (int part = 0; part < PARTS; part++) {
                int64_t at = i + part * VL, left = n->features - at;
                if (left <= 0) break;
                vf v = load_part(x + at, left);
                if (residual) v = v + load_part(residual + at, left);
                store_part(y + at, v, left);
                sums[part] += v;
            }
        vf mean = splat(sum_lanes(sums) / (float)n->features);
        for (int64_t i = 0; i < n->features; i += LANES)
            UNROLL for (int part = 0; part < PARTS; part++) {
                int64_t at = i + part * VL, left = n->features - at;
                if (left <= 0) break;
                vf v = keep_part(load_part(y + at, left) - mean, left);
                squares[part] = v * v + squares[part];
            }
        vf scale = splat(1.0f / __builtin_sqrtf(sum_lanes(squares) / (float)n->features + n->eps));
        for (int64_t at = 0; at < n->features; at += VL) {
            int64_t left = n->features - at;
            vf v = (load_part(y + at, left) - mean) * scale;
            store_part(y + at, v * load_part(n->weight + at, left) + load_part(n->bias + at, left), left);
        }
    }
}

/* y = layer_norm(x + residual) * weight + bias over rows of `features`; residual may be null. */
void quire_layer_norm(const float *x, const float *residual, const float *weight, const float *bias, float *y,
                      int64_t rows, int64_t features, float eps, int threads) {
    struct layer_norm n = {x, residual, weight, bias, y, features, eps};
    parallel(layer_norm_items, &n, rows, rows_per_grain(2 * features), threads);
}

struct gelu {
    const float *x;
    float *y;
    int64_t features;
    int tanh;
};

/* Distribution function of the normal distribution. It uses 1 - erf(z) = t (a1 + t (a2 + ...)) e^(-z^2) with t = 1 /
 * (1 + p z), within 1.5e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26). */
INLINE vf normal_share(vf x) {
    vf z = choose(x < 0.0f, -x, x) * 0.70710678118654752f;
    vf t = 1.0f / (z * 0.3275911f + 1.0f);
    vf p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    vf square = z * z;
    vf above = p * t * vector_exp(-square) * 0.5f;
    ROUNDED(above);
    return choose(x < 0.0f, above, 1.0f - above);
}

static void gelu_items(const void *task, int64_t first, int64_t last) {
    const struct gelu *g = task;
    for (int64_t row = first; row < last; row++) {
        const float *x = g->x + row * g->features;
        float *y = g->y + row * g->features;
        for (int64_t at = 0; at < g->features; at += VL) {
            int64_t left = g->features - at;
            vf v = load_part(x + at, left);
            if (g->tanh) {
                vf square = v * v;
                vf slope = square * 0.044715f + 1.0f;
                vf w = v * slope * -1.5957691216057308f; /* -2 sqrt(2 / pi) */
                store_part(y + at, v / (vector_exp(w) + 1.0f), left);
            } else {
                store_part(y + at, v * normal_share(v), left);
            }
        }
    }
}

/* y = gelu(x), [rows, features] both; by tanh's approximation or by erf. */
void quire_gelu(const float *x, float *y, int64_t rows, int64_t features, int tanh, int threads) {
    struct gelu g = {x, y, features, tanh};
    parallel(gelu_items, &g, rows, rows_per_grain(4 * features), threads);
}

struct activation {
    const float *gate_up;
    float *y;
    int64_t features;
};

static void silu_items(const void *task, int64_t first, int64_t last) {
    const struct activation *a = task;
    for (int64_t row = first; row < last; row++) {
        const float *gate = a->gate_up + row * 2 * a->features, *up = gate + a->features;
        float *y = a->y + row * a->features;
        for (int64_t at = 0; at < a->features; at += VL) {
            int64_t left = a->features - at;
            vf x = load_part(gate + at, left);
            store_part(y + at, x / (vector_exp(-x) + 1.0f) * load_part(up + at, left), left);
        }
    }
}

/* gate_up [rows, 2 * features] -> y [rows, features] = silu(gate) * up. */
void quire_silu_mul(const float *gate_up, float *y, int64_t rows, int64_t features, int threads) {
    struct activation a = {gate_up, y, features};
    parallel(silu_items, &a, rows, rows_per_grain(4 * features), threads);
}

struct rope {
    float *q, *k;
    const float *v, *cos_sin;
    float *key_pages, *value_pages;
    const int32_t *positions, *query_starts, *block_tables;
    int64_t q_row, q_head, k_row, k_head, v_row, v_head, key_block, value_block; /* strides in floats */
    int64_t heads, kv_heads, head_dim, block_size, max_blocks;
};

INLINE void rotate(float *head, const float *cos_sin, int64_t half) {
    for (int64_t at = 0; at < half; at += VL) {
        int64_t left = half - at;
        vf cosine = load_part(cos_sin + at, left), sine = load_part(cos_sin + half + at, left);
        vf low = load_part(head + at, left), high = load_part(head + half + at, left);
        vf high_sine = high * sine, low_sine = low * sine;
        ROUNDED(high_sine);
        ROUNDED(low_sine);
        store_part(head + at, low * cosine - high_sine, left);
        store_part(head + half + at, high * cosine + low_sine, left);
    }
}

static void rope_items(const void *task, int64_t first, int64_t last) {
    const struct rope *p = task;
    int64_t dim = p->head_dim, sequence = 0;
    int64_t group = p->block_size & -p->block_size; /* keys that are interleaved in a page, see attention.c */
    if (group > LANES) group = LANES;
    for (int64_t t = first; t < last; t++) {
        while (p->query_starts[sequence + 1] <= t) sequence++;
        int64_t position = p->positions[t], slot = position % p->block_size;
        int64_t block = p->block_tables[sequence * p->max_blocks + position / p->block_size];
        const float *cos_sin = p->cos_sin + position * dim;
        for (int64_t h = 0; h < p->heads; h++) rotate(p->q + t * p->q_row + h * p->q_head, cos_sin, dim / 2);
        for (int64_t h = 0; h < p->kv_heads; h++) {
            float *k = p->k + t * p->k_row + h * p->k_head;
            rotate(k, cos_sin, dim / 2);
            int64_t page = h * p->block_size * dim;
            float *key = p->key_pages + block * p->key_block + page + slot / group * group * dim + slot % group;
            for (int64_t d = 0; d < dim; d++) key[d * group] = k[d];
            memcpy(p->value_pages + block * p->value_block + page + slot * dim, p->v + t * p->v_row + h * p->v_head,
                   (size_t)dim * 4);
        }
    }
}

/* Rotates q and k in place and writes k and v to their pages; see struct rope for the arguments. */
void quire_rope_and_write_kv(float *q, float *k, const float *v, const float *cos_sin, const int32_t *positions,
                             const int32_t *query_starts, const int32_t *block_tables, float *key_pages,
                             float *value_pages, int64_t q_row, int64_t q_head, int64_t k_row, int64_t k_head,
                             int64_t v_row, int64_t v_head, int64_t key_block, int64_t value_block, int64_t sequences,
                             int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size, int64_t max_blocks,
                             int threads) {
    struct rope p = {q, k, v, cos_sin, key_pages, value_pages, positions, query_starts, block_tables, q_row, q_head,
                     k_row, k_head, v_row, v_head, key_block, value_block, heads, kv_heads, head_dim, block_size,
                     max_blocks};
    parallel(rope_items, &p, query_starts[sequences], rows_per_grain((heads + 2 * kv_heads) * head_dim), threads);
}
