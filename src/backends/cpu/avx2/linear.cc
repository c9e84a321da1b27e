// Linear kernels for AVX2 with FMA and F16C. A vector is 8 rows, so a panel is four slices; as many
// of them are taken together as registers allow, and columns are worked through in spans, so that a
// panel's bytes stay in the first-level cache while its slices pass. Without VNNI, 4-bit codes are
// summed in 16 bits over a group (15 * 127 * 2 * 8 < 2^15), 6-bit codes over two quads of
// columns (63 * 127 * 2 * 2 < 2^15), and 8-bit codes, whose pairs would overflow as unsigned, are
// multiplied as magnitude and sign. BF16 weights are widened to F32.
#include <immintrin.h>

#include "backends/cpu/avx2/parts.h"
#include "backends/cpu/code_scale.h"
#include "backends/cpu/linear_table.h"

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
                                         const __m256 (*sums)[kTokens]) {
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

// Spreads a tile's prefetches over its steps: a burst would stall the loads beside it.
class Prefetcher {
 public:
  Prefetcher(const LinearTile& tile, std::int64_t steps)
      : next_(tile.prefetch),
        end_(tile.prefetch + tile.prefetch_bytes),
        per_step_((tile.prefetch_bytes / 64 + steps - 1) / steps * 64) {}

  void step() {
    if (next_ == end_) return;
    for (std::int64_t i = 0; i < per_step_ && next_ < end_; i += 64, next_ += 64) {
      _mm_prefetch(next_, _MM_HINT_T1);
    }
  }

 private:
  const std::byte* next_;
  const std::byte* end_;
  std::int64_t per_step_;
};

// --- Float panels --------------------------------------------------------------------------------

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
  store<kTokens, kTaken>(tile, first_slice, sums);
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
  store<kTokens, kTaken>(tile, first_slice, sums);
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

// --- Grouped panels ------------------------------------------------------------------------------

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

// What one quad of columns adds to the sums of 8 rows, `weights` being unsigned. In assembly: GCC
// would load all tokens' activations first and regroup the additions, and run out of registers.
//
// Sums of pairs in 16 bits.
[[gnu::always_inline]] inline __m256i add_pairs(__m256i sums, __m256i weights,
                                                const std::int8_t* in) {
  __m256i pairs;
  asm("vpbroadcastd %3, %1\n\t"
      "vpmaddubsw %1, %2, %1\n\t"
      "vpaddw %1, %0, %0"
      : "+x"(sums), "=&x"(pairs)
      : "x"(weights), "m"(*reinterpret_cast<const AliasedInt*>(in)));
  return sums;
}

// Sums of two quads in 32 bits.
[[gnu::always_inline]] inline __m256i add_octet(__m256i sums, __m256i even, __m256i odd,
                                                __m256i ones, const std::int8_t* in) {
  __m256i pairs;
  __m256i others;
  asm("vpbroadcastd %6, %1\n\t"
      "vpbroadcastd %7, %2\n\t"
      "vpmaddubsw %1, %3, %1\n\t"
      "vpmaddubsw %2, %4, %2\n\t"
      "vpaddw %2, %1, %1\n\t"
      "vpmaddwd %1, %5, %1\n\t"
      "vpaddd %1, %0, %0"
      : "+x"(sums), "=&x"(pairs), "=&x"(others)
      : "x"(even), "x"(odd), "x"(ones), "m"(*reinterpret_cast<const AliasedInt*>(in)),
        "m"(*reinterpret_cast<const AliasedInt*>(in + 4)));
  return sums;
}

// Sums of quads in 32 bits; activations' bits are flipped where `flips` has ones.
[[gnu::always_inline]] inline __m256i add_flipped(__m256i sums, __m256i weights, __m256i flips,
                                                  __m256i ones, const std::int8_t* in) {
  __m256i pairs;
  asm("vpbroadcastd %5, %1\n\t"
      "vpxor %1, %3, %1\n\t"
      "vpmaddubsw %1, %2, %1\n\t"
      "vpmaddwd %1, %4, %1\n\t"
      "vpaddd %1, %0, %0"
      : "+x"(sums), "=&x"(pairs)
      : "x"(weights), "x"(flips), "x"(ones), "m"(*reinterpret_cast<const AliasedInt*>(in)));
  return sums;
}

// Dot products of one group of 8-bit codes w with activations a. vpsignb runs where the multiplies
// do, so with several tokens bits are flipped instead: for w < 0 that makes -a - 1 of a, and
// w * a = |w| * (-a - 1) + |w|, whose last term all tokens share. Pairs reach at most
// 2 * 128 * -128 = -2^15. With few tokens that term costs more than the signs.
template <int kColumns, int kTokens>
[[gnu::always_inline]] inline void dot_bytes(const std::byte* codes, int first,
                                             const ActivationBlock* in, __m256i (&dots)[kTokens]) {
  constexpr bool kFlips = kTokens >= 3;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i negatives = _mm256_setzero_si256();  // sums of |w| where w < 0, in pairs of columns
#pragma GCC unroll 8
  for (int c = first; c < first + kColumns; c += 4) {
    const __m256i weights = load(codes + c * kPanelRows);
    const __m256i magnitude = _mm256_abs_epi8(weights);
    if constexpr (kFlips) {
      const __m256i flips = _mm256_cmpgt_epi8(_mm256_setzero_si256(), weights);
      negatives = _mm256_sub_epi16(negatives, _mm256_maddubs_epi16(magnitude, flips));
      asm("" : "+x"(negatives));  // now: GCC would keep all eight and add them at the end
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        dots[t] = add_flipped(dots[t], magnitude, flips, ones, in[t].codes + c);
      }
    } else {
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const __m256i signed_in = _mm256_sign_epi8(broadcast(in[t].codes + c), weights);
        const __m256i pairs = _mm256_maddubs_epi16(magnitude, signed_in);
        dots[t] = _mm256_add_epi32(dots[t], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
  if constexpr (!kFlips) return;
  const __m256i shared = _mm256_madd_epi16(negatives, ones);
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) dots[t] = _mm256_add_epi32(dots[t], shared);
}

template <int kColumns, int kTokens>
[[gnu::always_inline]] inline void dot_nibbles(const std::byte* codes, int first,
                                               const ActivationBlock* in,
                                               __m256i (&dots)[kTokens]) {
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int c = first; c < first + kColumns; c += 8) {
    const __m256i both = load(codes + c / 8 * kPanelRows * 4);
    const __m256i low = _mm256_and_si256(both, mask);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      dots[t] = add_pairs(dots[t], low, in[t].codes + c);
      dots[t] = add_pairs(dots[t], high, in[t].codes + c + 4);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) dots[t] = _mm256_madd_epi16(dots[t], ones);
}

// What shifting by words brings from the neighbouring byte is masked away.
template <int kColumns, int kTokens>
[[gnu::always_inline]] inline void dot_six_bits(const std::byte* codes, int first,
                                                const ActivationBlock* in,
                                                __m256i (&dots)[kTokens]) {
  constexpr int kPiece = kPanelRows * 4;
  const __m256i mask = _mm256_set1_epi8(63);
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
  for (int column = first; column < first + kColumns; column += 16) {
    const std::byte* pieces = codes + column / 16 * 3 * kPiece;
    const __m256i a = load(pieces);
    const __m256i b = load(pieces + kPiece);
    const __m256i even = _mm256_and_si256(a, mask);
    const __m256i odd = _mm256_and_si256(b, mask);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      dots[t] = add_octet(dots[t], even, odd, ones, in[t].codes + column);
    }
    const __m256i c = load(pieces + 2 * kPiece);
    const __m256i third = _mm256_and_si256(c, mask);
    const auto bits = [](__m256i words, int at) {
      return _mm256_and_si256(words, _mm256_set1_epi8(static_cast<char>(3 << at)));
    };
    const __m256i last = _mm256_or_si256(
        bits(_mm256_srli_epi16(c, 2), 4),
        _mm256_or_si256(bits(_mm256_srli_epi16(b, 4), 2), bits(_mm256_srli_epi16(a, 6), 0)));
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      dots[t] = add_octet(dots[t], third, last, ones, in[t].codes + column + 8);
    }
  }
}

