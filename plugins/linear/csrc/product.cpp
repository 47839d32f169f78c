#include "product.h"

#include "byte_rows.h"
#include "fixed_point.h"
#include "float_rows.h"
#include "tile_rows.h"

namespace LLMC_NS {

namespace {

struct Panels {
    const PackedWeight& weight;
    int64_t first, last;
    PanelSink sink;

    // Calls multiply(panel, its weights) for each panel and hands its sums on.
    template <typename Multiply>
    void each(float* c, Multiply multiply) const {
        const int64_t bytes = weight.bytes_per_panel();
        for (int64_t panel = first; panel < last; panel++) {
            multiply(panel, weight.panels + panel * bytes);
            sink.take(sink.self, panel, c);
        }
    }
};

template <int TYPE>
void run_floats(const Panels& panels, const float* x, int64_t rows, bool pack, float* memory) {
    const PackedWeight& weight = panels.weight;
    const int64_t K = weight.K;
    const Workspace space(memory);
    const bool few = rows <= FEW_ROWS && !weight.groups;
    if (!few && pack) pack_floats(x, rows, K, space.packed);
    panels.each(space.c, [&](int64_t panel, const char* values) {
        if (few) multiply_few<TYPE>(rows, x, K, values, K, space.c, true);
        else multiply_floats<TYPE>(rows, space.packed, K, values, weight.groups_of(panel),
                                   space.unpacked, space.c);
    });
}

template <int TYPE>
void run_fixed(const Panels& panels, const float* x, int64_t rows, bool pack, float* memory) {
    const PackedWeight& weight = panels.weight;
    const Workspace space(memory);
    const FixedRows packed(space.packed, rows, weight.K, weight.groups_of(0));
    if (pack) pack_fixed(x, rows, weight.K, weight.integer_rows, weight.zeros, packed);
    panels.each(space.c, [&](int64_t panel, const char* values) {
        multiply_fixed<TYPE>(rows, packed, weight.K, values, weight.groups_of(panel),
                             space.unpacked, space.c);
    });
}

#if LLMC_W == 16
void run_bytes(const Panels& panels, const float* x, int64_t rows, bool pack, float* memory) {
    const int64_t K = panels.weight.K;
    const Workspace space(memory);
#if LLMC_AMX
    int8_t* packed = reinterpret_cast<int8_t*>(space.packed);
    if (pack) pack_byte_tiles(x, rows, K, packed);
    panels.each(space.c, [&](int64_t, const char* values) {
        multiply_byte_tiles(rows, packed, K, values, space.unpacked, space.c);
    });
#else
    uint8_t* packed = reinterpret_cast<uint8_t*>(space.packed);
    if (pack) pack_quads(x, rows, K, packed);
    panels.each(space.c, [&](int64_t, const char* values) {
        multiply_quads(rows, packed, K, values, space.c);
    });
#endif
}
#endif

#if LLMC_AMX
template <int TYPE>
void run_tiles(const Panels& panels, const float* x, int64_t rows, bool pack, float* memory) {
    const int64_t K = panels.weight.K;
    const Workspace space(memory);
    uint16_t* packed = reinterpret_cast<uint16_t*>(space.packed);
    if (pack) pack_tiles(x, rows, K, packed);
    panels.each(space.c, [&](int64_t, const char* values) {
        multiply_tiles<TYPE>(rows, packed, K, values, space.unpacked, space.c);
    });
}
#endif

}  // namespace

void multiply_panels(const PackedWeight& weight, const float* x, int64_t rows, int64_t first,
                     int64_t last, bool pack, float* memory, PanelSink sink) {
    const Panels panels = {weight, first, last, sink};
#if LLMC_W == 16
    if (weight.type == LLMC_I8 && weight.integer_rows && !weight.groups && has_quads())
        return run_bytes(panels, x, rows, pack, memory);
#endif
#if LLMC_AMX
    if (weight.type == LLMC_BF16) return run_tiles<LLMC_BF16>(panels, x, rows, pack, memory);
    if (weight.type == LLMC_I8) return run_tiles<LLMC_I8>(panels, x, rows, pack, memory);
    if (weight.type == LLMC_F8) return run_tiles<LLMC_F8>(panels, x, rows, pack, memory);
#endif
    switch (weight.type) {
        case LLMC_F32: return run_floats<LLMC_F32>(panels, x, rows, pack, memory);
        case LLMC_F16: return run_floats<LLMC_F16>(panels, x, rows, pack, memory);
        case LLMC_BF16: return run_floats<LLMC_BF16>(panels, x, rows, pack, memory);
        case LLMC_F8: return run_floats<LLMC_F8>(panels, x, rows, pack, memory);
        case LLMC_F4: return run_floats<LLMC_F4>(panels, x, rows, pack, memory);
        case LLMC_I8: return run_fixed<LLMC_I8>(panels, x, rows, pack, memory);
        case LLMC_I4:
            return weight.is_fixed() ? run_fixed<LLMC_I4>(panels, x, rows, pack, memory)
                                     : run_floats<LLMC_I4>(panels, x, rows, pack, memory);
    }
}

}  // namespace LLMC_NS
