/* Functions that layers.c calls. Each is described where it is defined. */
#ifndef QUIRE_KERNELS_H
#define QUIRE_KERNELS_H

#include <stdint.h>

void quire_gemm(const float *x, const void *weight, const float *bias, float *y, int64_t rows, int64_t columns,
                int64_t depth, int half, int threads);
int quire_gemm_quantized(const float *x, const int32_t *order, const uint32_t *weight, const float *scales,
                         const int32_t *zeros, const float *bias, float *y, int64_t rows, int64_t features,
                         int64_t columns, int64_t depth, int64_t group_size, int bits, int round, int threads);
void quire_rms_norm(const float *x, float *residual, const float *weight, float *y, int64_t rows, int64_t features,
                    float eps, int threads);
void quire_gated_activation(const float *gate_up, float *y, int64_t rows, int64_t features, int kind, int threads);

/* Heads to rotate, and keys and values to write to their pages. */
struct heads {
    float *q, *k;                   /* [tokens][heads][key_dim], rotated in place; each may be null */
    const float *v;                 /* [tokens][kv_heads][value_dim]; null: only keys are written */
    const float *cos_sin;           /* [positions][rotary_dim], first cosines, then sines; null: no rotation */
    float *key_pages, *value_pages; /* see attention.c; null: nothing is written */
    const int32_t *positions, *query_starts, *block_tables;
    int64_t q_row, q_head, k_row, k_head, v_row, v_head, key_block, value_block; /* strides in floats */
    int64_t sequences, heads, kv_heads, key_dim, value_dim, rotary_dim, block_size, max_blocks;
    int32_t interleaved; /* pairs are (0, 1), (2, 3), ... instead of (0, half), (1, half + 1), ... */
    int32_t threads;
};
void quire_rope_and_write_kv(const struct heads *heads);

/* Attention of q [tokens][heads][key_dim] over pages, into out [tokens][heads * value_dim]. */
struct paged_attention {
    const float *q, *key_pages;
    const float *value_pages; /* null: the values are the first value_dim elements of the keys */
    float *out;
    const int32_t *positions, *query_starts, *block_tables;
    const float *sinks, *slopes;                   /* [heads] each, or null: see start_merge and slope_scores */
    const float *distance_bias;                    /* [heads][2 * farthest + 1], or null: see bias_scores */
    int64_t q_row, q_head, key_block, value_block; /* strides in floats */
    int64_t sequences, heads, kv_heads, key_dim, value_dim, block_size, max_blocks; /* dims <= 576 */
    int64_t window;        /* keys that a query sees; 0: all */
    int64_t chunk;         /* a query sees only its own chunk of so many positions; 0: no chunks */
    int64_t lookahead;     /* keys after its own that a query sees, up to that of the sequence's last query */
    int64_t farthest;      /* greatest distance that has a bias of its own */
    float scale, soft_cap; /* soft_cap 0: none */
    int32_t threads;
};
void quire_paged_attention(const struct paged_attention *call);

#endif
