// What a thread must do before it runs kernels of this instruction set.
#include "tiles.h"

namespace LLMC_NS {

void enter_thread() {
#if LLMC_AMX
    configure_tiles();
#endif
}

}  // namespace LLMC_NS
