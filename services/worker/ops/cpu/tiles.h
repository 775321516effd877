/* Parts that both GEMMs share: each size of register tile is a function of its own. */
#ifndef QUIRE_TILES_H
#define QUIRE_TILES_H

#include "vector.h"

INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* F(rows, vectors, kind) for rows up to MR and vectors up to NV */
#if NV == 3
#define EACH_WIDTH(F, rows, kind) F(rows, 1, kind) F(rows, 2, kind) F(rows, 3, kind)
#else
#define EACH_WIDTH(F, rows, kind) F(rows, 1, kind) F(rows, 2, kind)
#endif
#if MR == 8
#define EACH_TILE(F, kind)                                                                                            \
    EACH_WIDTH(F, 1, kind) EACH_WIDTH(F, 2, kind) EACH_WIDTH(F, 3, kind) EACH_WIDTH(F, 4, kind)                       \
    EACH_WIDTH(F, 5, kind) EACH_WIDTH(F, 6, kind) EACH_WIDTH(F, 7, kind) EACH_WIDTH(F, 8, kind)
#elif MR == 6
#define EACH_TILE(F, kind)                                                                                            \
    EACH_WIDTH(F, 1, kind) EACH_WIDTH(F, 2, kind) EACH_WIDTH(F, 3, kind) EACH_WIDTH(F, 4, kind)                       \
    EACH_WIDTH(F, 5, kind) EACH_WIDTH(F, 6, kind)
#else
#define EACH_TILE(F, kind)                                                                                            \
    EACH_WIDTH(F, 1, kind) EACH_WIDTH(F, 2, kind) EACH_WIDTH(F, 3, kind) EACH_WIDTH(F, 4, kind)
#endif

#endif
