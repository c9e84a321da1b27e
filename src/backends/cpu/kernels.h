// The CPU kernels, as a table of plain functions over packed panels. One folder per instruction set
// fills one table; all tables read the same packed bytes, so the reference is an oracle for each.
//
// A kernel file includes this header, <immintrin.h> or <arm_neon.h>, headers whose functions are in
// an unnamed namespace, and nothing else: whatever inline code it pulled in would be compiled with
// its -m flags, and the linker might keep that copy for everyone (tools/check_kernel_symbols.sh).
// Functions here are static for the same reason.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kun {

constexpr int kPanelRows = 32;       // weight rows side by side in one panel
constexpr int kBlockColumns = 32;    // columns that share one activation scale
constexpr int kTileTokens = 6;       // tokens of one kernel call: what AVX-512 holds in registers
constexpr int kLineTileTokens = 16;  // the same where BF16 comes in lines: what an AMX tile holds
constexpr int kLineBytes = 64;       // kBlockColumns columns of one token in BF16
constexpr int kSuperBlocks = 8;      // blocks under one pair of super scales (256 columns)
constexpr int kGroupPositions = 16;  // cache positions side by side in one key group
constexpr int kSplitPositions = 256;
constexpr int kSplitGroups = kSplitPositions / kGroupPositions;
constexpr int kQueriesMax = 32;  // queries of one attention tile

// How a panel holds its weights. Grouped formats mean w = scale * code + min per group of columns:
// 4, 6 or 8 bits, scales as F16, F32 or "super" (int8 times an F16 per 256 columns), groups of
// 32 columns or, where the name says so, 16.
enum class PanelFormat : std::uint8_t {
  kF32,
  kBF16,
  k4F16,
  k4F16Min,
  k4SuperMin,
  k4Super16,
  k4Super16Min,
  k6SuperMin,
  k6Super16,
  k8F16,
  k8F16Min,
  k8F32,
  k8F32Group16,
  k8Super,
};
constexpr int kPanelFormatCount = 14;

enum class ScaleKind : std::uint8_t { kF16, kF32, kSuper };

struct PanelTraits {
  int bits;
  int group;  // columns under one scale
  ScaleKind scale;
  bool has_min;
};

static constexpr PanelTraits panel_traits(PanelFormat format) {
  switch (format) {
    case PanelFormat::kF32: return {32, 0, ScaleKind::kF32, false};
    case PanelFormat::kBF16: return {16, 0, ScaleKind::kF32, false};
    case PanelFormat::k4F16: return {4, 32, ScaleKind::kF16, false};
    case PanelFormat::k4F16Min: return {4, 32, ScaleKind::kF16, true};
    case PanelFormat::k4SuperMin: return {4, 32, ScaleKind::kSuper, true};
    case PanelFormat::k4Super16: return {4, 16, ScaleKind::kSuper, false};
    case PanelFormat::k4Super16Min: return {4, 16, ScaleKind::kSuper, true};
    case PanelFormat::k6SuperMin: return {6, 32, ScaleKind::kSuper, true};
    case PanelFormat::k6Super16: return {6, 16, ScaleKind::kSuper, false};
    case PanelFormat::k8F16: return {8, 32, ScaleKind::kF16, false};
    case PanelFormat::k8F16Min: return {8, 32, ScaleKind::kF16, true};
    case PanelFormat::k8F32: return {8, 32, ScaleKind::kF32, false};
    case PanelFormat::k8F32Group16: return {8, 16, ScaleKind::kF32, false};
    case PanelFormat::k8Super: return {8, 32, ScaleKind::kSuper, false};
  }
  return {};
}

static constexpr int scale_bytes(ScaleKind kind) {
  return kind == ScaleKind::kF32 ? 4 : kind == ScaleKind::kF16 ? 2 : 1;
}
static constexpr int code_bytes(PanelTraits t) {
  return kPanelRows * kBlockColumns * t.bits / 8;
}
// One plane of scales (or mins) of a block: [group][row].
static constexpr int scale_plane_bytes(PanelTraits t) {
  return kPanelRows * (kBlockColumns / t.group) * scale_bytes(t.scale);
}
// A block: codes, then scales, then mins if any.
static constexpr int block_bytes(PanelTraits t) {
  return code_bytes(t) + scale_plane_bytes(t) * (t.has_min ? 2 : 1);
}
// Before every kSuperBlocks blocks of a super format: F16 d[row], then F16 dmin[row] if mins.
static constexpr int header_bytes(PanelTraits t) {
  return t.scale == ScaleKind::kSuper ? kPanelRows * 2 * (t.has_min ? 2 : 1) : 0;
}
// What is subtracted from a code of fewer bits than 8; codes of 8 are stored signed.
static constexpr int code_offset(PanelTraits t) {
  return t.bits < 8 && !t.has_min ? 1 << (t.bits - 1) : 0;
}
// The largest stored code of fewer bits than 8: 31 with 6 bits in groups of 32, so that one product
// of every quad of a group always fits 16 bits (8 * 31 * 127 and 4 * 63 * 127 are below 2^15).
static constexpr int code_max(PanelTraits t) {
  return t.bits == 4 ? 15 : t.group == 32 ? 31 : 63;
}

