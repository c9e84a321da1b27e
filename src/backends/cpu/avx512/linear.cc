// Linear kernels for AVX-512 with VNNI and BF16. A vector is 16 rows, so a panel is two of them;
// activations are broadcast from memory. On Zen 4 the dot products, the multiply and the FMA of a
// group share one operation per cycle and everything else hides beside them.
#include <immintrin.h>

#include "backends/cpu/avx512/linear_parts.h"
#include "backends/cpu/avx512/parts.h"
#include "backends/cpu/code_scale.h"
#include "backends/cpu/linear_table.h"

namespace kun {
namespace {

using AliasedInt = int __attribute__((may_alias));

__m512i load(const std::byte* data) {
  return _mm512_loadu_si512(data);
}

__m512i broadcast(const void* data) {
  return _mm512_set1_epi32(*static_cast<const AliasedInt*>(data));
}

__m512 load_f16(const std::byte* data) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data)));
}

template <int kTokens>
[[gnu::always_inline]] inline void store(const LinearTile& tile,
                                         const __m512 (&sums)[kHalves][kTokens]) {
#pragma GCC unroll 8
  for (int h = 0; h < kHalves; ++h) {
    if (16 * h >= tile.rows) return;
    const OutputRows out(tile, h);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) out.store(t, sums[h][t]);
  }
}

// --- Float panels --------------------------------------------------------------------------------

struct F32Step {
  static __m512 multiply_add(__m512i weights, const void* in, __m512 sum) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(weights), _mm512_castsi512_ps(broadcast(in)), sum);
  }
};

struct Bf16Step {
  static __m512 multiply_add(__m512i weights, const void* in, __m512 sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(weights),
                            reinterpret_cast<__m512bh>(broadcast(in)));
  }
};

// A step is one column (F32) or a pair of columns (BF16); both take 4 bytes of input.
template <class Step, int kTokens>
void float_panel(const LinearTile& tile, std::int64_t steps) {
  __m512 sums[kHalves][kTokens] = {};
  const std::byte* weights = tile.panel;
  const auto* in = static_cast<const std::byte*>(tile.activations);
  Prefetcher prefetcher(tile, steps);
  for (std::int64_t i = 0; i < steps; ++i, weights += 128, in += 4 * kTokens) {
    prefetcher.step();
    const __m512i low = load(weights);
    const __m512i high = load(weights + 64);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      sums[0][t] = Step::multiply_add(low, in + 4 * t, sums[0][t]);
      sums[1][t] = Step::multiply_add(high, in + 4 * t, sums[1][t]);
    }
  }
  store(tile, sums);
}

template <int kTokens>
struct F32Panel {
  static void run(const LinearTile& tile) { float_panel<F32Step, kTokens>(tile, tile.cols); }
};

template <int kTokens>
struct Bf16Panel {
  static void run(const LinearTile& tile) {
    float_panel<Bf16Step, kTokens>(tile, (tile.cols + 1) / 2);
  }
};

// --- Grouped panels ------------------------------------------------------------------------------

// 16 scales of a plane; `super` multiplies integer steps.
template <ScaleKind kKind>
[[gnu::always_inline]] inline __m512 load_scales(const std::byte* data, __m512 super) {
  if constexpr (kKind == ScaleKind::kF32) return _mm512_loadu_ps(data);
  if constexpr (kKind == ScaleKind::kF16) return load_f16(data);
  if constexpr (kKind == ScaleKind::kSuper) {
    const __m128i steps = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(steps)), super);
  }
}

// sum + dot products of 16 rows' codes (unsigned) with 4 activations. In assembly, so that the
// broadcast stays part of the instruction: GCC loads it into a register and spills accumulators.
__m512i dot(__m512i sum, __m512i weights, const std::int8_t* in) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum)
      : "v"(weights), "m"(*reinterpret_cast<const AliasedInt*>(in)));
  return sum;
}

// Four quads of 6-bit codes.
struct SixBits {
  __m512i quads[4];
};
[[gnu::always_inline]] inline SixBits load_six_bits(const std::byte* data) {
  constexpr int kOrMasked = 0xF8;  // a | (b & c)
  const __m512i mask = _mm512_set1_epi8(63);
  const __m512i a = load(data);
  const __m512i b = load(data + kPanelRows * 4);
  const __m512i c = load(data + 2 * kPanelRows * 4);
  __m512i last = _mm512_and_si512(_mm512_srli_epi16(a, 6), _mm512_set1_epi8(3));
  last = _mm512_ternarylogic_epi32(last, _mm512_srli_epi16(b, 4), _mm512_set1_epi8(12), kOrMasked);
  last = _mm512_ternarylogic_epi32(last, _mm512_srli_epi16(c, 2), _mm512_set1_epi8(48), kOrMasked);
  return {{_mm512_and_si512(a, mask), _mm512_and_si512(b, mask), _mm512_and_si512(c, mask), last}};
}

