// Which instruction sets this CPU has, and the library's exported functions.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "team.h"

#define LLMC_DECLARE(name) \
    namespace name {       \
    KernelTable kernels(); \
    void enter_thread();   \
    }
LLMC_DECLARE(llmc_portable)
#if defined(__x86_64__)
LLMC_DECLARE(llmc_amx)
LLMC_DECLARE(llmc_avx512)
LLMC_DECLARE(llmc_avx2)
LLMC_DECLARE(llmc_emulated_avx512)
LLMC_DECLARE(llmc_emulated_amx)
#endif

namespace {

bool has_nothing_special() { return true; }

#if defined(__x86_64__)
struct CpuId {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    CpuId(unsigned leaf, unsigned sub = 0) { __get_cpuid_count(leaf, sub, &eax, &ebx, &ecx, &edx); }
};

// Register state the operating system saves. Source: Intel SDM vol. 1, 13.2 to 13.3 (XCR0 bits).
bool os_saves(unsigned long long bits) {
    if (!(CpuId(1).ecx >> 27 & 1)) return false;  // OSXSAVE: xgetbv may be used
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    unsigned long long enabled = ((unsigned long long)high << 32) | low;
    return (enabled & bits) == bits;
}

bool has_avx2() {
    const unsigned fma = 1u << 12, f16c = 1u << 29, avx = 1u << 28, avx2 = 1u << 5;
    const unsigned first = CpuId(1).ecx;
    return os_saves(0x6) && (first & fma) && (first & f16c) && (first & avx) && (CpuId(7).ebx & avx2);
}

bool has_avx512() {
    const unsigned wanted = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
    return has_avx2() && os_saves(0xe6) && (CpuId(7).ebx & wanted) == wanted;
}

bool has_amx() {
    const unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
    if (!has_avx512() || !os_saves(0x600e6) || (CpuId(7).edx & wanted) != wanted) return false;
#if defined(__linux__)
    // Linux enables tile data per process on request; it stays enabled.
    // Source: Documentation/arch/x86/xstate.rst, ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18.
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
    return false;
#endif
}
#endif

struct InstructionSet {
    const char* name;
    bool (*supported)();
    KernelTable (*kernels)();
    void (*enter_thread)();
};

// Best first; the emulated ones are for tests and never chosen on their own.
const InstructionSet SETS[] = {
#if defined(__x86_64__)
    {"amx", has_amx, llmc_amx::kernels, llmc_amx::enter_thread},
    {"avx512", has_avx512, llmc_avx512::kernels, llmc_avx512::enter_thread},
    {"avx2", has_avx2, llmc_avx2::kernels, llmc_avx2::enter_thread},
#endif
    {"portable", has_nothing_special, llmc_portable::kernels, llmc_portable::enter_thread},
#if defined(__x86_64__)
    {"emulated-avx512", has_avx2, llmc_emulated_avx512::kernels, llmc_emulated_avx512::enter_thread},
    {"emulated-amx", has_avx2, llmc_emulated_amx::kernels, llmc_emulated_amx::enter_thread},
#endif
};
constexpr int NUM_SETS = sizeof SETS / sizeof SETS[0];

}  // namespace

LLMC_API int llmc_abi_version() { return LLMC_ABI_VERSION; }
LLMC_API int64_t llmc_sizeof_op() { return sizeof(LlmcOp); }
LLMC_API int64_t llmc_sizeof_batch() { return sizeof(LlmcBatch); }
LLMC_API int llmc_isa_count() { return NUM_SETS; }
LLMC_API const char* llmc_isa_name(int isa) { return SETS[isa].name; }
LLMC_API int llmc_isa_supported(int isa) { return SETS[isa].supported(); }

// Null when the threads could not be started. The instruction set must be a supported one.
LLMC_API void* llmc_team_create(int threads, int isa) {
    return team_create(threads, SETS[isa].kernels(), SETS[isa].enter_thread);
}
LLMC_API void llmc_team_destroy(void* team) { team_destroy(static_cast<Team*>(team)); }

// Runs the ops in order on all threads and returns when the last has ended. Not reentrant.
LLMC_API void llmc_team_run(void* team, const LlmcOp* ops, int num_ops, const LlmcBatch* batch,
                            float* const* buffers) {
    Team* actual = static_cast<Team*>(team);
    team_run(actual, ops, num_ops, Step{batch, buffers, team_threads(actual)});
}
