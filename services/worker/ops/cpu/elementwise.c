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

/* The numbers of interface.Activation. */
enum { SILU, GELU, GELU_TANH, QUICK_GELU, RELU, RELU_SQUARED, CLAMPED_SILU, SIGMOID };

INLINE vf activate(vf x, int kind) {
    vf positive = choose(x > 0.0f, x, choose(x == x, (vf){0}, x)); /* NaN stays NaN */
    switch (kind) {
    case SILU: return x / (vector_exp(-x) + 1.0f);
    case GELU: return x * normal_share(x);
    case QUICK_GELU: return x / (vector_exp(x * -1.702f) + 1.0f);
    case RELU: return positive;
    case SIGMOID: return 1.0f / (vector_exp(-x) + 1.0f);
    case RELU_SQUARED: return positive * positive;
    default: {
        vf square = x * x;
        vf slope = square * 0.044715f + 1.0f;
        vf w = x * slope * -1.5957691216057308f; /* -2 sqrt(2 / pi) */
        return x / (vector_exp(w) + 1.0f);
    }
    }
}

struct activation {
    const float *x; /* [rows, features], or gate and up: [rows, 2 * features] */
    float *y;
    int64_t features;
    int kind;
};

static void activate_items(const void *task, int64_t first, int64_t last) {
    const struct activation *a = task;
    for (int64_t row = first; row < last; row++) {
        const float *x = a->x + row * a->features;
        float *y = a->y + row * a->features;
        for (int64_t at = 0; at < a->features; at += VL) {
            int64_t left = a->features - at;
            store_part(y + at, activate(load_part(x + at, left), a->kind), left);
        }
    }
}

/* y = activation(x), [rows, features] both. */
void quire_activate(const float *x, float *y, int64_t rows, int64_t features, int kind, int threads) {
    struct activation a = {x, y, features, kind};
    parallel(activate_items, &a, rows, rows_per_grain(4 * features), threads);
}

struct soft_cap {
    const float *x;
    float *y;
    int64_t features;
    float cap;
};

static void soft_cap_items(const void *task, int64_t first, int64_t last) {
    const struct soft_cap *s = task;
    for (int64_t row = first; row < last; row++) {
        const float *x = s->x + row * s->features;
        float *y = s->y + row * s->features;
        for (int64_t at = 0; at < s->features; at += VL) {
            int64_t left = s->features - at;
            store_part(y + at, vector_tanh(load_part(x + at, left) / s->cap) * s->cap, left);
        }
    }
}

/* y = cap * tanh(x / cap), [rows, features] both. */
void quire_soft_cap(const float *x, float *y, int64_t rows, int64_t features, float cap, int threads) {
    struct soft_cap s = {x, y, features, cap};
    parallel(soft_cap_items, &s, rows, rows_per_grain(4 * features), threads);
}

/* gpt-oss: gate * sigmoid(1.702 * gate) * (up + 1), with gate at most 7 and up within -7 .. 7. */
INLINE vf clamped_silu(vf gate, vf up) {
    gate = choose(gate > 7.0f, splat(7.0f), gate);
    up = choose(up > 7.0f, splat(7.0f), choose(up < -7.0f, splat(-7.0f), up));
    return gate / (vector_exp(gate * -1.702f) + 1.0f) * (up + 1.0f);
}

static void gated_items(const void *task, int64_t first, int64_t last) {
    const struct activation *a = task;
    for (int64_t row = first; row < last; row++) {
        const float *gates = a->x + row * 2 * a->features, *ups = gates + a->features;
        float *y = a->y + row * a->features;
        for (int64_t at = 0; at < a->features; at += VL) {
            int64_t left = a->features - at;
            vf gate = load_part(gates + at, left), up = load_part(ups + at, left);
            vf value = a->kind == CLAMPED_SILU ? clamped_silu(gate, up) : activate(gate, a->kind) * up;
            store_part(y + at, value, left);
        }
    }
}

/* gate_up [rows, 2 * features] -> y [rows, features] = activation(gate) * up. */
void quire_gated_activation(const float *gate_up, float *y, int64_t rows, int64_t features, int kind, int threads) {
    struct activation a = {gate_up, y, features, kind};
    parallel(gated_items, &a, rows, rows_per_grain(4 * features), threads);
}

/* Rotates pairs (0, half), (1, half + 1), ... */
INLINE void rotate_halves(float *head, const float *cos_sin, int64_t half) {
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

/* Rotates pairs (0, 1), (2, 3), ... */
INLINE void rotate_neighbours(float *head, const float *cos_sin, int64_t half) {
    for (int64_t at = 0; at < half; at += VL) {
        int64_t count = half - at < VL ? half - at : VL;
        float even[VL] = {0}, odd[VL] = {0};
        for (int64_t i = 0; i < count; i++) even[i] = head[2 * (at + i)], odd[i] = head[2 * (at + i) + 1];
        vf cosine = load_part(cos_sin + at, count), sine = load_part(cos_sin + half + at, count);
        vf low = load(even), high = load(odd), high_sine = high * sine, low_sine = low * sine;
        ROUNDED(high_sine);
        ROUNDED(low_sine);
        store(even, low * cosine - high_sine);
        store(odd, high * cosine + low_sine);
        for (int64_t i = 0; i < count; i++) head[2 * (at + i)] = even[i], head[2 * (at + i) + 1] = odd[i];
    }
}

static void rotate(const struct heads *p, float *head, const float *cos_sin) {
    if (p->interleaved)
        rotate_neighbours(head, cos_sin, p->rotary_dim / 2);
    else
        rotate_halves(head, cos_sin, p->rotary_dim / 2);
}

static void head_items(const void *task, int64_t first, int64_t last) {
    const struct heads *p = task;
    int64_t dim = p->key_dim, size = p->block_size, sequence = 0;
    int64_t group = size & -size; /* keys that are interleaved in a page, see attention.c */
    if (group > LANES) group = LANES;
    for (int64_t t = first; t < last; t++) {
        int64_t position = p->positions[t];
        const float *cos_sin = p->cos_sin ? p->cos_sin + position * p->rotary_dim : NULL;
        for (int64_t h = 0; p->q && cos_sin && h < p->heads; h++) rotate(p, p->q + t * p->q_row + h * p->q_head, cos_sin);
        for (int64_t h = 0; p->k && cos_sin && h < p->kv_heads; h++)
            rotate(p, p->k + t * p->k_row + h * p->k_head, cos_sin);
        if (!p->key_pages) continue;
        while (p->query_starts[sequence + 1] <= t) sequence++;
        int64_t slot = position % size, block = p->block_tables[sequence * p->max_blocks + position / size];
        for (int64_t h = 0; h < p->kv_heads; h++) {
            const float *k = p->k + t * p->k_row + h * p->k_head;
            float *key = p->key_pages + block * p->key_block + h * size * dim + slot / group * group * dim + slot % group;
            for (int64_t d = 0; d < dim; d++) key[d * group] = k[d];
            if (!p->v) continue;
            float *value = p->value_pages + block * p->value_block + (h * size + slot) * p->value_dim;
            memcpy(value, p->v + t * p->v_row + h * p->v_head, (size_t)p->value_dim * 4);
        }
    }
}

/* Rotates q and k in place and writes k and v to their pages; see struct heads. */
void quire_rope_and_write_kv(const struct heads *heads) {
    int64_t elements = heads->heads * heads->key_dim + heads->kv_heads * (heads->key_dim + heads->value_dim);
    parallel(head_items, heads, heads->query_starts[heads->sequences], rows_per_grain(elements), heads->threads);
}