// Adds the products of one group of columns to `dots` for 16 rows. Codes are unsigned here; what
// that adds was put into the start value.
template <PanelFormat kFormat, int kTokens>
[[gnu::always_inline]] inline void dot_group(const std::byte* codes, int group,
                                             const ActivationBlock* in, __m512i (&dots)[kTokens]) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  const int first = group * kTraits.group;
  if constexpr (kTraits.bits == 6) {
    for (int c = first; c < first + kTraits.group; c += 16) {
      const SixBits weights = load_six_bits(codes + c / 16 * 3 * kPanelRows * 4);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
          dots[t] = dot(dots[t], weights.quads[q], in[t].codes + c + 4 * q);
        }
      }
    }
  } else if constexpr (kTraits.bits == 8) {
    const __m512i flip = _mm512_set1_epi8(-128);
    for (int c = first; c < first + kTraits.group; c += 4) {
      const __m512i weights = _mm512_xor_si512(load(codes + c * kPanelRows), flip);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        dots[t] = dot(dots[t], weights, in[t].codes + c);
      }
    }
  } else {
    const __m512i mask = _mm512_set1_epi8(15);
    for (int c = first; c < first + kTraits.group; c += 8) {
      const __m512i both = load(codes + c / 8 * kPanelRows * 4);
      const __m512i low = _mm512_and_si512(both, mask);
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        dots[t] = dot(dots[t], low, in[t].codes + c);
        dots[t] = dot(dots[t], high, in[t].codes + c + 4);
      }
    }
  }
}

// Where a group's dot product starts: -offset * sum of the activations' codes.
template <PanelFormat kFormat>
[[gnu::always_inline]] inline __m512i start_of(const ActivationBlock& in, int group) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  constexpr int kOffset = kTraits.bits == 8 ? 128 : code_offset(kTraits);
  if constexpr (kOffset == 0) return _mm512_setzero_si512();
  constexpr int kShift = kTraits.bits - 1;
  static_assert(kOffset == 0 || kOffset == 1 << kShift);
  const std::int32_t* sum = kTraits.group == 32 ? &in.negated_sum : &in.negated_half_sum[group];
  return _mm512_slli_epi32(broadcast(sum), kShift);
}

// One half (16 rows) of one block.
template <PanelFormat kFormat, int kTokens>
[[gnu::always_inline]] inline void multiply_block(const std::byte* block, int half,
                                                  __m512 super_scale, __m512 super_min,
                                                  const ActivationBlock* in, __m512* sums) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  constexpr int kScaleBytes = scale_bytes(kTraits.scale);
  const std::byte* codes = block + 64 * half;
  const std::byte* scales = block + code_bytes(kTraits) + 16 * half * kScaleBytes;
  const std::byte* mins = scales + scale_plane_bytes(kTraits);
  for (int g = 0; g < kBlockColumns / kTraits.group; ++g) {
    __m512i dots[kTokens];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) dots[t] = start_of<kFormat>(in[t], g);
    dot_group<kFormat, kTokens>(codes, g, in, dots);
    const int plane = g * kPanelRows * kScaleBytes;
    const __m512 scale = load_scales<kTraits.scale>(scales + plane, super_scale);
    __m512 min = _mm512_setzero_ps();
    if constexpr (kTraits.has_min) min = load_scales<kTraits.scale>(mins + plane, super_min);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const __m512 joint = _mm512_mul_ps(scale, _mm512_set1_ps(in[t].scale));
      sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t]), joint, sums[t]);
      if constexpr (kTraits.has_min) {
        const float sum = kTraits.group == 32 ? in[t].sum : in[t].half_sum[g];
        sums[t] = _mm512_fmadd_ps(min, _mm512_set1_ps(sum), sums[t]);
      }
    }
  }
}

template <PanelFormat kFormat, int kTokens>
void grouped_panel(const LinearTile& tile) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  constexpr bool kSuper = kTraits.scale == ScaleKind::kSuper;
  constexpr int kSpan = kSuper ? kSuperBlocks : 1;
  __m512 sums[kHalves][kTokens] = {};
  const std::byte* block = tile.panel;
  const auto* in = static_cast<const ActivationBlock*>(tile.activations);
  const std::int64_t spans = tile.cols / (kBlockColumns * kSpan);
  Prefetcher prefetcher(tile, spans * kSpan);
  for (std::int64_t s = 0; s < spans; ++s) {
    __m512 super[kHalves][2] = {};
    if constexpr (kSuper) {
#pragma GCC unroll 8
      for (int h = 0; h < kHalves; ++h) {
        super[h][0] = load_f16(block + 32 * h);
        if constexpr (kTraits.has_min) super[h][1] = load_f16(block + 2 * kPanelRows + 32 * h);
      }
      block += header_bytes(kTraits);
    }
    for (int b = 0; b < kSpan; ++b) {
#pragma GCC unroll 8
      for (int h = 0; h < kHalves; ++h) {
        multiply_block<kFormat, kTokens>(block, h, super[h][0], super[h][1], in, sums[h]);
      }
      block += block_bytes(kTraits);
      in += kTokens;
      prefetcher.step();
    }
  }
  store(tile, sums);
}