// Codes of a block: 4-byte pieces [quad of columns][row][4]. With 4 bits, byte i of piece (j, row)
// holds column 8j + i in its low half and column 8j + 4 + i in its high half. With 6 bits three
// pieces hold four quads: byte i of piece (3j + k, row), k < 3, holds column 16j + 4k + i in its
// low six bits and bits 2k and 2k + 1 of column 16j + 12 + i in its high two. So three of four
// quads cost a mask, and the fourth three shifts, where a nibble and two bits would cost five.
//
// kF32 panels are [column][row]; kBF16 panels [column pair][row][2].

// 32 activations as int8 codes: x = scale * code, scale = max|x| / 127. One cache line.
struct ActivationBlock {
  std::int8_t codes[kBlockColumns];
  float scale;
  std::int32_t negated_sum;          // -(sum of codes)
  std::int32_t negated_half_sum[2];  // the same over columns 0..15 and 16..31
  float sum;                         // scale * (sum of codes)
  float half_sum[2];
  float unused;
};
static_assert(sizeof(ActivationBlock) == 64);

// Blocks whose largest magnitude is below this count as zero: its reciprocal must stay finite.
constexpr float kActivationFloor = 0x1p-110F;

// An INT8 cache meets weights of positions that are integers from 0 to this: two signed bytes, the
// lower of them rounded, hold one.
constexpr int kWeightMax = 127 * 256 + 127;
// Scaled weights whose largest is below this count as zero: its reciprocal must stay finite.
constexpr float kWeightFloor = 0x1p-112F;

// out[t, r] (+)= sum_c activations[t, c] * panel[r, c] + bias[r] for one panel and a tile of
// tokens. Every element sees its groups in column order with the same operations, whatever `tokens`
// is.
struct LinearTile {
  const std::byte* panel;
  std::int64_t cols;
  const void* activations;  // in the table's InputForm for the panel (input_tiles.h)
  int tokens;               // 1..kTileTokens, for lines 1..kLineTileTokens
  int rows;                 // valid rows of the panel, 1..kPanelRows
  float* out;
  std::int64_t out_stride;
  const float* bias;  // [rows] or null
  bool accumulate;
  // Bytes to bring into the second-level cache meanwhile, a little per block; or null and 0.
  const std::byte* prefetch;
  std::int64_t prefetch_bytes;
};
using LinearKernel = void (*)(const LinearTile& tile);

// Queries that read the same key head, over one split of the context. For each query q over its
// first counts[q] positions: score = scale * query . key, max = max score, sum = sum exp(score -
// max), out = sum exp(score - max) * value. Positions past counts[q] do not show in what q gets,
// whatever they hold.
struct AttentionTile {
  // F32 cache: float [query][dim]; BF16: see CpuKernels::rounds_to_bf16; INT8: codes [query][dim].
  const void* queries;
  const float* query_scales;  // [query], INT8 cache only
  const int* counts;          // [query], 0..kSplitPositions
  int query_count;            // 1..kQueriesMax
  int dim;                    // of queries and keys; even for BF16, a multiple of 4 for INT8
  int value_dim;
  float scale;
  // Pieces. BF16 [dim/2][16][2], F32 [dim][16]; INT8 [dim/4][16][4], then float scales [16].
  const std::byte* keys[kSplitGroups];
  // BF16 [8][value_stride][2], F32 [16][value_stride]; INT8 as BF16, then float scales [16].
  const std::byte* values[kSplitGroups];
  std::int64_t value_stride;  // elements
  // What the next tile will read, to be brought nearer meanwhile: pieces of `next_bytes` each, the
  // keys of `next_groups` groups, then their values.
  const std::byte* next[2 * kSplitGroups];
  int next_groups;
  int next_bytes;
  float* scores;  // scratch [query][kSplitPositions]
  float* max;     // [query]
  float* sum;     // [query]
  float* out;     // [query][value_dim]
};
using AttentionKernel = void (*)(const AttentionTile& tile);

