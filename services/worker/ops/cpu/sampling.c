/* Gumbel-max sampling with counter-based randomness (Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", 2011). A sample depends on (seed, position, choice, logits) alone. One Philox call serves four tokens. */
#include "vector.h"

#define GROUP 16          /* Philox calls side by side */
#define GRAIN 8192        /* least tokens per thread: for fewer, waking a thread costs more than it saves */
#define SPAN (4 * GROUP)  /* tokens that GROUP calls serve */
#define HIGHEST_NOISE 23.0f /* -log(-log1p(-2^-33)) is 22.87 */

/* Word `vary` of the counter takes GROUP consecutive values from counter[vary]; other words and the key are fixed. */
INLINE void philox(const uint32_t counter[4], const int vary, uint32_t key0, uint32_t key1, uint32_t out[4][GROUP]) {
    for (int w = 0; w < 4; w++)
        for (int i = 0; i < GROUP; i++) out[w][i] = counter[w] + (w == vary ? (uint32_t)i : 0);
    for (int round = 0; round < 10; round++, key0 += 0x9e3779b9u, key1 += 0xbb67ae85u)
        for (int i = 0; i < GROUP; i++) {
            uint64_t a = (uint64_t)0xd2511f53u * out[0][i], b = (uint64_t)0xcd9e8d57u * out[2][i];
            out[0][i] = (uint32_t)(b >> 32) ^ out[1][i] ^ key0;
            out[1][i] = (uint32_t)b;
            out[2][i] = (uint32_t)(a >> 32) ^ out[3][i] ^ key1;
            out[3][i] = (uint32_t)a;
        }
}

/* -log(-log1p(-u)) with u = (x + 0.5) 2^-32, within 4e-7 of the exact value. In the lower half of u, 1 - u is rounded
 * and its error corrected (log(s + c) = log s + c / s). In the upper half, 1 - u is computed as (~x + 0.5) 2^-32. */
INLINE vf gumbel(vu x) {
    vi upper = (vi)x < 0;
    vu nearer = (vu)upper ^ x; /* x or ~x, below 2^31 */
    vf u = (__builtin_convertvector((vi)nearer, vf) + 0.5f) * 0x1p-32f;
    ROUNDED(u);
    vf rest = 1.0f - u;
    vf error = (1.0f - rest) - u;
    vf s = choose(upper, u, rest), c = choose(upper, (vf){0}, error);
    vf exponential = -(vector_log(s) + c / s);
    return -vector_log(exponential);
}

struct sampling {
    const float *logits;
    const int64_t *seeds;
    const int32_t *positions, *choices;
    int64_t *out;
    int64_t vocabulary;
};

static int64_t sample_row(const float *logits, int64_t vocabulary, uint64_t seed, uint32_t position, uint32_t choice) {
    float best = -__builtin_inff();
    int64_t winner = 0;
    for (int64_t first = 0; first < vocabulary; first += SPAN) {
        _Alignas(64) float perturbed[SPAN];
        int64_t count = vocabulary - first < SPAN ? vocabulary - first : SPAN;
        vf highest = splat(-__builtin_inff());
        for (int64_t i = 0; i < count; i += VL) {
            vf v = load_part(logits + first + i, count - i);
            highest = choose(v > highest, v, highest);
        }
        float top = highest[0];
        for (int i = 1; i < VL; i++) top = highest[i] > top ? highest[i] : top;
        if (top + HIGHEST_NOISE <= best || top == -__builtin_inff()) continue; /* no token of this span can win */

        uint32_t random[4][GROUP], counter[4] = {position, choice, (uint32_t)(first / 4), 0};
        philox(counter, 2, (uint32_t)seed, (uint32_t)(seed >> 32), random);
        /* The noise is at most -log u. To make up for top - best, a word has to be below a bound, and few are. So only
         * these need a logarithm, which costs more than a word. The slack covers every rounding. */
        float bound = vector_exp(splat(top - best + 1e-4f))[0] * 0x1p32f;
        vu lowest = *(const vu_memory *)random[0];
        for (int i = VL; i < 4 * GROUP; i += VL) {
            vu words = *(const vu_memory *)(random[0] + i);
            vu below = (vu)(words < lowest);
            lowest = (words & below) | (lowest & ~below);
        }
        uint32_t least = lowest[0];
        for (int i = 1; i < VL; i++) least = lowest[i] < least ? lowest[i] : least;
        if ((float)least > bound) continue;

        float noise[4][GROUP];
        for (int w = 0; w < 4; w++)
            for (int i = 0; i < GROUP; i += VL) store(noise[w] + i, gumbel(*(const vu_memory *)(random[w] + i)));
        for (int i = 0; i < GROUP; i++)
            for (int w = 0; w < 4; w++) perturbed[4 * i + w] = noise[w][i];
        highest = splat(-__builtin_inff());
        for (int64_t i = 0; i < SPAN; i += VL) {
            vf v = load(perturbed + i) + load_part(logits + first + i, count - i > 0 ? count - i : 0);
            store(perturbed + i, v);
            if (i + VL <= count) highest = choose(v > highest, v, highest);
        }
        top = highest[0];
        for (int i = 1; i < VL; i++) top = highest[i] > top ? highest[i] : top;
        for (int64_t i = count / VL * VL; i < count; i++) top = perturbed[i] > top ? perturbed[i] : top;
        if (!(top > best)) continue;
        best = top;
        for (int64_t i = 0; i < count; i++)
            if (perturbed[i] == top) {
                winner = first + i;
                break;
            }
    }
    return winner;
}

static void sampling_items(const void *task, int64_t first, int64_t last) {
    const struct sampling *s = task;
    for (int64_t row = first; row < last; row++)
        s->out[row] = sample_row(s->logits + row * s->vocabulary, s->vocabulary, (uint64_t)s->seeds[row],
                                 (uint32_t)s->positions[row], (uint32_t)s->choices[row]);
}

/* logits [rows, vocabulary], seeds, positions, choices [rows] -> token ids [rows]. NaN logits are never chosen. */
void quire_sample_gumbel(const float *logits, const int64_t *seeds, const int32_t *positions, const int32_t *choices,
                         int64_t *out, int64_t rows, int64_t vocabulary, int threads) {
    struct sampling s = {logits, seeds, positions, choices, out, vocabulary};
    parallel(sampling_items, &s, rows, (GRAIN + vocabulary - 1) / vocabulary, threads);
}

/* One Philox4x32-10 block, for the known-answer test. */
void quire_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t blocks[4][GROUP];
    philox(counter, 2, key[0], key[1], blocks);
    for (int w = 0; w < 4; w++) out[w] = blocks[w][0];
}

/* Exposes the vector functions to the tests of their accuracy: 0 exp, 1 log, 2 Gumbel noise (x: raw bits), 3 tanh. */
void quire_evaluate(int function, const float *x, float *y, int64_t count) {
    for (int64_t i = 0; i < count; i += VL) {
        vf v = load_part(x + i, count - i);
        vf of_v = function == 0   ? vector_exp(v)
                  : function == 1 ? vector_log(v)
                  : function == 2 ? gumbel((vu)v)
                                  : vector_tanh(v);
        store_part(y + i, of_v, count - i);
    }
}
