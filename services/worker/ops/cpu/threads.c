/* Borrowing torch's OpenMP pool, so that one pool and one setting (torch.set_num_threads) govern the process.
 *
 * The library is not linked against any OpenMP runtime: library.py hands over the two entry points that torch itself
 * uses. Without them everything runs on the calling thread, with the same bits. */
#include "vector.h"

#define MAX_THREADS 256

typedef void (*fork_join)(void (*entry)(void *), void *argument, unsigned threads, unsigned flags);
typedef int (*query)(void);

static fork_join run_on_pool;
static query pool_thread;

/* Each thread works through a stretch of its own, so that a small model's weights stay in its core's cache, and then
 * takes from the others', so that a core that a neighbour slows down does not hold up the rest. */
struct stretch {
    _Alignas(64) int64_t next; /* atomic */
    int64_t end;
};

struct launch {
    parallel_body body;
    const void *task;
    int64_t grain;
    int threads;
    struct stretch stretches[MAX_THREADS];
};

static void enter(void *argument) {
    struct launch *launch = argument;
    int self = pool_thread();
    for (int i = 0; i < launch->threads; i++) {
        struct stretch *stretch = &launch->stretches[(self + i) % launch->threads];
        for (;;) {
            if (__atomic_load_n(&stretch->next, __ATOMIC_RELAXED) >= stretch->end) break;
            int64_t first = __atomic_fetch_add(&stretch->next, launch->grain, __ATOMIC_RELAXED);
            if (first >= stretch->end) break;
            int64_t last = first + launch->grain < stretch->end ? first + launch->grain : stretch->end;
            launch->body(launch->task, first, last);
        }
    }
}

void parallel(parallel_body body, const void *task, int64_t items, int64_t grain, int threads) {
    if (threads > items / grain) threads = (int)(items / grain);
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads <= 1 || !run_on_pool) {
        body(task, 0, items);
        return;
    }
    struct launch launch;
    launch.body = body;
    launch.task = task;
    launch.grain = grain;
    launch.threads = threads;
    for (int i = 0; i < threads; i++) {
        launch.stretches[i].next = items * i / threads;
        launch.stretches[i].end = items * (i + 1) / threads;
    }
    run_on_pool(enter, &launch, (unsigned)threads, 0); /* forks and joins, which orders memory */
}

/* GOMP_parallel and omp_get_thread_num of the runtime in use. */
void quire_use_openmp(void *gomp_parallel, void *get_thread_num) {
    pool_thread = (query)get_thread_num;
    run_on_pool = (fork_join)gomp_parallel;
}

const char *quire_source_digest(void) { return SOURCE_DIGEST; }
