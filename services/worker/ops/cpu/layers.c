/* Runs all layers of a step in one call: the same kernels in the same order as in models/decoders/llama.py, without
 * the interpreter in between, which takes a tenth of a step of one token. structs.py declares the same structures. */
#include "kernels.h"

#include <string.h>

struct linear {
    const int32_t *order, *zeros;
    const void *weight;
    const float *scales, *bias;
    int64_t in_features, out_features, depth, group_size;
    int32_t bits;  /* 32: floats; 8 or 4: integers */
    int32_t flag;  /* floats: the weight is in pairs of bfloat16; integers: rows of x are rounded to bytes first */
};

struct layer {
    struct linear qkv, output, gate_up, down;
    const float *q_norm, *k_norm; /* [head_dim], or null */
    const float *post_attention_norm, *next_norm; /* [hidden] */
    const float *cos_sin, *slopes, *sinks; /* each may be null; see struct heads and struct paged_attention */
    int64_t rotary_dim, window, chunk;
    float scale, soft_cap;
    int32_t interleaved, activation;
};

struct step {
    const struct layer *layers;
    float *const *key_pages, *const *value_pages; /* one of each per layer */
    const int64_t *key_blocks, *value_blocks; /* strides in floats, per layer */
    const int32_t *positions, *query_starts, *block_tables;
    const int64_t *sampled; /* indices of the tokens to compute after the last layer's attention */
    float *x, *residual;    /* [tokens, hidden], both overwritten */
    float *scratch;         /* see quire_scratch_floats */
    float *y;               /* [num_sampled, hidden] */
    int64_t num_layers, tokens, num_sampled, sequences, max_blocks;
    int64_t hidden, intermediate, heads, kv_heads, head_dim, block_size;
    float eps;
    int32_t threads;
};

static int multiply(const struct linear *l, const float *x, float *y, int64_t rows, int threads) {
    if (l->bits != 32)
        return quire_gemm_quantized(x, l->order, l->weight, l->scales, l->zeros, l->bias, y, rows, l->in_features,
                                    l->out_features, l->depth, l->group_size, l->bits, l->flag, threads);
    quire_gemm(x, l->weight, l->bias, y, rows, l->out_features, l->in_features, l->flag, threads);
    return 0;
}

/* Norms heads first .. first + count of every token; the result is contiguous. */
static void norm_heads(const struct step *s, const float *qkv, int64_t first, int64_t count, const float *weight,
                       float *gathered, float *out) {
    int64_t dim = s->head_dim, width = (s->heads + 2 * s->kv_heads) * dim;
    for (int64_t t = 0; t < s->tokens; t++)
        memcpy(gathered + t * count * dim, qkv + t * width + first * dim, (size_t)(count * dim) * 4);
    quire_rms_norm(gathered, NULL, weight, out, s->tokens * count, dim, s->eps, s->threads);
}

int64_t quire_scratch_floats(const struct step *s) {
    int64_t heads = s->heads + 2 * s->kv_heads;
    return s->tokens * ((2 * heads + s->heads) * s->head_dim + 2 * s->hidden + 3 * s->intermediate);
}

/* Returns 0, or -1 if memory runs out. */
int quire_run_layers(const struct step *s) {
    int64_t tokens = s->tokens, dim = s->head_dim, width = (s->heads + 2 * s->kv_heads) * dim;
    float *qkv = s->scratch, *normed = qkv + tokens * width, *attended = normed + tokens * width;
    float *projected = attended + tokens * s->heads * dim, *gathered = projected + tokens * s->hidden;
    float *gate_up = gathered + tokens * s->hidden, *active = gate_up + tokens * 2 * s->intermediate;
    for (int64_t i = 0; i < s->num_layers; i++) {
        const struct layer *l = s->layers + i;
        if (multiply(&l->qkv, s->x, qkv, tokens, s->threads)) return -1;
        float *q = qkv, *k = qkv + s->heads * dim, *v = k + s->kv_heads * dim;
        int64_t q_row = width, k_row = width;
        if (l->q_norm) {
            float *normed_k = normed + tokens * s->heads * dim;
            norm_heads(s, qkv, 0, s->heads, l->q_norm, attended, normed);
            norm_heads(s, qkv, s->heads, s->kv_heads, l->k_norm, attended, normed_k);
            q = normed, q_row = s->heads * dim;
            k = normed_k, k_row = s->kv_heads * dim;
        }
        struct heads heads = {.q = q, .k = k, .v = v, .cos_sin = l->cos_sin, .key_pages = s->key_pages[i],
                              .value_pages = s->value_pages[i], .positions = s->positions,
                              .query_starts = s->query_starts, .block_tables = s->block_tables, .q_row = q_row,
                              .q_head = dim, .k_row = k_row, .k_head = dim, .v_row = width, .v_head = dim,
                              .key_block = s->key_blocks[i], .value_block = s->value_blocks[i],
                              .sequences = s->sequences, .heads = s->heads, .kv_heads = s->kv_heads, .key_dim = dim,
                              .value_dim = dim, .rotary_dim = l->rotary_dim, .block_size = s->block_size,
                              .max_blocks = s->max_blocks, .interleaved = l->interleaved, .threads = s->threads};
        quire_rope_and_write_kv(&heads);
        struct paged_attention attention = {.q = q, .key_pages = s->key_pages[i], .value_pages = s->value_pages[i],
                                            .out = attended, .positions = s->positions,
                                            .query_starts = s->query_starts, .block_tables = s->block_tables,
                                            .sinks = l->sinks, .slopes = l->slopes, .q_row = q_row, .q_head = dim,
                                            .key_block = s->key_blocks[i], .value_block = s->value_blocks[i],
                                            .sequences = s->sequences, .heads = s->heads, .kv_heads = s->kv_heads,
                                            .key_dim = dim, .value_dim = dim, .block_size = s->block_size,
                                            .max_blocks = s->max_blocks, .window = l->window, .chunk = l->chunk,
                                            .scale = l->scale, .soft_cap = l->soft_cap, .threads = s->threads};
        quire_paged_attention(&attention);
        int64_t rows = tokens;
        float *residual = s->residual, *x = s->x;
        if (i == s->num_layers - 1) { /* from here on only the sampled tokens are needed */
            rows = s->num_sampled;
            residual = gathered, x = s->y;
            for (int64_t r = 0; r < rows; r++) {
                memcpy(qkv + r * s->heads * dim, attended + s->sampled[r] * s->heads * dim, (size_t)(s->heads * dim) * 4);
                memcpy(gathered + r * s->hidden, s->residual + s->sampled[r] * s->hidden, (size_t)s->hidden * 4);
            }
            attended = qkv;
            if (!rows) return 0;
        }
        if (multiply(&l->output, attended, projected, rows, s->threads)) return -1;
        quire_rms_norm(projected, residual, l->post_attention_norm, x, rows, s->hidden, s->eps, s->threads);
        if (multiply(&l->gate_up, x, gate_up, rows, s->threads)) return -1;
        quire_gated_activation(gate_up, active, rows, s->intermediate, l->activation, s->threads);
        if (multiply(&l->down, active, projected, rows, s->threads)) return -1;
        quire_rms_norm(projected, residual, l->next_norm, x, rows, s->hidden, s->eps, s->threads);
    }
    return 0;
}

/* Sizes of the structures, to compare with structs.py. */
int64_t quire_struct_bytes(int which) {
    switch (which) {
    case 0: return sizeof(struct linear);
    case 1: return sizeof(struct layer);
    case 2: return sizeof(struct step);
    case 3: return sizeof(struct heads);
    default: return sizeof(struct paged_attention);
    }
}
