// Paged causal attention of rotated queries over the cache; grouped query heads share keys.
//
// input: qkv as rope_kv leaves it; output: context [T, heads * head_size]. dim: 0 to 4 as rope_kv, 5
// sliding window in tokens (0: none), 6 bias by distance (0 none, 1 ALiBi, 2 Falcon's). tensor: 0 slopes
// of the bias [heads], 1 sinks [heads], logits of keys without values (fp32; null if absent), 2 cache.
// param: 0 scale of the scores, 1 of the values, both with that of a cache of int8 or e4m3; 2 soft cap of
// the scores (0: none); 3 scale of Falcon's bias.
//
// A row is one (token, query head). Each row walks its keys in sub-blocks of 32 in order, with an
// online softmax per sub-block, whether it stands alone (decode) or in a tile of a prompt; a
// sub-block that is masked for a row leaves it exactly as it was.
// Source: online softmax, Milakov and Gimelshein 2018, arXiv:1805.02867.
#include "activations.h"
#include "kv_cache.h"
#include "rows.h"

namespace LLMC_NS {

constexpr int64_t MAX_ROWS = 96;
constexpr float NO_MAXIMUM = -1e30f;

// Query heads one task takes: all that share a KV head, unless that leaves threads idle or the
// working set outgrows the cache.
static int64_t heads_per_task(const LlmcOp& op, const Step& step) {
    const int64_t group = op.dim[0] / op.dim[1], tiles = step.batch->num_tiles;
    if (tiles * op.dim[1] < 2 * step.threads) return 1;
    int64_t heads = group;
    const bool long_tiles = step.batch->num_tokens > tiles;
    const int64_t most = max64(1, MAX_ROWS / (long_tiles ? LLMC_QUERY_TILE : 1));
    while (heads > most || group % heads) heads--;
    return heads;
}

static int64_t num_tasks(const LlmcOp& op, const Step& step) {
    return step.batch->num_tiles * (op.dim[0] / heads_per_task(op, step));
}

enum Bias : int64_t { NO_BIAS = 0, ALIBI = 1, FALCON = 2 };

// What turns products of a head into scores.
struct Scoring {
    int64_t window;
    Bias bias;
    float cap, bias_scale;
    const float *slopes, *sinks;  // of the first head

    Scoring(const LlmcOp& op, int64_t head)
        : window(op.dim[5]), bias((Bias)op.dim[6]), cap(op.param[2]), bias_scale(op.param[3]),
          slopes(op.tensor[0] ? static_cast<const float*>(op.tensor[0]) + head : nullptr),
          sinks(op.tensor[1] ? static_cast<const float*>(op.tensor[1]) + head : nullptr) {}

    // Scores of one vector of keys, from first_key on.
    vf apply(vf products, int64_t head, int64_t first_key, int64_t position) const {
        if (cap > 0) products = soft_cap(products, cap);
        if (bias == NO_BIAS) return products;
        vf key;
        for (int i = 0; i < W; i++) key[i] = (float)(first_key + i);
        if (bias == ALIBI) return products + slopes[head] * (key - (float)position);
        vf rounded = slopes[head] * key;
        for (int i = 0; i < W; i++) rounded[i] = bf16_to_f32(f32_to_bf16(rounded[i]));
        return products + rounded * bias_scale;
    }
};

struct Rows {
    int64_t count, heads, first_position, head_size, padded_size;
    float *q, *scores, *out, *maximum, *total, *unpacked;  // out: [head_size / 32][count][32]

