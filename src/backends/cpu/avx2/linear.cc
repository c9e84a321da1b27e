// Linear kernels for AVX2 with FMA and F16C. A vector is 8 rows, so a panel is four slices; as many
// of them are taken together as registers allow. Without VNNI, 4-bit codes are summed in 16 bits
// over a group (15 * 127 * 2 * 8 < 2^15), and 8-bit codes, whose pairs would overflow as unsigned,
// are multiplied as magnitude and sign (128 * 127 * 2 < 2^15). BF16 weights are widened to F32.
#include <immintrin.h>

#include "backends/cpu/avx2/parts.h"

namespace kun {
namespace {

using AliasedInt = int __attribute__((may_alias));

constexpr int kSlices = 4;       // of 8 rows
constexpr int kSliceBytes = 32;  // of one vector

__m256i load(const std::byte* data) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
}

__m256i broadcast(const void* data) {
  return _mm256_set1_epi32(*static_cast<const AliasedInt*>(data));
}

// The first `count` lanes.
__m256i mask_of(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

template <int kTokens, int kTaken>
[[gnu::always_inline]] inline void store(const LinearTile& tile, int first_slice,
                                         const __m256 (&sums)[kTaken][kTokens]) {
#pragma GCC unroll 8
  for (int s = 0; s < kTaken; ++s) {
    const int row = 8 * (first_slice + s);
    if (tile.rows <= row) return;
    const __m256i mask = mask_of(tile.rows - row);
    const __m256 bias =
        tile.bias == nullptr ? _mm256_setzero_ps() : _mm256_maskload_ps(tile.bias + row, mask);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      float* out = tile.out + t * tile.out_stride + row;
      __m256 value = _mm256_add_ps(sums[s][t], bias);
      if (tile.accumulate) value = _mm256_add_ps(_mm256_maskload_ps(out, mask), value);
      _mm256_maskstore_ps(out, mask, value);
    }
  }
}

// --- Float panels
// ---------------------------------------------------------------------------------

// Slices that fit beside their accumulators.
constexpr int float_slices(int tokens) {
  return tokens <= 3 ? 4 : 2;
}

template <int kTokens>
void f32_slices(const LinearTile& tile, int first_slice) {
  constexpr int kTaken = float_slices(kTokens);
  __m256 sums[kTaken][kTokens] = {};
  const std::byte* weights = tile.panel + first_slice * kSliceBytes;
  const auto* in = static_cast<const float*>(tile.activations);
  for (std::int64_t c = 0; c < tile.cols; ++c, weights += 128, in += tile.tokens) {
#pragma GCC unroll 8
    for (int s = 0; s < kTaken; ++s) {
      const __m256 w = _mm256_castsi256_ps(load(weights + s * kSliceBytes));
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        sums[s][t] = _mm256_fmadd_ps(w, _mm256_broadcast_ss(in + t), sums[s][t]);
      }
    }
  }
  store(tile, first_slice, sums);
}

template <int kTokens>
void bf16_slices(const LinearTile& tile, int first_slice) {
  constexpr int kTaken = float_slices(kTokens);
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000U));
  __m256 sums[kTaken][kTokens] = {};
  const std::byte* weights = tile.panel + first_slice * kSliceBytes;
  const auto* in = static_cast<const float*>(tile.activations);
  for (std::int64_t c = 0; c < tile.cols; c += 2, weights += 128, in += 2 * tile.tokens) {
#pragma GCC unroll 8
    for (int s = 0; s < kTaken; ++s) {
      const __m256i pair = load(weights + s * kSliceBytes);
      const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        sums[s][t] = _mm256_fmadd_ps(even, _mm256_broadcast_ss(in + t), sums[s][t]);
      }
      if (c + 1 == tile.cols) continue;
      const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(pair, high));
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        sums[s][t] = _mm256_fmadd_ps(odd, _mm256_broadcast_ss(in + tile.tokens + t), sums[s][t]);
      }
    }
  }
  store(tile, first_slice, sums);
}

// Tokens [first, first + kTokens) of a tile, which keeps its own stride.
LinearTile tokens_from(const LinearTile& tile, int first) {
  LinearTile part = tile;
  part.activations = static_cast<const float*>(tile.activations) + first;
  part.out += first * tile.out_stride;
  return part;
}

// Six tokens leave no register for anything else.
template <template <int> class Slices, int kTokens>
void run_slices(const LinearTile& tile) {
  if constexpr (kTokens == 6) {
    run_slices<Slices, 4>(tile);
    run_slices<Slices, 2>(tokens_from(tile, 4));
  } else {
    for (int s = 0; s < kSlices; s += float_slices(kTokens)) Slices<kTokens>::run(tile, s);
  }
}

template <int kTokens>
struct F32Slices {
  static void run(const LinearTile& tile, int slice) { f32_slices<kTokens>(tile, slice); }
};

template <int kTokens>
struct Bf16Slices {
  static void run(const LinearTile& tile, int slice) { bf16_slices<kTokens>(tile, slice); }
};

template <int kTokens>
struct F32Panel {
  static void run(const LinearTile& tile) { run_slices<F32Slices, kTokens>(tile); }
};