// Dot products of one group for 8 rows, in 32 bits, without the offset's share.
template <PanelFormat kFormat, int kTokens>
[[gnu::always_inline]] inline void dot_group(const std::byte* codes, int group,
                                             const ActivationBlock* in, __m256i (&dots)[kTokens]) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  const int first = group * kTraits.group;
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) dots[t] = _mm256_setzero_si256();
  if constexpr (kTraits.bits == 6) {
    dot_six_bits<kTraits.group>(codes, first, in, dots);
  } else if constexpr (kTraits.bits == 8) {
    dot_bytes<kTraits.group>(codes, first, in, dots);
  } else {
    dot_nibbles<kTraits.group>(codes, first, in, dots);
  }
}

// -offset * sum of the activations' codes.
template <PanelFormat kFormat>
[[gnu::always_inline]] inline __m256i offset_part(const ActivationBlock& in, int group) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  const std::int32_t* sum = kTraits.group == 32 ? &in.negated_sum : &in.negated_half_sum[group];
  static_assert(code_offset(kTraits) == 1 << (kTraits.bits - 1));
  return _mm256_slli_epi32(broadcast(sum), kTraits.bits - 1);
}

// One slice (8 rows) of one block.
template <PanelFormat kFormat, int kTokens>
[[gnu::always_inline]] inline void multiply_block(const std::byte* block, int slice,
                                                  __m256 super_scale, __m256 super_min,
                                                  const ActivationBlock* in, __m256* sums) {
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

template <PanelFormat kFormat>
struct Grouped {
  static constexpr PanelTraits kTraits = panel_traits(kFormat);
  static constexpr int kHeader = header_bytes(kTraits);

  template <int kTokens>
  struct Panel {
    static constexpr int kTaken = grouped_slices(kTokens);
    // More sums than this stay in memory between blocks: registers are for what products need.
    static constexpr bool kInRegisters = kTaken * kTokens <= 4;

    static void run(const LinearTile& tile) {
      __m256 sums[kSlices][kTokens] = {};
      const std::byte* span = tile.panel;
      const auto* in = static_cast<const ActivationBlock*>(tile.activations);
      std::int64_t left = tile.cols / kBlockColumns;
      Prefetcher prefetcher(tile, left * (kSlices / kTaken));
      while (left > 0) {
        const int blocks = left < kSuperBlocks ? static_cast<int>(left) : kSuperBlocks;
        for (int s = 0; s < kSlices; s += kTaken) {
          run_span(span, blocks, s, in, &sums[s], &prefetcher);
        }
        span += kHeader + blocks * block_bytes(kTraits);
        in += blocks * kTokens;
        left -= blocks;
      }
      for (int s = 0; s < kSlices; s += kTaken) store<kTokens, kTaken>(tile, s, &sums[s]);
    }

   private:
    [[gnu::always_inline]] static void run_span(const std::byte* block, int blocks, int first_slice,
                                                const ActivationBlock* in, __m256 (*sums)[kTokens],
                                                Prefetcher* prefetcher) {
      asm("" : "+r"(sums));  // or GCC would take them into registers after all
      __m256 super[kTaken][2] = {};
      if constexpr (kHeader > 0) {
#pragma GCC unroll 8
        for (int s = 0; s < kTaken; ++s) {
          const std::byte* header = block + 16 * (first_slice + s);
          super[s][0] = load_f16(header);
          if constexpr (kTraits.has_min) super[s][1] = load_f16(header + 2 * kPanelRows);
        }
        block += kHeader;
      }
      __m256 part[kTaken][kTokens];
      if constexpr (kInRegisters) copy(sums, part);
      for (int b = 0; b < blocks; ++b) {
        prefetcher->step();
#pragma GCC unroll 8
        for (int s = 0; s < kTaken; ++s) {
          multiply_block<kFormat, kTokens>(block, first_slice + s, super[s][0], super[s][1], in,
                                           kInRegisters ? part[s] : sums[s]);
        }
        block += block_bytes(kTraits);
        in += kTokens;
      }
      if constexpr (kInRegisters) copy(part, sums);
    }

    [[gnu::always_inline]] static void copy(const __m256 (*from)[kTokens], __m256 (*to)[kTokens]) {
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) {
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) to[s][t] = from[s][t];
      }
    }
  };
};

// --- Activations ---------------------------------------------------------------------------------

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
  const CodeScale by = code_scale(static_cast<std::uint32_t>(largest_lane(largest_bits)));
  const __m256 inverse = _mm256_set1_ps(by.inverse);
  const __m256i keep = _mm256_set1_epi32(by.is_zero ? 0 : -1);
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
  store_factors(out, by.scale, sums);
}

void quantize(const float* in, std::int64_t cols, ActivationBlock* out, std::int64_t stride) {
  for (std::int64_t b = 0; b < cols / kBlockColumns; ++b) {
    quantize_block(in + b * kBlockColumns, out + b * stride);
  }
}

}  // namespace

void add_avx2_linear(CpuKernels* table) {
  table->linear[static_cast<int>(PanelFormat::kF32)] = dispatch<F32Panel>;
  table->linear[static_cast<int>(PanelFormat::kBF16)] = dispatch<Bf16Panel>;
  add_grouped_formats<Grouped>(table);
  table->quantize = quantize;
}

}  // namespace kun
