// Linear kernels for AVX-512 with VNNI and BF16. A vector is 16 rows, so a panel is two of them;
// activations are broadcast from memory. On Zen 4 the dot products, the multiply and the FMA of a
// group share one operation per cycle and everything else hides beside them.
#include <immintrin.h>

#include "backends/cpu/avx512/parts.h"

namespace kun {
namespace {

using AliasedInt = int __attribute__((may_alias));

constexpr int kHalves = 2;  // vectors of 16 rows in a panel

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
    const int rows = tile.rows - 16 * h;
    if (rows <= 0) return;
    const auto mask = static_cast<__mmask16>(rows >= 16 ? 0xFFFFU : (1U << rows) - 1U);
    const __m512 bias = tile.bias == nullptr ? _mm512_setzero_ps()
                                             : _mm512_maskz_loadu_ps(mask, tile.bias + 16 * h);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      float* out = tile.out + t * tile.out_stride + 16 * h;
      __m512 value = _mm512_add_ps(sums[h][t], bias);
      if (tile.accumulate) value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), value);
      _mm512_mask_storeu_ps(out, mask, value);
    }
  }
}

// Spreads a tile's prefetches over its steps: a burst would stall the loads beside it.
class Prefetcher {
 public:
  Prefetcher(const LinearTile& tile, std::int64_t steps)
      : next_(tile.prefetch),
        end_(tile.prefetch + tile.prefetch_bytes),
        per_step_((tile.prefetch_bytes / 64 + steps - 1) / steps * 64) {}

  void step() {
    for (std::int64_t i = 0; i < per_step_; i += 64) _mm_prefetch(next_ + i, _MM_HINT_T1);
    next_ = next_ < end_ ? next_ + per_step_ : next_;
  }

 private:
  const std::byte* next_;
  const std::byte* end_;
  std::int64_t per_step_;
};

// --- Float panels
// ---------------------------------------------------------------------------------

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

// --- Grouped panels
// -------------------------------------------------------------------------------

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

// Adds the products of one group of columns to `dots` for 16 rows. Codes are unsigned here; what
// that adds was put into the start value.
template <PanelFormat kFormat, int kTokens>
[[gnu::always_inline]] inline void dot_group(const std::byte* codes, int group,
                                             const ActivationBlock* in, __m512i (&dots)[kTokens]) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  const int first = group * kTraits.group;
  if constexpr (kTraits.bits == 8) {
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
  constexpr int kShift = kOffset == 128 ? 7 : 3;
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

// --- Activations
// ----------------------------------------------------------------------------------

// A float's magnitude as an integer orders like the float, with NaN above infinity.
constexpr int kInfinityBits = 0x7F800000;

void quantize_block(const float* in, ActivationBlock* out) {
  const __m512 low = _mm512_loadu_ps(in);
  const __m512 high = _mm512_loadu_ps(in + 16);
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  const int largest_bits = _mm512_reduce_max_epi32(
      _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                       _mm512_and_si512(_mm512_castps_si512(high), magnitude)));
  const bool finite = largest_bits < kInfinityBits;
  const float largest = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(largest_bits)));
  const bool zero = !finite || largest < kActivationFloor;
  const __m512 inverse = _mm512_set1_ps(zero ? 0.0F : 127.0F / largest);
  const auto keep = static_cast<__mmask16>(zero ? 0 : 0xFFFF);
  const __m512i low_codes = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(low, inverse));
  const __m512i high_codes = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(high, inverse));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out->codes), _mm512_cvtepi32_epi8(low_codes));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out->codes + 16), _mm512_cvtepi32_epi8(high_codes));
  const int sums[2] = {_mm512_reduce_add_epi32(low_codes), _mm512_reduce_add_epi32(high_codes)};
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

void add_avx512_linear(CpuKernels* table) {
  table->rounds_to_bf16 = true;
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
  table->to_bf16_pairs = to_bf16_pairs;
}

}  // namespace kun
