/* Runs every CPU kernel on fixed inputs, with 1 and with 3 threads, and prints a digest of each output. Programs for
 * different processors print the same lines where their kernels agree bit for bit. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

int64_t quire_packed_words(int64_t columns, int64_t depth, int half);
void quire_pack(const float *weight, uint32_t *packed, int64_t first, int64_t last, int64_t columns, int64_t depth,
                int half);
void quire_embedding(const int64_t *ids, const uint32_t *packed, uint32_t *out, int64_t count, int64_t columns,
                     int64_t depth, int half, int threads);
void quire_pack_quantized(const uint8_t *q, uint32_t *packed, int64_t first, int64_t last, int64_t columns,
                          int64_t depth, int bits);
int64_t quire_padded_columns(int64_t columns);
void quire_layer_norm(const float *x, const float *residual, const float *weight, const float *bias, float *y,
                      int64_t rows, int64_t features, float eps, int threads);
void quire_activate(const float *x, float *y, int64_t rows, int64_t features, int kind, int threads);
void quire_sample_gumbel(const float *logits, const int64_t *seeds, const int32_t *positions, const int32_t *choices,
                         int64_t *out, int64_t rows, int64_t vocabulary, int threads);
void quire_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
void quire_evaluate(int function, const float *x, float *y, int64_t count);

static uint64_t state = 1;

static uint32_t random_bits(void) { /* Knuth's MMIX */
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static void *allocate(int64_t bytes) {
    int64_t rounded = (bytes + 4095) / 4096 * 4096;
    void *memory = aligned_alloc(64, (size_t)rounded);
    if (!memory) exit(2);
    return memset(memory, 0, (size_t)rounded);
}

static float *floats(int64_t count) { /* -2 to 2, few enough bits for bfloat16's eight */
    float *values = allocate(count * 4);
    for (int64_t i = 0; i < count; i++) values[i] = (float)(random_bits() >> 24) / 64.0f - 2.0f;
    return values;
}

static float *fine_floats(int64_t count) { /* the same with all bits */
    float *values = allocate(count * 4);
    for (int64_t i = 0; i < count; i++) values[i] = (float)(int32_t)random_bits() * 0x1p-30f;
    return values;
}

static void *copy(const void *from, int64_t bytes) { return memcpy(allocate(bytes), from, (size_t)bytes); }