template <PanelFormat kFormat>
struct Grouped {
  template <int kTokens>
  struct Panel {
    static void run(const LinearTile& tile) { grouped_panel<kFormat, kTokens>(tile); }
  };
};

// --- Activations ---------------------------------------------------------------------------------

void quantize_block(const float* in, ActivationBlock* out) {
  const __m512 low = _mm512_loadu_ps(in);
  const __m512 high = _mm512_loadu_ps(in + 16);
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  const int largest_bits = _mm512_reduce_max_epi32(
      _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                       _mm512_and_si512(_mm512_castps_si512(high), magnitude)));
  const CodeScale by = code_scale(static_cast<std::uint32_t>(largest_bits));
  const __m512 inverse = _mm512_set1_ps(by.inverse);
  const auto keep = static_cast<__mmask16>(by.is_zero ? 0 : 0xFFFF);
  const __m512i low_codes = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(low, inverse));
  const __m512i high_codes = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(high, inverse));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out->codes), _mm512_cvtepi32_epi8(low_codes));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out->codes + 16), _mm512_cvtepi32_epi8(high_codes));
  const int sums[2] = {_mm512_reduce_add_epi32(low_codes), _mm512_reduce_add_epi32(high_codes)};
  store_factors(out, by.scale, sums);
}

// Eight blocks at once share what a block alone waits for: the division, and the ways from 16 lanes
// to one. What comes out is what quantize_block makes.
constexpr int kBlocksAtOnce = 8;

// The largest lane of each of eight vectors, halving the lanes of two in every step.
__m256i largest_lanes(const __m512i (&v)[kBlocksAtOnce]) {
  __m512i quarters[2];
  for (int i = 0; i < 2; ++i) {
    __m512i halves[2];
    for (int j = 0; j < 2; ++j) {
      const __m512i a = v[4 * i + 2 * j];
      const __m512i b = v[4 * i + 2 * j + 1];
      halves[j] =
          _mm512_max_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xEE));
    }
    quarters[i] = _mm512_max_epi32(_mm512_shuffle_i32x4(halves[0], halves[1], 0x88),
                                   _mm512_shuffle_i32x4(halves[0], halves[1], 0xDD));
  }
  // Quarter i holds block i in one vector and block 4 + i in the other.
  __m512i both = _mm512_max_epi32(_mm512_unpacklo_epi32(quarters[0], quarters[1]),
                                  _mm512_unpackhi_epi32(quarters[0], quarters[1]));
  both = _mm512_max_epi32(both, _mm512_shuffle_epi32(both, _MM_PERM_BADC));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, both));
}

// Codes of two blocks: that of `a` in the lower half. Packing works in 128-bit quarters; the
// permutation puts the quads back in order.
__m512i codes_of_two(const float* a, __m512 inverse_a, const float* b, __m512 inverse_b) {
  const auto code = [](const float* x, __m512 inverse) {
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), inverse));
  };
  const __m512i packed =
      _mm512_packs_epi16(_mm512_packs_epi32(code(a, inverse_a), code(a + 16, inverse_a)),
                         _mm512_packs_epi32(code(b, inverse_b), code(b + 16, inverse_b)));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, packed);
}

// Sums over the halves of eight blocks' codes: the first halves, then the second. `quads` are sums
// of 4 codes, [pair of blocks][block][half][4].
__m512i half_sums(const __m512i (&quads)[kBlocksAtOnce / 2]) {
  const auto fold = [](__m512i low, __m512i high) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(low, high), _mm512_unpackhi_epi32(low, high));
  };
  const __m512i low = fold(quads[0], quads[1]);
  const __m512i high = fold(quads[2], quads[3]);
  const __m512i sums =
      _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
  // [block of its pair][half][pair]
  const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  return _mm512_permutexvar_epi32(order, sums);
}

// Writes what follows the codes in eight blocks; rows[i] is the i-th number of every block.
void store_eight(const __m256 (&rows)[8], ActivationBlock* out, std::int64_t stride) {
  __m256 pairs[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  __m256 fours[8];
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
      fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xEE);
    }
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(&out[i * stride].scale, _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20));
    _mm256_storeu_ps(&out[(i + 4) * stride].scale,
                     _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31));
  }
}