template <int kTokens>
struct Bf16Panel {
  static void run(const LinearTile& tile) { run_slices<Bf16Slices, kTokens>(tile); }
};

// --- Grouped panels
// -------------------------------------------------------------------------------

constexpr int grouped_slices(int tokens) {
  return tokens == 1 ? 4 : tokens == 2 ? 2 : 1;
}

__m256 load_f16(const std::byte* data) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data)));
}

// 8 scales of a plane; `super` multiplies integer steps.
template <ScaleKind kKind>
[[gnu::always_inline]] inline __m256 load_scales(const std::byte* data, __m256 super) {
  if constexpr (kKind == ScaleKind::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(data));
  }
  if constexpr (kKind == ScaleKind::kF16) return load_f16(data);
  if constexpr (kKind == ScaleKind::kSuper) {
    const __m128i steps = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(steps)), super);
  }
}

// Dot products of one group for 8 rows, in 32 bits, without the offset's share.
template <PanelFormat kFormat, int kTokens>
[[gnu::always_inline]] inline void dot_group(const std::byte* codes, int group,
                                             const ActivationBlock* in, __m256i (&dots)[kTokens]) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  const __m256i ones = _mm256_set1_epi16(1);
  const int first = group * kTraits.group;
  for (__m256i& dot : dots) dot = _mm256_setzero_si256();
  if constexpr (kTraits.bits == 8) {
    for (int c = first; c < first + kTraits.group; c += 4) {
      const __m256i weights = load(codes + c * kPanelRows);
      const __m256i magnitude = _mm256_abs_epi8(weights);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const __m256i signed_in = _mm256_sign_epi8(broadcast(in[t].codes + c), weights);
        const __m256i pairs = _mm256_maddubs_epi16(magnitude, signed_in);
        dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(pairs, ones));
      }
    }
  } else {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int c = first; c < first + kTraits.group; c += 8) {
      const __m256i both = load(codes + c / 8 * kPanelRows * 4);
      const __m256i low = _mm256_and_si256(both, mask);
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const __m256i a = _mm256_maddubs_epi16(low, broadcast(in[t].codes + c));
        const __m256i b = _mm256_maddubs_epi16(high, broadcast(in[t].codes + c + 4));
        dots[t] = _mm256_add_epi16(dots[t], _mm256_add_epi16(a, b));
      }
    }
    for (__m256i& dot : dots) dot = _mm256_madd_epi16(dot, ones);
  }
}

// -offset * sum of the activations' codes.
template <PanelFormat kFormat>
[[gnu::always_inline]] inline __m256i offset_part(const ActivationBlock& in, int group) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  const std::int32_t* sum = kTraits.group == 32 ? &in.negated_sum : &in.negated_half_sum[group];
  return _mm256_slli_epi32(broadcast(sum), 3);
}

// One slice (8 rows) of one block.
template <PanelFormat kFormat, int kTokens>
[[gnu::always_inline]] inline void multiply_block(const std::byte* block, int slice,
                                                  __m256 super_scale, __m256 super_min,
                                                  const ActivationBlock* in,
                                                  __m256 (&sums)[kTokens]) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  constexpr int kScaleBytes = scale_bytes(kTraits.scale);
  const std::byte* scales = block + code_bytes(kTraits) + 8 * slice * kScaleBytes;
  const std::byte* mins = scales + scale_plane_bytes(kTraits);
  for (int g = 0; g < kBlockColumns / kTraits.group; ++g) {
    __m256i dots[kTokens];
    dot_group<kFormat, kTokens>(block + slice * kSliceBytes, g, in, dots);
    const int plane = g * kPanelRows * kScaleBytes;
    const __m256 scale = load_scales<kTraits.scale>(scales + plane, super_scale);
    __m256 min = _mm256_setzero_ps();
    if constexpr (kTraits.has_min) min = load_scales<kTraits.scale>(mins + plane, super_min);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      __m256i dot = dots[t];
      if constexpr (code_offset(kTraits) != 0) {
        static_assert(code_offset(kTraits) == 8);
        dot = _mm256_add_epi32(dot, offset_part<kFormat>(in[t], g));
      }
      const __m256 joint = _mm256_mul_ps(scale, _mm256_broadcast_ss(&in[t].scale));
      sums[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), joint, sums[t]);
      if constexpr (kTraits.has_min) {
        const float* sum = kTraits.group == 32 ? &in[t].sum : &in[t].half_sum[g];
        sums[t] = _mm256_fmadd_ps(min, _mm256_broadcast_ss(sum), sums[t]);
      }
    }
  }
}