static void print(const char *name, int threads, const void *data, int64_t bytes) { /* FNV-1a */
    uint64_t digest = 14695981039346656037u;
    for (int64_t i = 0; i < bytes; i++) digest = (digest ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    printf("%s threads=%d %016llx\n", name, threads, (unsigned long long)digest);
}

enum { ROWS = 21, COLUMNS = 203, DEPTH = 192 };

static void products(int threads) {
    float *x = fine_floats(ROWS * DEPTH), *bias = fine_floats(COLUMNS), *y = allocate(ROWS * COLUMNS * 4);
    for (int half = 0; half < 2; half++) {
        float *weight = half ? floats(COLUMNS * DEPTH) : fine_floats(COLUMNS * DEPTH);
        uint32_t *packed = allocate(quire_packed_words(COLUMNS, DEPTH, half) * 4);
        quire_pack(weight, packed, 0, COLUMNS, COLUMNS, DEPTH, half);
        quire_gemm(x, packed, bias, y, ROWS, COLUMNS, DEPTH, half, threads);
        print(half ? "gemm bfloat16" : "gemm float32", threads, y, ROWS * COLUMNS * 4);
        quire_gemm(x, packed, NULL, y, 1, COLUMNS, DEPTH, half, threads);
        print(half ? "gemm bfloat16, one row" : "gemm float32, one row", threads, y, COLUMNS * 4);
        int64_t ids[] = {5, 0, COLUMNS - 1, 77};
        uint32_t *rows = allocate(4 * DEPTH * 4);
        quire_embedding(ids, packed, rows, 4, COLUMNS, DEPTH, half, threads);
        if (memcmp(rows, weight + 5 * DEPTH, DEPTH * 4)) exit(3);
        print(half ? "embedding bfloat16" : "embedding float32", threads, rows, 4 * DEPTH * 4);
    }
}

static void quantized_products(int bits, int64_t group, int round, int threads) {
    float *x = fine_floats(ROWS * DEPTH), *bias = fine_floats(COLUMNS), *y = allocate(ROWS * COLUMNS * 4);
    uint8_t *q = allocate(COLUMNS * DEPTH);
    for (int64_t i = 0; i < COLUMNS * DEPTH; i++) q[i] = (uint8_t)(random_bits() >> (32 - bits));
    uint32_t *packed = allocate((COLUMNS + 64) * DEPTH * 4);
    quire_pack_quantized(q, packed, 0, COLUMNS, COLUMNS, DEPTH, bits);
    /* Values by column, then laid out for this processor's number of padded columns. */
    int64_t groups = DEPTH / group, padded = quire_padded_columns(COLUMNS);
    float *scales = allocate(groups * padded * 4);
    int32_t *zeros = allocate(groups * padded * 4);
    for (int64_t g = 0; g < groups; g++)
        for (int64_t c = 0; c < COLUMNS; c++) {
            scales[g * padded + c] = (float)(random_bits() >> 8) * 0x1p-28f;
            zeros[g * padded + c] = (int32_t)(random_bits() >> (32 - bits));
        }
    int has_zeros = bits == 4;
    if (quire_gemm_quantized(x, NULL, packed, scales, has_zeros ? zeros : NULL, bias, y, ROWS, DEPTH, COLUMNS, DEPTH,
                             group, bits, round, threads))
        exit(2);
    char name[64];
    snprintf(name, sizeof name, "gemm of %d bits, groups of %d%s", bits, (int)group, round ? ", rows in bytes" : "");
    print(name, threads, y, ROWS * COLUMNS * 4);
}

static void rows_of_features(int threads) {
    int64_t features = 333, count = ROWS * features;
    float *x = fine_floats(2 * count), *residual = fine_floats(count), *weight = fine_floats(features);
    float *bias = fine_floats(features), *y = allocate(count * 4);
    quire_layer_norm(x, residual, weight, bias, y, ROWS, features, 1e-5f, threads);
    print("layer norm", threads, y, count * 4);
    quire_rms_norm(x, residual, weight, y, ROWS, features, 1e-6f, threads);
    print("RMS norm", threads, y, count * 4);
    print("RMS norm's residual", threads, residual, count * 4);
    const char *names[] = {"SiLU", "GELU by erf", "GELU by tanh", "quick GELU", "ReLU", "squared ReLU", "clamped SiLU"};
    for (int kind = 0; kind < 7; kind++) {
        quire_gated_activation(x, y, ROWS, features, kind, threads);
        printf("gated ");
        print(names[kind], threads, y, count * 4);
        if (kind == 6) continue;
        quire_activate(x, y, ROWS, features, kind, threads);
        print(names[kind], threads, y, count * 4);
    }
}

static void attention(int64_t head_dim, int64_t rotary_dim, int64_t block_size, int64_t window, int threads) {
    enum { SEQUENCES = 3, HEADS = 6, KV_HEADS = 2, MAX_BLOCKS = 48, BLOCKS = 128 };
    /* A prompt from its beginning, a chunk in the middle of one, and one token after a long one. */
    int32_t starts[SEQUENCES + 1] = {0, 19, 31, 32}, first[SEQUENCES] = {0, 40, 300};
    int32_t positions[32], tables[SEQUENCES * MAX_BLOCKS];
    for (int s = 0; s < SEQUENCES; s++) {
        for (int32_t t = starts[s]; t < starts[s + 1]; t++) positions[t] = first[s] + t - starts[s];
        for (int b = 0; b < MAX_BLOCKS; b++) tables[s * MAX_BLOCKS + b] = (s * 41 + b * 7) % BLOCKS;
    }
    int64_t page = KV_HEADS * block_size * head_dim, width = (HEADS + 2 * KV_HEADS) * head_dim;
    float *keys = fine_floats(BLOCKS * page), *values = fine_floats(BLOCKS * page);
    float *qkv = fine_floats(32 * width), *cos_sin = fine_floats(512 * head_dim);
    float *out = allocate(32 * HEADS * head_dim * 4);
    float *q = qkv, *k = qkv + HEADS * head_dim, *v = k + KV_HEADS * head_dim;
    struct heads heads = {.q = q, .k = k, .v = v, .cos_sin = cos_sin, .key_pages = keys, .value_pages = values,
                          .positions = positions, .query_starts = starts, .block_tables = tables, .q_row = width,
                          .q_head = head_dim, .k_row = width, .k_head = head_dim, .v_row = width, .v_head = head_dim,
                          .key_block = page, .value_block = page, .sequences = SEQUENCES, .heads = HEADS,
                          .kv_heads = KV_HEADS, .key_dim = head_dim, .value_dim = head_dim, .rotary_dim = rotary_dim,
                          .block_size = block_size, .max_blocks = MAX_BLOCKS, .interleaved = rotary_dim != head_dim,
                          .threads = threads};
    quire_rope_and_write_kv(&heads);
    char name[64];
    snprintf(name, sizeof name, "of %d, blocks of %d, window %d", (int)head_dim, (int)block_size, (int)window);
    printf("heads %s:\n", name);
    print("  rotated", threads, qkv, 32 * width * 4);
    print("  keys", threads, keys, BLOCKS * page * 4);
    print("  values", threads, values, BLOCKS * page * 4);
    float *of_heads = fine_floats(2 * HEADS);
    struct paged_attention call = {.q = q, .key_pages = keys, .value_pages = values, .out = out, .positions = positions,
                                   .query_starts = starts, .block_tables = tables, .q_row = width, .q_head = head_dim,
                                   .key_block = page, .value_block = page, .sequences = SEQUENCES, .heads = HEADS,
                                   .kv_heads = KV_HEADS, .key_dim = head_dim, .value_dim = head_dim,
                                   .block_size = block_size, .max_blocks = MAX_BLOCKS, .window = window,
                                   .scale = 0.125f, .threads = threads};
    quire_paged_attention(&call);
    print("  attention", threads, out, 32 * HEADS * head_dim * 4);
    call.value_pages = NULL, call.value_dim = head_dim - 3, call.chunk = 29, call.soft_cap = 3.0f;
    call.slopes = of_heads, call.sinks = of_heads + HEADS;
    quire_paged_attention(&call);
    print("  attention in every form", threads, out, 32 * HEADS * (head_dim - 3) * 4);
}

static void sampling(int threads) {
    enum { VOCABULARY = 5003 };
    float *logits = fine_floats(ROWS * VOCABULARY);
    int64_t seeds[ROWS], drawn[ROWS];
    int32_t positions[ROWS], choices[ROWS];
    for (int r = 0; r < ROWS; r++) seeds[r] = (int64_t)random_bits() << 20, positions[r] = r * 100, choices[r] = r % 3;
    quire_sample_gumbel(logits, seeds, positions, choices, drawn, ROWS, VOCABULARY, threads);
    print("sampling", threads, drawn, sizeof drawn);
    uint32_t counter[] = {1, 2, 3, 4}, key[] = {5, 6}, block[4];
    quire_philox(counter, key, block);
    print("Philox", threads, block, sizeof block);
    float *x = fine_floats(4099), *positive = copy(x, 4099 * 4), *y = allocate(4099 * 4);
    for (int i = 0; i < 4099; i++) x[i] *= 40.0f, positive[i] = positive[i] * positive[i] + 1e-20f;
    quire_evaluate(0, x, y, 4099);
    print("exp", threads, y, 4099 * 4);
    quire_evaluate(1, positive, y, 4099);
    print("log", threads, y, 4099 * 4);
    quire_evaluate(2, x, y, 4099);
    print("Gumbel noise", threads, y, 4099 * 4);
    quire_evaluate(3, x, y, 4099);
    print("tanh", threads, y, 4099 * 4);
}

int main(void) {
    for (int threads = 1; threads <= 3; threads += 2) {
        state = 1;
        products(threads);
        quantized_products(8, DEPTH, 1, threads);
        quantized_products(8, DEPTH, 0, threads);
        quantized_products(8, 32, 0, threads);
        quantized_products(4, 64, 0, threads);
        rows_of_features(threads);
        attention(64, 64, 16, 0, threads);
        attention(64, 64, 16, 24, threads);
        attention(80, 32, 24, 0, threads);
        attention(128, 128, 32, 0, threads);
        sampling(threads);
    }
    return 0;
}