// False, and nothing done, when a block is too small, or has an infinity or NaN.
bool quantize_eight(const float* in, ActivationBlock* out, std::int64_t stride) {
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  __m512i lanes[kBlocksAtOnce];
#pragma GCC unroll 8
  for (int b = 0; b < kBlocksAtOnce; ++b) {
    const std::byte* x = reinterpret_cast<const std::byte*>(in + b * kBlockColumns);
    lanes[b] = _mm512_max_epi32(_mm512_and_si512(load(x), magnitude),
                                _mm512_and_si512(load(x + 64), magnitude));
  }
  const __m256i bits = largest_lanes(lanes);
  const __m256 largest = _mm256_castsi256_ps(bits);
  const __mmask8 small = _mm256_cmp_ps_mask(largest, _mm256_set1_ps(kActivationFloor), _CMP_LT_OQ);
  const __mmask8 large =
      _mm256_cmpge_epi32_mask(bits, _mm256_set1_epi32(static_cast<int>(kInfinityBits)));
  if ((small | large) != 0) return false;
  alignas(32) float inverse[kBlocksAtOnce];
  _mm256_store_ps(inverse, _mm256_div_ps(_mm256_set1_ps(127.0F), largest));
  __m512i quads[kBlocksAtOnce / 2];
#pragma GCC unroll 8
  for (int b = 0; b < kBlocksAtOnce; b += 2) {
    const float* x = in + b * kBlockColumns;
    const __m512i codes = codes_of_two(x, _mm512_set1_ps(inverse[b]), x + kBlockColumns,
                                       _mm512_set1_ps(inverse[b + 1]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[b * stride].codes),
                        _mm512_castsi512_si256(codes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[(b + 1) * stride].codes),
                        _mm512_extracti64x4_epi64(codes, 1));
    quads[b / 2] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), codes);
  }
  const __m512i halves = half_sums(quads);
  const __m256i first = _mm512_castsi512_si256(halves);
  const __m256i second = _mm512_extracti64x4_epi64(halves, 1);
  const __m256i whole = _mm256_add_epi32(first, second);
  const __m256 scale = _mm256_mul_ps(largest, _mm256_set1_ps(1.0F / 127.0F));
  const auto negated = [](__m256i x) {
    return _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_setzero_si256(), x));
  };
  const auto scaled = [&](__m256i x) { return _mm256_mul_ps(scale, _mm256_cvtepi32_ps(x)); };
  store_eight({scale, negated(whole), negated(first), negated(second), scaled(whole), scaled(first),
               scaled(second), _mm256_setzero_ps()},
              out, stride);
  return true;
}

void quantize(const float* in, std::int64_t cols, ActivationBlock* out, std::int64_t stride) {
  const std::int64_t count = cols / kBlockColumns;
  for (std::int64_t b = 0; b < count;) {
    if (b + kBlocksAtOnce <= count &&
        quantize_eight(in + b * kBlockColumns, out + b * stride, stride)) {
      b += kBlocksAtOnce;
      continue;
    }
    const std::int64_t end = b + kBlocksAtOnce < count ? b + kBlocksAtOnce : count;
    for (; b < end; ++b) quantize_block(in + b * kBlockColumns, out + b * stride);
  }
}

void to_bf16_pairs(const float* in, std::int64_t cols, std::uint32_t* out, std::int64_t stride) {
  alignas(64) std::uint32_t pairs[16];
  for (std::int64_t c = 0; c < cols; c += 32) {
    const std::int64_t left = cols - c;
    const auto mask = static_cast<__mmask32>(left >= 32 ? 0xFFFFFFFFU : (1U << left) - 1U);
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), in + c);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), in + c + 16);
    const __m512bh packed = _mm512_cvtne2ps_pbh(high, low);
    const std::int64_t count = left >= 32 ? 16 : (left + 1) / 2;
    if (stride == 1) {
      const auto kept = static_cast<__mmask16>((1U << count) - 1U);
      _mm512_mask_storeu_epi32(out + c / 2, kept, reinterpret_cast<__m512i>(packed));
      continue;
    }
    _mm512_store_si512(pairs, reinterpret_cast<__m512i>(packed));
    for (std::int64_t p = 0; p < count; ++p) out[(c / 2 + p) * stride] = pairs[p];
  }
}

}  // namespace

void add_avx512_linear(CpuKernels* table) {
  table->rounds_to_bf16 = true;
  table->linear[static_cast<int>(PanelFormat::kF32)] = dispatch<F32Panel>;
  table->linear[static_cast<int>(PanelFormat::kBF16)] = dispatch<Bf16Panel>;
  add_grouped_formats<Grouped>(table);
  table->quantize = quantize;
  table->to_bf16_pairs = to_bf16_pairs;
}

}  // namespace kun
