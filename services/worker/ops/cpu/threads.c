/* Threads that wait for the next piece of a step without hurting the step or other programs on the machine.
 *
 * Two calls of one step are microseconds apart, and waking a sleeping thread takes longer. So an idle thread first
 * spins for a while, then yields its core each time before it looks again, and sleeps at last. An OpenMP runtime
 * either spins all the time, on cores that the host's other services need, or sleeps between any two calls. */
#include "vector.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#define MAX_THREADS 256
#define LOOK_NS 4000     /* how long an idle thread spins */
#define YIELD_NS 1000000  /* how long it then yields in between, before it sleeps */

/* Each thread works through a stretch of its own, so that a small model's weights stay in its core's cache. It then
 * takes work from the other threads' stretches, so that a core that other programs slow down does not delay the
 * rest. */
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

struct helper {
    _Alignas(64) uint32_t ticket; /* atomic: number of launches that this thread was called for */
    int sleeping;                 /* atomic */
    pthread_mutex_t mutex;
    pthread_cond_t called;
};

static struct helper helpers[MAX_THREADS]; /* thread i of a launch is helper i; 0 is the caller */
static int num_threads = 1;                /* threads that exist, including the caller */
static pthread_mutex_t in_use = PTHREAD_MUTEX_INITIALIZER;
static struct launch current;
static int unfinished; /* atomic: helpers that are still working */

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static void look_again(int64_t since) {
    if (now_ns() - since > LOOK_NS) {
        sched_yield();
        return;
    }
#if defined(__x86_64__) || defined(__i386__)
    for (int i = 0; i < 8; i++) __builtin_ia32_pause();
#endif
}

static void work(int self) {
    for (int i = 0; i < current.threads; i++) {
        struct stretch *stretch = &current.stretches[(self + i) % current.threads];
        for (;;) {
            if (__atomic_load_n(&stretch->next, __ATOMIC_RELAXED) >= stretch->end) break;
            int64_t first = __atomic_fetch_add(&stretch->next, current.grain, __ATOMIC_RELAXED);
            if (first >= stretch->end) break;
            int64_t last = first + current.grain < stretch->end ? first + current.grain : stretch->end;
            current.body(current.task, first, last);
        }
    }
}

static void sleep_until_called(struct helper *helper, uint32_t ticket) {
    pthread_mutex_lock(&helper->mutex);
    __atomic_store_n(&helper->sleeping, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&helper->ticket, __ATOMIC_SEQ_CST) == ticket)
        pthread_cond_wait(&helper->called, &helper->mutex);
    __atomic_store_n(&helper->sleeping, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&helper->mutex);
}

static void *help(void *argument) {
    struct helper *helper = argument;
    for (uint32_t ticket = 0;; ticket++) {
        int64_t since = now_ns();
        while (__atomic_load_n(&helper->ticket, __ATOMIC_ACQUIRE) == ticket) {
            if (now_ns() - since > YIELD_NS)
                sleep_until_called(helper, ticket);
            else
                look_again(since);
        }
        work((int)(helper - helpers));
        __atomic_sub_fetch(&unfinished, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void call(struct helper *helper) {
    __atomic_add_fetch(&helper->ticket, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&helper->sleeping, __ATOMIC_SEQ_CST)) return;
    pthread_mutex_lock(&helper->mutex);
    pthread_cond_signal(&helper->called);
    pthread_mutex_unlock(&helper->mutex);
}

/* A forked process has no helper threads. */
static void forget_helpers(void) {
    num_threads = 1;
    pthread_mutex_init(&in_use, NULL);
}

/* Starts missing helpers. Returns the number of threads, at most `wanted`. */
static int start_helpers(int wanted) {
    if (num_threads >= wanted) return wanted;
    static int prepared;
    if (!prepared) pthread_atfork(NULL, NULL, forget_helpers);
    prepared = 1;
    sigset_t all, before; /* helpers block signals: the process's own threads handle them */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; num_threads < wanted; num_threads++) {
        struct helper *helper = &helpers[num_threads];
        *helper = (struct helper){.mutex = PTHREAD_MUTEX_INITIALIZER, .called = PTHREAD_COND_INITIALIZER};
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, helper)) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return num_threads < wanted ? num_threads : wanted;
}

void parallel(parallel_body body, const void *task, int64_t items, int64_t grain, int threads) {
    if (threads > items / grain) threads = (int)(items / grain);
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    /* If another thread's call is running, this thread works alone. */
    if (threads <= 1 || pthread_mutex_trylock(&in_use)) {
        body(task, 0, items);
        return;
    }
    threads = start_helpers(threads);
    current.body = body;
    current.task = task;
    current.grain = grain;
    current.threads = threads;
    for (int i = 0; i < threads; i++) {
        current.stretches[i].next = items * i / threads;
        current.stretches[i].end = items * (i + 1) / threads;
    }
    __atomic_store_n(&unfinished, threads - 1, __ATOMIC_RELAXED);
    for (int i = 1; i < threads; i++) call(&helpers[i]);
    work(0);
    for (int64_t since = now_ns(); __atomic_load_n(&unfinished, __ATOMIC_ACQUIRE);) look_again(since);
    pthread_mutex_unlock(&in_use);
}

const char *quire_source_digest(void) { return SOURCE_DIGEST; }
