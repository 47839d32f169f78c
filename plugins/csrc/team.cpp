#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <atomic>
#include <new>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int SPINS = 2000;  // a few ten microseconds: about one op of a small model
constexpr int YIELDS = 50;   // then let whoever shares the core run: pure spinning stalls for 8 ms

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A word threads wait on until it leaves a value.
struct alignas(64) Word {
    std::atomic<int> value{0};
    std::atomic<int> sleepers{0};

    void wait_while(int old) {
        for (int i = 0; i < SPINS; i++) {
            if (value.load(std::memory_order_acquire) != old) return;
            pause_cpu();
        }
        for (int i = 0; i < YIELDS; i++) {
            if (value.load(std::memory_order_acquire) != old) return;
            sched_yield();
        }
        sleepers.fetch_add(1);
        while (value.load() == old) sleep_while(old);
        sleepers.fetch_sub(1);
    }

    void set(int next) {
        value.store(next);
        if (sleepers.load() > 0) wake();
    }

#if defined(__linux__)
    void sleep_while(int old) {
        syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
    }
    void wake() { syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0); }
#else
    void sleep_while(int) { sched_yield(); }
    void wake() {}
#endif
};

struct alignas(64) Counter {
    std::atomic<int64_t> next{0};
};

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

}  // namespace

struct Team {
    int threads;
    KernelTable kernels;
    void (*enter_thread)();
    pthread_t* handles;

    Word start;              // counts steps; -1 asks the threads to end
    Word generation;         // of the barrier
    std::atomic<int> arrived{0};
    Counter counters[2];     // tasks handed out: of this op, and the next one's, being cleared

    const LlmcOp* ops;
    int num_ops;
    Step step;

    void barrier() {
        int current = generation.value.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived.store(0, std::memory_order_relaxed);
            generation.set(current + 1);
        } else {
            generation.wait_while(current);
        }
    }

    void run_ops(Scratch& scratch, bool first) {
        // Copied: a thread slow to leave the last barrier must not see the caller's next program.
        const LlmcOp* const step_ops = ops;
        const int step_num_ops = num_ops;
        const Step step = this->step;
        double begin = 0;
        for (int i = 0; i < step_num_ops; i++) {
            const LlmcOp& op = step_ops[i];
            const Kernel& kernel = kernels[op.kind];
            if (first && step.batch->op_seconds) begin = now();
            int64_t tasks = kernel.num_tasks(op, step);
            scratch.packed_op = nullptr;
            Counter& counter = counters[i & 1];
            for (;;) {
                int64_t task = counter.next.fetch_add(1, std::memory_order_relaxed);
                if (task >= tasks) break;
                kernel.run(op, step, task, scratch);
            }
            // Everyone has left counters[(i + 1) & 1] behind at the last barrier but may still be
            // asking this one, so the other is the one to clear, before the barrier publishes it.
            if (first) counters[(i + 1) & 1].next.store(0, std::memory_order_relaxed);
            barrier();
            if (first && step.batch->op_seconds) step.batch->op_seconds[i] = now() - begin;
        }
    }

};

namespace {

struct OwnedScratch : Scratch {
    OwnedScratch() : Scratch{nullptr, nullptr, 0} {
        void* aligned = nullptr;
        if (posix_memalign(&aligned, 64, SCRATCH_FLOATS * sizeof(float))) abort();
        memory = static_cast<float*>(aligned);
    }
    ~OwnedScratch() { free(memory); }
};

}  // namespace

static void* thread_main(void* argument) {
    Team* team = static_cast<Team*>(argument);
    if (team->enter_thread) team->enter_thread();
    OwnedScratch scratch;
    int seen = 0;
    for (;;) {
        team->start.wait_while(seen);
        seen = team->start.value.load(std::memory_order_acquire);
        if (seen < 0) break;
        team->run_ops(scratch, false);
    }
    return nullptr;
}

Team* team_create(int threads, KernelTable kernels, void (*enter_thread)()) {
    Team* team = new (std::nothrow) Team();
    if (!team) return nullptr;
    team->threads = threads;
    team->kernels = kernels;
    team->enter_thread = enter_thread;
    team->handles = static_cast<pthread_t*>(calloc(threads, sizeof(pthread_t)));
    for (int i = 1; i < threads; i++) {
        if (pthread_create(&team->handles[i], nullptr, thread_main, team)) {
            team->threads = i;  // what there is so far can be ended in order
            team_destroy(team);
            return nullptr;
        }
    }
    return team;
}

void team_destroy(Team* team) {
    team->start.set(-1);
    for (int i = 1; i < team->threads; i++) pthread_join(team->handles[i], nullptr);
    free(team->handles);
    delete team;
}

void team_run(Team* team, const LlmcOp* ops, int num_ops, const Step& step) {
    // The caller may be another OS thread each time, so its per-thread state is set up each time.
    if (team->enter_thread) team->enter_thread();
    static thread_local OwnedScratch scratch;
    team->ops = ops;
    team->num_ops = num_ops;
    team->step = step;
    team->counters[0].next.store(0, std::memory_order_relaxed);
    int next = team->start.value.load(std::memory_order_relaxed) + 1;
    team->start.set(next & 0x7fffffff);
    team->run_ops(scratch, true);
}

int team_threads(const Team* team) { return team->threads; }
