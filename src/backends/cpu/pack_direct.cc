// Block layouts as in ggml's ggml-common.h (block_q4_0, block_q4_1, block_q8_0, block_q4_K,
// block_q5_K, block_q6_K); panel layouts as in kernels.h. Words are read and written in
// little-endian order, as all our machines have it.
#include "backends/cpu/pack_direct.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "backends/cpu/kernels.h"
#include "backends/cpu/unpack.h"
#include "base/check.h"

namespace kun {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint32_t kLowNibbles = 0x0F0F0F0FU;
constexpr std::uint32_t kLowPairs = 0x03030303U;
constexpr std::uint32_t kLowBits = 0x01010101U;

std::uint32_t word(const std::byte* data, int index) {
  std::uint32_t value = 0;
  std::memcpy(&value, data + 4 * index, 4);
  return value;
}

// Pieces of a panel's block: [piece][row][4 bytes].
void put_piece(std::byte* codes, int piece, int lane, std::uint32_t value) {
  std::memcpy(codes + (piece * kPanelRows + lane) * 4, &value, 4);
}

// 16 bytes: elements 0..15 in the low halves, 16..31 in the high ones. A piece wants element i
// low and element i + 4 high.
void put_split_nibbles(const std::byte* from, int lane, std::byte* codes) {
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t a = word(from, 2 * half);
    const std::uint32_t b = word(from, 2 * half + 1);
    put_piece(codes, half, lane, (a & kLowNibbles) | (b & kLowNibbles) << 4);
    put_piece(codes, half + 2, lane, (a >> 4 & kLowNibbles) | (b & ~kLowNibbles));
  }
}

// 32 bytes of which this block has the low halves or, shifted by 4, the high ones.
void put_half_nibbles(const std::byte* from, int shift, int lane, std::byte* codes) {
  for (int piece = 0; piece < 4; ++piece) {
    const std::uint32_t a = word(from, 2 * piece) >> shift & kLowNibbles;
    const std::uint32_t b = word(from, 2 * piece + 1) >> shift & kLowNibbles;
    put_piece(codes, piece, lane, a | b << 4);
  }
}

void put_bytes(const std::byte* from, int lane, std::byte* codes) {
  for (int piece = 0; piece < 8; ++piece) put_piece(codes, piece, lane, word(from, piece));
}

// Blocks of 32 with an F16 scale, then an F16 min if the panel has one, then codes.
template <PanelFormat kFormat>
void pack_classic_row(const std::byte* from, std::int64_t blocks, int lane, std::byte* panel) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  constexpr int kHeader = kTraits.has_min ? 4 : 2;
  for (std::int64_t b = 0; b < blocks; ++b) {
    std::byte* scales = panel + code_bytes(kTraits) + lane * 2;
    std::memcpy(scales, from, 2);
    if constexpr (kTraits.has_min) std::memcpy(scales + scale_plane_bytes(kTraits), from + 2, 2);
    if constexpr (kTraits.bits == 8) {
      put_bytes(from + kHeader, lane, panel);
    } else {
      put_split_nibbles(from + kHeader, lane, panel);
    }
    from += kHeader + kBlockColumns * kTraits.bits / 8;
    panel += block_bytes(kTraits);
  }
}

// 6-bit codes, four to a word, as pieces: the fourth of four words is spread over the high bits of
// the others.
template <class WordOf>
void put_six_bits(const WordOf& word_of, int lane, std::byte* codes) {
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t last = word_of(4 * half + 3);
    for (int k = 0; k < 3; ++k) {
      const std::uint32_t bits = last >> (2 * k) & kLowPairs;
      put_piece(codes, 3 * half + k, lane, word_of(4 * half + k) | bits << 6);
    }
  }
}

// Q4_K and Q5_K: d, dmin (F16), 12 bytes of 6-bit scales and mins, with Q5_K 32 bytes of which bit
// j belongs to block j, then 128 bytes of nibbles. Only codes move here; the scales are taken apart
// as everywhere.
template <PanelFormat kFormat>
void pack_q4_q5_k_row(const WeightView& view, const std::byte* from, int lane, std::byte* panel) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  constexpr int kHighAt = 16;
  constexpr int kCodesAt = kTraits.bits == 6 ? 48 : 16;
  constexpr int kSuperBytes = kCodesAt + 128;
  const std::int64_t spans = view.cols / (kBlockColumns * kSuperBlocks);
  UnpackedBlock unpacked{};
  for (std::int64_t s = 0; s < spans; ++s, from += kSuperBytes) {
    for (int b = 0; b < kSuperBlocks; ++b) {
      unpack_q4_k_scales(from, b, &unpacked);
      if (b == 0) {
        std::memcpy(panel + lane * 2, &unpacked.super_scale_f16, 2);
        std::memcpy(panel + (kPanelRows + lane) * 2, &unpacked.super_min_f16, 2);
        panel += header_bytes(kTraits);
      }
      const std::byte* nibbles = from + kCodesAt + b / 2 * 32;
      const int shift = b % 2 * 4;
      if constexpr (kTraits.bits == 6) {
        put_six_bits(
            [&](int i) {
              return (word(nibbles, i) >> shift & kLowNibbles) |
                     (word(from + kHighAt, i) >> b & kLowBits) << 4;
            },
            lane, panel);
      } else {
        put_half_nibbles(nibbles, shift, lane, panel);
      }
      std::byte* scales = panel + code_bytes(kTraits) + lane;
      std::memcpy(scales, &unpacked.scale_steps[0], 1);
      std::memcpy(scales + scale_plane_bytes(kTraits), &unpacked.min_steps[0], 1);
      panel += block_bytes(kTraits);
    }
  }
}

