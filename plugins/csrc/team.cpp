#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
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

// A counter threads wait on until it leaves a value.
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

    // Added, not stored: the one who ended a step and the one who starts the next may both be here.
    void advance() {
        value.fetch_add(1);
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

// What is being handed out: (op, its number of tasks, the next task), in one word so that whoever
// takes a task learns atomically which op it belongs to.
struct Ticket {
    static constexpr int BITS = 22;
    static constexpr uint64_t MASK = (1u << BITS) - 1;
    uint64_t word;

    static Ticket first(int64_t op, int64_t tasks) {
        return Ticket{(uint64_t)op << 2 * BITS | (uint64_t)tasks << BITS};
    }
    int64_t op() const { return word >> 2 * BITS; }
    int64_t tasks() const { return word >> BITS & MASK; }
    int64_t task() const { return word & MASK; }
    bool valid() const { return task() < tasks(); }
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

    Word epoch;                        // leaves its value whenever there are new tasks, or an end
    std::atomic<uint64_t> ticket{0};
    alignas(64) std::atomic<int64_t> done{0};  // tasks of the op in hand that have ended
    std::atomic<bool> running{false};  // a step is
    std::atomic<bool> ending{false};

    // Of the step; only who holds a task of it, or starts it, looks at these.
    const LlmcOp* ops;
    int64_t num_ops, step_number = 0;
    Step step;
    double op_began;

    // Hands out the tasks of the first op from `op` on that has any, or ends the step.
    void publish(int64_t op) {
        int64_t tasks = 0;
        for (; op < num_ops; op++) {
            tasks = kernels[ops[op].kind].num_tasks(ops[op], step);
            if (tasks > 0) break;
            if (step.batch->op_seconds) step.batch->op_seconds[op] = 0;
        }
        if (step.batch->op_seconds) op_began = now();
        done.store(0, std::memory_order_relaxed);
        if (op == num_ops) running.store(false, std::memory_order_release);
        else ticket.store(Ticket::first(op, tasks).word, std::memory_order_release);
        epoch.advance();
    }

    // Runs tasks until there are none to take. A step does not wait for threads, only for tasks: one
    // that the system has put aside between tasks holds up nobody.
    void work(Scratch& scratch, int64_t& packed_step, int64_t& packed_op) {
        while (Ticket{ticket.load(std::memory_order_acquire)}.valid()) {
            const Ticket taken{ticket.fetch_add(1, std::memory_order_acq_rel)};
            if (!taken.valid()) return;
            if (packed_step != step_number || packed_op != taken.op()) {
                packed_step = step_number;
                packed_op = taken.op();
                scratch.packed_op = nullptr;
            }
            const LlmcOp& op = ops[taken.op()];
            kernels[op.kind].run(op, step, taken.task(), scratch);
            // Read before the count: after the last task another thread may already be further on.
            const int64_t tasks = taken.tasks();
            if (done.fetch_add(1, std::memory_order_acq_rel) == tasks - 1) {
                if (step.batch->op_seconds) step.batch->op_seconds[taken.op()] = now() - op_began;
                publish(taken.op() + 1);
            }
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
    int64_t packed_step = -1, packed_op = -1;
    while (!team->ending.load(std::memory_order_acquire)) {
        const int seen = team->epoch.value.load(std::memory_order_acquire);
        team->work(scratch, packed_step, packed_op);
        if (!team->ending.load(std::memory_order_acquire)) team->epoch.wait_while(seen);
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
    team->ending.store(true, std::memory_order_release);
    team->epoch.advance();
    for (int i = 1; i < team->threads; i++) pthread_join(team->handles[i], nullptr);
    free(team->handles);
    delete team;
}

void team_run(Team* team, const LlmcOp* ops, int num_ops, const Step& step) {
    // The caller may be another OS thread each time, so its per-thread state is set up each time.
    if (team->enter_thread) team->enter_thread();
    static thread_local OwnedScratch scratch;
    int64_t packed_step = -1, packed_op = -1;
    team->ops = ops;
    team->num_ops = num_ops;
    team->step = step;
    team->step_number++;
    team->running.store(true, std::memory_order_release);
    team->publish(0);
    for (;;) {
        const int seen = team->epoch.value.load(std::memory_order_acquire);
        if (!team->running.load(std::memory_order_acquire)) break;
        team->work(scratch, packed_step, packed_op);
        if (!team->running.load(std::memory_order_acquire)) break;
        team->epoch.wait_while(seen);
    }
}

int team_threads(const Team* team) { return team->threads; }
