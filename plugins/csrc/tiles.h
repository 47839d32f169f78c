// AMX tiles: the unit's instructions, or (LLMC_AMX == 2, for tests) the same in plain C++.
//
// All eight tiles are 16 rows of 64 bytes. Source: Intel SDM vol. 2, TDPBF16PS and LDTILECFG.
#pragma once
#include "simd.h"

namespace LLMC_NS {

#if LLMC_AMX == 1

struct TileConfig {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static inline void configure_tiles() {
    TileConfig config = {};
    config.palette = 1;
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    // Not _tile_loadconfig: gcc 12 declares no memory input for it and drops the stores above.
    asm volatile("ldtilecfg %0" ::"m"(config));
}
#define TILE_ZERO(t) _tile_zero(t)
#define TILE_LOAD(t, p, stride) _tile_loadd(t, p, stride)
#define TILE_STORE(t, p, stride) _tile_stored(t, p, stride)
#define TILE_MULTIPLY(c, a, b) _tile_dpbf16ps(c, a, b)

#elif LLMC_AMX == 2

struct EmulatedTile {
    uint8_t row[16][64];
};
static thread_local EmulatedTile emulated_tiles[8];

static inline void configure_tiles() {}
static inline void emulated_load(int t, const void* p, int64_t stride) {
    for (int r = 0; r < 16; r++)
        memcpy(emulated_tiles[t].row[r], static_cast<const char*>(p) + r * stride, 64);
}
static inline void emulated_store(int t, void* p, int64_t stride) {
    for (int r = 0; r < 16; r++)
        memcpy(static_cast<char*>(p) + r * stride, emulated_tiles[t].row[r], 64);
}
static inline float flushed(uint16_t bits) {  // the unit takes denormals as zero
    return bits & 0x7f80 ? bf16_to_f32(bits) : 0.0f;
}
static inline void emulated_multiply(int c, int a, int b) {
    for (int r = 0; r < 16; r++) {
        float sums[16];
        uint16_t left[32];
        memcpy(sums, emulated_tiles[c].row[r], 64);
        memcpy(left, emulated_tiles[a].row[r], 64);
        for (int k = 0; k < 16; k++) {
            uint16_t right[32];
            memcpy(right, emulated_tiles[b].row[k], 64);
            for (int n = 0; n < 16; n++) {
                sums[n] += flushed(left[2 * k]) * flushed(right[2 * n]);
                sums[n] += flushed(left[2 * k + 1]) * flushed(right[2 * n + 1]);
            }
        }
        memcpy(emulated_tiles[c].row[r], sums, 64);
    }
}
#define TILE_ZERO(t) memset(&emulated_tiles[t], 0, sizeof(EmulatedTile))
#define TILE_LOAD(t, p, stride) emulated_load(t, p, stride)
#define TILE_STORE(t, p, stride) emulated_store(t, p, stride)
#define TILE_MULTIPLY(c, a, b) emulated_multiply(c, a, b)

#endif

}  // namespace LLMC_NS