// Q6_K: ql[128], qh[64], 16 signed scales, d. Block b is quarter b % 4 of half b / 4.
void pack_q6_k_row(const WeightView& view, const std::byte* from, int lane, std::byte* panel) {
  constexpr PanelTraits kTraits = panel_traits(PanelFormat::k6Super16);
  constexpr int kSuperBytes = 210;
  const std::int64_t spans = view.cols / (kBlockColumns * kSuperBlocks);
  for (std::int64_t s = 0; s < spans; ++s, from += kSuperBytes) {
    std::memcpy(panel + lane * 2, from + 208, 2);
    panel += header_bytes(kTraits);
    for (int b = 0; b < kSuperBlocks; ++b) {
      const int half = b / 4;
      const int quarter = b % 4;
      const std::byte* low = from + 64 * half + 32 * (quarter % 2);
      const std::byte* high = from + 128 + 32 * half;
      const int shift = quarter / 2 * 4;
      put_six_bits(
          [&](int i) {
            return (word(low, i) >> shift & kLowNibbles) |
                   (word(high, i) >> (2 * quarter) & kLowPairs) << 4;
          },
          lane, panel);
      std::byte* scales = panel + code_bytes(kTraits) + lane;
      scales[0] = from[192 + 8 * half + 2 * quarter];
      scales[kPanelRows] = from[192 + 8 * half + 2 * quarter + 1];
      panel += block_bytes(kTraits);
    }
  }
}

}  // namespace

bool packs_directly(WeightFormat format) {
  return format == WeightFormat::kQ4_0 || format == WeightFormat::kQ4_1 ||
         format == WeightFormat::kQ8_0 || format == WeightFormat::kQ4_K ||
         format == WeightFormat::kQ5_K || format == WeightFormat::kQ6_K;
}

void pack_row_directly(const WeightView& view, std::int64_t row, int lane, std::byte* panel) {
  const std::byte* from = view.data.data() + row * view.row_bytes();
  const std::int64_t blocks = view.cols / kBlockColumns;
  switch (view.format) {
    case WeightFormat::kQ4_0:
      pack_classic_row<PanelFormat::k4F16>(from, blocks, lane, panel);
      return;
    case WeightFormat::kQ4_1:
      pack_classic_row<PanelFormat::k4F16Min>(from, blocks, lane, panel);
      return;
    case WeightFormat::kQ8_0:
      pack_classic_row<PanelFormat::k8F16>(from, blocks, lane, panel);
      return;
    case WeightFormat::kQ4_K:
      pack_q4_q5_k_row<PanelFormat::k4SuperMin>(view, from, lane, panel);
      return;
    case WeightFormat::kQ5_K:
      pack_q4_q5_k_row<PanelFormat::k6SuperMin>(view, from, lane, panel);
      return;
    case WeightFormat::kQ6_K: pack_q6_k_row(view, from, lane, panel); return;
    default: CHECK(false);
  }
}

// A cache line of every row at a time, so that reads run on in all rows and writes fill whole
// lines.
void pack_bf16_panel(const WeightView& view, std::int64_t first, int count, std::byte* panel) {
  constexpr std::int64_t kLinePairs = 16;
  constexpr std::int64_t kPairBytes = 4;
  const std::int64_t pairs = view.cols / 2;
  const std::int64_t row_bytes = view.row_bytes();
  const std::byte* rows = view.data.data() + first * row_bytes;
  for (std::int64_t p = 0; p < pairs; p += kLinePairs) {
    const std::int64_t some = std::min(kLinePairs, pairs - p);
    for (int lane = 0; lane < count; ++lane) {
      const std::byte* from = rows + lane * row_bytes + p * kPairBytes;
      std::byte* to = panel + (p * kPanelRows + lane) * kPairBytes;
      for (std::int64_t i = 0; i < some; ++i) {
        std::memcpy(to + i * kPanelRows * kPairBytes, from + i * kPairBytes, kPairBytes);
      }
    }
  }
  if (view.cols % 2 == 0) return;
  for (int lane = 0; lane < count; ++lane) {  // the last column has zero beside it
    std::memcpy(panel + (pairs * kPanelRows + lane) * kPairBytes,
                rows + lane * row_bytes + pairs * kPairBytes, 2);
  }
}

}  // namespace kun