struct CpuKernels {
  const char* name;

  // Whether kBF16 weights and cache are met by activations and queries rounded to BF16 pairs
  // (uint32: even column low, odd column high) rather than by F32 ones.
  bool rounds_to_bf16;

  LinearKernel linear[kPanelFormatCount];  // by PanelFormat

  // Writes block b of one token to out[b * stride]. Non-finite inputs make their block's scale NaN.
  void (*quantize)(const float* in, std::int64_t cols, ActivationBlock* out, std::int64_t stride);
  // Writes pair p of one token to out[p * stride]; an odd last column is paired with zero.
  void (*to_bf16_pairs)(const float* in, std::int64_t cols, std::uint32_t* out,
                        std::int64_t stride);
  // Writes line l of one token, 32 columns as BF16, to out + l * stride; the last is filled up with
  // zeros. Null where kBF16 panels do not meet InputForm::kBf16Lines.
  void (*to_bf16_lines)(const float* in, std::int64_t cols, std::byte* out, std::int64_t stride);

  AttentionKernel attention_f32;
  AttentionKernel attention_bf16;
  AttentionKernel attention_int8;

  // The codes of a head in an INT8 cache, or of its query: round(x * 127 / max|x|), to nearest
  // even, each operation rounded to float. Returns the scale, max|x| * (1 / 127); NaN with codes 0
  // when an element is not finite; 0 when max|x| is below kActivationFloor. All tables give the
  // same bits.
  float (*quantize_head)(const float* in, int size, std::int8_t* codes);

  // Folds one split into a running softmax: (max, sum, out) and (split_*) become their union.
  void (*attention_fold)(float* max, float* sum, float* out, float split_max, float split_sum,
                         const float* split_out, int dim);

  // out[i] = in[i] * (mean(in^2) + epsilon)^-1/2 * weight[i]
  void (*rms_norm)(const float* in, const float* weight, float epsilon, float* out,
                   std::int64_t size);
  // Rotates `heads` heads of one token. cos_sin: [dim/2][2].
  void (*rope_half)(float* head, std::int64_t head_stride, int heads, int dim,
                    const float* cos_sin);
  void (*rope_interleaved)(float* head, std::int64_t head_stride, int heads, int dim,
                           const float* cos_sin);
  // out[i] = gate[i] / (1 + exp(-gate[i])) * up[i]
  void (*silu_gate)(const float* gate, const float* up, float* out, std::int64_t size);

  // out[i] += weight * in[i]
  void (*add_scaled)(float weight, const float* in, float* out, std::int64_t size);

  // Entries of a latent cache, 16 rows, as attention_* reads them: keys are the rows' 32-bit words
  // side by side, [word][16]; values (BF16) the elements of rows 2p and 2p + 1 in pairs,
  // [8][stride][2].
  void (*gather_keys)(const std::byte* const* rows, int words, std::byte* out);
  void (*gather_values)(const std::byte* const* rows, int width, std::int64_t stride,
                        std::byte* out);

  // For benchmarks: run the table's fastest multiply for `rounds` rounds and return the operations
  // done (a multiply and an add are two). Null where there is no such instruction.
  std::int64_t (*peak_int8)(std::int64_t rounds);
  std::int64_t (*peak_bf16)(std::int64_t rounds);
  std::int64_t (*peak_f32)(std::int64_t rounds);
  // Reads `bytes` (a multiple of 256) as fast as it can; returns something that depends on them.
  std::uint64_t (*read_bytes)(const std::byte* data, std::int64_t bytes);
};

// Each table starts as a copy of the one before it and replaces what it can do better.
const CpuKernels& reference_kernels();  // plain C++, double sums; the oracle for all others
const CpuKernels& avx2_kernels();       // AVX2, FMA, F16C
const CpuKernels& avx512_kernels();     // AVX-512 F, BW, VL, DQ, VNNI, BF16
const CpuKernels& amx_kernels();        // AVX-512, with AMX tiles for BF16
const CpuKernels& neon_kernels();       // ARMv8.0
const CpuKernels& neon_dot_kernels();   // ARMv8.2 with dot products
const CpuKernels& neon_i8mm_kernels();  // ARMv8.6's int8 matrix products
const CpuKernels& neon_bf16_kernels();  // ARMv8.6's BF16 products as well

}  // namespace kun