    int64_t position(int64_t row) const { return first_position + row / heads; }
};

// scores[rows, 32] -> probabilities against the running maximum; rescales what was summed so far.
static void online_softmax(const Rows& rows, int64_t first_key, const Scoring& scoring) {
    const int64_t window = scoring.window;
    vf lane;
    for (int i = 0; i < W; i++) lane[i] = (float)i;
    for (int64_t r = 0; r < rows.count; r++) {
        float* scores = rows.scores + r * PANEL;
        const int64_t position = rows.position(r);
        const float last = (float)max64(-1, min64(position - first_key, 31));
        const float first = window ? (float)min64(32, max64(0, position - window + 1 - first_key)) : 0;
        vf highest = splat(NO_MAXIMUM), s[VECTORS];
        vi masked[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
            const vf key = lane + (float)(v * W);
            masked[v] = (key > last) | (key < first);
            s[v] = scoring.apply(load(scores + v * W), r % rows.heads, first_key + v * W, position);
            highest = maximum(masked[v] ? splat(NO_MAXIMUM) : s[v], highest);
        }
        const float old = rows.maximum[r], found = largest(highest);
        const float next = found > old ? found : old;
        vf total = {};
        for (int v = 0; v < VECTORS; v++) {
            const vf p = masked[v] ? vf{} : exp(s[v] - next);
            store(scores + v * W, p);
            total = total + p;
        }
        if (next > old) {
            const vf shrink = exp(splat(old - next));
            const float factor = old == NO_MAXIMUM ? 0.0f : shrink[0];
            rows.maximum[r] = next;
            rows.total[r] *= factor;
            for (int64_t d = 0; d < rows.padded_size; d += PANEL) {
                float* out = rows.out + d * rows.count + r * PANEL;
                for (int v = 0; v < VECTORS; v++) store(out + v * W, load(out + v * W) * factor);
            }
        }
        rows.total[r] += sum(total);
    }
}

template <int TYPE>
static void multiply_panel(const Rows& rows, const float* a, int64_t a_row, const char* panel,
                           int64_t k_count, float* c, bool first) {
    if (rows.count <= FEW_ROWS) {
        multiply_few<TYPE>(rows.count, a, a_row, panel, k_count, c, first);
        return;
    }
    const float* b = rows.unpacked;
    if (TYPE == LLMC_F32) b = reinterpret_cast<const float*>(panel);
    else unpack<TYPE>(panel, 0, (k_count + 1) / 2 * 2, rows.unpacked);
    const int64_t blocks = ceil_div(rows.count, TILE_ROWS);
    for (int v = 0; v < VECTORS; v += 2)
        for (int64_t i = 0; i < blocks; i++) {
            const int64_t begin = block_start(rows.count, blocks, i);
            const int64_t tile = block_start(rows.count, blocks, i + 1) - begin;
            multiply_rows(tile, a + begin * a_row, a_row, 1, b + v * W, k_count,
                          c + begin * PANEL + v * W, first);
        }
}

template <int TYPE>
static void attend(const LlmcOp& op, const LlmcBatch& batch, int64_t sequence, int64_t kv_head,
                   const Rows& rows, const Scoring& scoring) {
    const KvLayout layout(op);
    const int64_t window = scoring.window, last = rows.position(rows.count - 1);
    const int32_t* table = batch.block_tables + sequence * batch.max_blocks;
    int64_t sub = window ? max64(0, rows.first_position - window + 1) / 32 : 0;
    for (; sub * 32 <= last; sub++) {
        const char* unit = layout.unit(op.tensor[2], table, sub, kv_head);
        multiply_panel<TYPE>(rows, rows.q, rows.padded_size, unit, rows.head_size, rows.scores, true);
        online_softmax(rows, sub * 32, scoring);
        // Slots beyond the last query's position hold another sequence's leftovers: not touched.
        const int64_t keys = min64(32, last - sub * 32 + 1);
        const char* values = unit + layout.values_offset();
        for (int64_t d = 0; d < rows.padded_size; d += PANEL, values += layout.panel_bytes())
            multiply_panel<TYPE>(rows, rows.scores, PANEL, values, keys, rows.out + d * rows.count,
                                 false);
    }
}

static void run(const LlmcOp& op, const Step& step, int64_t task, Scratch& scratch) {
    const LlmcBatch& batch = *step.batch;
    const int64_t heads = op.dim[0], kv_heads = op.dim[1], size = op.dim[2], group = heads / kv_heads;
    const int64_t taken = heads_per_task(op, step), parts = heads / taken;
    const int64_t tile = task / parts, head = task % parts * taken;
    const int64_t begin = batch.tile_start[tile], tokens = batch.tile_start[tile + 1] - begin;
    Rows rows{tokens * taken, taken, batch.positions[begin], size, pad32(size)};
    const Scoring scoring(op, head);
    float* next = scratch.memory;
    auto take = [&next](int64_t count) { float* p = next; next += (count + 15) / 16 * 16; return p; };
    rows.q = take(rows.count * rows.padded_size);
    rows.scores = take(rows.count * PANEL);
    rows.out = take(rows.count * rows.padded_size);
    rows.maximum = take(rows.count);
    rows.total = take(rows.count);
    rows.unpacked = take(max64(rows.padded_size, 32) * PANEL);
    const float* qkv = step.buffers[op.input] + begin * (heads + 2 * kv_heads) * size;
    for (int64_t r = 0; r < rows.count; r++) {
        const float* q = qkv + r / taken * (heads + 2 * kv_heads) * size + (head + r % taken) * size;
        for (int64_t i = 0; i < size; i++) rows.q[r * rows.padded_size + i] = q[i] * op.param[0];
        // A sink is a key that was seen first and has no value.
        rows.maximum[r] = scoring.sinks ? scoring.sinks[r % taken] : NO_MAXIMUM;
        rows.total[r] = scoring.sinks ? 1 : 0;
    }
    memset(rows.out, 0, rows.count * rows.padded_size * sizeof(float));
    const int64_t sequence = batch.tile_sequence[tile], kv_head = head / group;
    if (op.type == LLMC_F32) attend<LLMC_F32>(op, batch, sequence, kv_head, rows, scoring);
    if (op.type == LLMC_F16) attend<LLMC_F16>(op, batch, sequence, kv_head, rows, scoring);
    if (op.type == LLMC_BF16) attend<LLMC_BF16>(op, batch, sequence, kv_head, rows, scoring);
    if (op.type == LLMC_I8) attend<LLMC_I8>(op, batch, sequence, kv_head, rows, scoring);
    if (op.type == LLMC_F8) attend<LLMC_F8>(op, batch, sequence, kv_head, rows, scoring);
    for (int64_t r = 0; r < rows.count; r++) {
        float* y = step.buffers[op.output] + (begin + r / taken) * heads * size + (head + r % taken) * size;
        for (int64_t i = 0; i < size; i++)
            y[i] = rows.out[i / PANEL * PANEL * rows.count + r * PANEL + i % PANEL] / rows.total[r] *
                   op.param[1];
    }
}

extern const Kernel attention = {num_tasks, run};

}  // namespace LLMC_NS
