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
void quire_silu_mul(const float *gate_up, float *y, int64_t rows, int64_t features, int threads);
void quire_rope_and_write_kv(float *q, float *k, const float *v, const float *cos_sin, const int32_t *positions,
                             const int32_t *query_starts, const int32_t *block_tables, float *key_pages,
                             float *value_pages, int64_t q_row, int64_t q_head, int64_t k_row, int64_t k_head,
                             int64_t v_row, int64_t v_head, int64_t key_block, int64_t value_block, int64_t sequences,
                             int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size, int64_t max_blocks,
                             int threads);
void quire_paged_attention(const float *q, const float *key_pages, const float *value_pages, float *out,
                           const int32_t *positions, const int32_t *query_starts, const int32_t *block_tables,
                           int64_t q_row, int64_t q_head, int64_t key_block, int64_t value_block, int64_t sequences,
                           int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t block_size, int64_t max_blocks,
                           int64_t window, float scale, int threads);

#endif