template <PanelFormat kFormat, int kTokens>
void grouped_panel(const LinearTile& tile, int first_slice) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  constexpr bool kSuper = kTraits.scale == ScaleKind::kSuper;
  constexpr int kSpan = kSuper ? kSuperBlocks : 1;
  constexpr int kTaken = grouped_slices(kTokens);
  __m256 sums[kTaken][kTokens] = {};
  const std::byte* block = tile.panel;
  const auto* in = static_cast<const ActivationBlock*>(tile.activations);
  const std::int64_t spans = tile.cols / (kBlockColumns * kSpan);
  for (std::int64_t i = 0; i < spans; ++i) {
    __m256 super[kTaken][2] = {};
    if constexpr (kSuper) {
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) {
        const std::byte* header = block + 16 * (first_slice + s);
        super[s][0] = load_f16(header);
        if constexpr (kTraits.has_min) super[s][1] = load_f16(header + 2 * kPanelRows);
      }
      block += header_bytes(kTraits);
    }
    for (int b = 0; b < kSpan; ++b) {
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) {
        multiply_block<kFormat, kTokens>(block, first_slice + s, super[s][0], super[s][1], in,
                                         sums[s]);
      }
      block += block_bytes(kTraits);
      in += kTokens;
    }
  }
  store(tile, first_slice, sums);
}

template <PanelFormat kFormat>
struct Grouped {
  template <int kTokens>
  struct Panel {
    static void run(const LinearTile& tile) {
      for (int s = 0; s < kSlices; s += grouped_slices(kTokens)) {
        grouped_panel<kFormat, kTokens>(tile, s);
      }
    }
  };
};

// --- Activations
// ----------------------------------------------------------------------------------

// A float's magnitude as an integer orders like the float, with NaN above infinity.
constexpr int kInfinityBits = 0x7F800000;

int largest_lane(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
  return _mm_cvtsi128_si32(m);
}

int sum_lanes(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
  return _mm_cvtsi128_si32(s);
}

void quantize_block(const float* in, ActivationBlock* out) {
  __m256 x[4];
  __m256i codes[4];
  __m256i largest_bits = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_loadu_ps(in + 8 * i);
    largest_bits = _mm256_max_epi32(
        largest_bits, _mm256_and_si256(_mm256_castps_si256(x[i]), _mm256_set1_epi32(0x7FFFFFFF)));
  }
  const int bits = largest_lane(largest_bits);
  const bool finite = bits < kInfinityBits;
  const float largest = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
  const bool zero = !finite || largest < kActivationFloor;
  const __m256 inverse = _mm256_set1_ps(zero ? 0.0F : 127.0F / largest);
  const __m256i keep = _mm256_set1_epi32(zero ? 0 : -1);
  for (int i = 0; i < 4; ++i) {
    codes[i] = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(x[i], inverse)), keep);
  }
  // Packing works in 128-bit halves; the permutation puts the quads back in order.
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]),
                                            _mm256_packs_epi32(codes[2], codes[3]));
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(out->codes),
      _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  const int sums[2] = {sum_lanes(_mm256_add_epi32(codes[0], codes[1])),
                       sum_lanes(_mm256_add_epi32(codes[2], codes[3]))};
  out->scale = !finite ? __builtin_nanf("") : zero ? 0.0F : largest * (1.0F / 127.0F);
  for (int i = 0; i < 2; ++i) {
    out->negated_half_sum[i] = -sums[i];
    out->half_sum[i] = out->scale * static_cast<float>(sums[i]);
  }
  out->negated_sum = -(sums[0] + sums[1]);
  out->sum = out->scale * static_cast<float>(sums[0] + sums[1]);
}

void quantize(const float* in, std::int64_t cols, ActivationBlock* out, std::int64_t stride) {
  for (std::int64_t b = 0; b < cols / kBlockColumns; ++b) {
    quantize_block(in + b * kBlockColumns, out + b * stride);
  }
}

// --- The table
// ------------------------------------------------------------------------------------

template <template <int> class Panel>
void dispatch(const LinearTile& tile) {
  switch (tile.tokens) {
    case 1: Panel<1>::run(tile); return;
    case 2: Panel<2>::run(tile); return;
    case 3: Panel<3>::run(tile); return;
    case 4: Panel<4>::run(tile); return;
    case 5: Panel<5>::run(tile); return;
    default: Panel<6>::run(tile); return;
  }
}

template <PanelFormat kFormat>
void add_grouped(CpuKernels* table) {
  table->linear[static_cast<int>(kFormat)] = dispatch<Grouped<kFormat>::template Panel>;
}

}  // namespace

void add_avx2_linear(CpuKernels* table) {
  table->linear[static_cast<int>(PanelFormat::kF32)] = dispatch<F32Panel>;
  table->linear[static_cast<int>(PanelFormat::kBF16)] = dispatch<Bf16Panel>;
  add_grouped<PanelFormat::k4F16>(table);
  add_grouped<PanelFormat::k4F16Min>(table);
  add_grouped<PanelFormat::k4SuperMin>(table);
  add_grouped<PanelFormat::k4Super16>(table);
  add_grouped<PanelFormat::k4Super16Min>(table);
  add_grouped<PanelFormat::k8F16>(table);
  add_grouped<PanelFormat::k8F16Min>(table);
  add_grouped<PanelFormat::k8F32>(table);
  add_grouped<PanelFormat::k8F32Group16>(table);
  add_grouped<PanelFormat::k8Super>(table);
  add_grouped<PanelFormat::k8SuperMin>(table);
  add_grouped<PanelFormat::k8Super16>(table);
  table->quantize = quantize;
}

}  // namespace kun
