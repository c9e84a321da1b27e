// Linear kernels in plain C++ with double sums: slow, obvious, and the oracle for all other tables.
#include <cmath>
#include <cstring>

#include "backends/cpu/reference/reference.h"
#include "tensor/float_formats.h"

namespace kun {
namespace {

std::uint16_t load_u16(const std::byte* data) {
  std::uint16_t value = 0;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

float load_f32(const std::byte* data) {
  float value = 0.0F;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

void store(const LinearTile& tile, int token, int row, double sum) {
  float* out = tile.out + token * tile.out_stride + row;
  float value = static_cast<float>(sum);
  if (tile.bias != nullptr) value += tile.bias[row];
  *out = tile.accumulate ? *out + value : value;
}

void linear_f32(const LinearTile& tile) {
  const auto* in = static_cast<const float*>(tile.activations);
  const auto* panel = reinterpret_cast<const float*>(tile.panel);
  for (int t = 0; t < tile.tokens; ++t) {
    for (int r = 0; r < tile.rows; ++r) {
      double sum = 0.0;
      for (std::int64_t c = 0; c < tile.cols; ++c) {
        sum += static_cast<double>(panel[c * kPanelRows + r]) * in[c * tile.tokens + t];
      }
      store(tile, t, r, sum);
    }
  }
}

void linear_bf16(const LinearTile& tile) {
  const auto* in = static_cast<const float*>(tile.activations);
  for (int t = 0; t < tile.tokens; ++t) {
    for (int r = 0; r < tile.rows; ++r) {
      double sum = 0.0;
      for (std::int64_t c = 0; c < tile.cols; ++c) {
        const std::int64_t element = (c / 2 * kPanelRows + r) * 2 + c % 2;
        sum += static_cast<double>(bf16_to_f32(load_u16(tile.panel + element * 2))) *
               in[c * tile.tokens + t];
      }
      store(tile, t, r, sum);
    }
  }
}

// Where the parts of one block are.
struct Block {
  const std::byte* header;
  const std::byte* codes;
  const std::byte* scales;
  const std::byte* mins;
};

Block locate(const LinearTile& tile, PanelTraits traits, std::int64_t block) {
  const std::int64_t span = header_bytes(traits) > 0 ? kSuperBlocks : 1;
  const std::byte* header =
      tile.panel + block / span * (header_bytes(traits) + span * block_bytes(traits));
  const std::byte* codes = header + header_bytes(traits) + block % span * block_bytes(traits);
  const std::byte* scales = codes + code_bytes(traits);
  return {header, codes, scales, scales + scale_plane_bytes(traits)};
}

// The scale (plane 0) or min (plane 1) of one group and row.
double scale_at(const Block& block, PanelTraits traits, int plane, int group, int row) {
  const std::byte* data = (plane == 0 ? block.scales : block.mins) +
                          (group * kPanelRows + row) * scale_bytes(traits.scale);
  if (traits.scale == ScaleKind::kF32) return static_cast<double>(load_f32(data));
  if (traits.scale == ScaleKind::kF16) return static_cast<double>(f16_to_f32(load_u16(data)));
  const std::byte* super = block.header + (plane * kPanelRows + row) * 2;
  return static_cast<double>(f16_to_f32(load_u16(super))) * static_cast<std::int8_t>(*data);
}

int code_at(const Block& block, PanelTraits traits, int column, int row) {
  if (traits.bits == 8) {
    return static_cast<std::int8_t>(block.codes[(column / 4 * kPanelRows + row) * 4 + column % 4]);
  }
  const auto byte = [&](int piece) {
    return static_cast<int>(block.codes[(piece * kPanelRows + row) * 4 + column % 4]);
  };
  const int quad = column / 4;
  if (traits.bits == 4) {
    const int both = byte(quad / 2);
    return (quad % 2 == 0 ? both & 15 : both >> 4) - code_offset(traits);
  }
  const int first = quad / 4 * 3;
  if (quad % 4 < 3) return (byte(first + quad % 4) & 63) - code_offset(traits);
  const int code = byte(first) >> 6 | byte(first + 1) >> 6 << 2 | byte(first + 2) >> 6 << 4;
  return code - code_offset(traits);
}

// Adds one block of a row to the sums of all tokens. The row's codes are read once for them all:
// real models pass through here in tests.
template <PanelFormat kFormat>
void add_block(const Block& block, int row, const ActivationBlock* in, int tokens, double* sums) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  std::int8_t codes[kBlockColumns];
  for (int c = 0; c < kBlockColumns; ++c) {
    codes[c] = static_cast<std::int8_t>(code_at(block, kTraits, c, row));
  }
  for (int g = 0; g < kBlockColumns / kTraits.group; ++g) {
    const double scale = scale_at(block, kTraits, 0, g, row);
    const double min = kTraits.has_min ? scale_at(block, kTraits, 1, g, row) : 0.0;
    const int first = g * kTraits.group;
    for (int t = 0; t < tokens; ++t) {
      int dot = 0;
      int activations = 0;
      for (int c = first; c < first + kTraits.group; ++c) {
        dot += codes[c] * in[t].codes[c];
        activations += in[t].codes[c];
      }
      const auto x = static_cast<double>(in[t].scale);
      sums[t] += scale * x * dot;
      if (kTraits.has_min) sums[t] += min * x * activations;
    }
  }
}

template <PanelFormat kFormat>
void linear_grouped(const LinearTile& tile) {
  const auto* in = static_cast<const ActivationBlock*>(tile.activations);
  for (int r = 0; r < tile.rows; ++r) {
    double sums[kTileTokens] = {};
    for (std::int64_t b = 0; b < tile.cols / kBlockColumns; ++b) {
      const Block block = locate(tile, panel_traits(kFormat), b);
      add_block<kFormat>(block, r, in + b * tile.tokens, tile.tokens, sums);
    }
    for (int t = 0; t < tile.tokens; ++t) store(tile, t, r, sums[t]);
  }
}

int block_sum(ActivationBlock* block, int first) {
  int sum = 0;
  for (int i = first; i < first + kBlockColumns / 2; ++i) sum += block->codes[i];
  return sum;
}

void quantize_block(const float* in, ActivationBlock* out) {
  float largest = 0.0F;
  bool finite = true;
  for (int i = 0; i < kBlockColumns; ++i) {
    finite = finite && std::isfinite(in[i]);
    largest = std::fmax(largest, std::fabs(in[i]));
  }
  const bool zero = !finite || largest < kActivationFloor;
  const float inverse = zero ? 0.0F : 127.0F / largest;
  for (int i = 0; i < kBlockColumns; ++i) {
    out->codes[i] =
        zero ? std::int8_t{0} : static_cast<std::int8_t>(std::nearbyint(in[i] * inverse));
  }
  out->scale = !finite ? NAN : zero ? 0.0F : largest * (1.0F / 127.0F);
  const int halves[2] = {block_sum(out, 0), block_sum(out, kBlockColumns / 2)};
  for (int i = 0; i < 2; ++i) {
    out->negated_half_sum[i] = -halves[i];
    out->half_sum[i] = out->scale * static_cast<float>(halves[i]);
  }
  out->negated_sum = -(halves[0] + halves[1]);
  out->sum = out->scale * static_cast<float>(halves[0] + halves[1]);
  out->unused = 0.0F;
}

void quantize(const float* in, std::int64_t cols, ActivationBlock* out, std::int64_t stride) {
  for (std::int64_t b = 0; b < cols / kBlockColumns; ++b) {
    quantize_block(in + b * kBlockColumns, out + b * stride);
  }
}

void to_bf16_pairs(const float* in, std::int64_t cols, std::uint32_t* out, std::int64_t stride) {
  for (std::int64_t c = 0; c < cols; c += 2) {
    const std::uint32_t high = c + 1 < cols ? f32_to_bf16(in[c + 1]) : 0U;
    out[c / 2 * stride] = high << 16 | f32_to_bf16(in[c]);
  }
}

template <PanelFormat kFormat>
void add_grouped(CpuKernels* table) {
  table->linear[static_cast<int>(kFormat)] = linear_grouped<kFormat>;
}

}  // namespace

void add_reference_linear(CpuKernels* table) {
  table->linear[static_cast<int>(PanelFormat::kF32)] = linear_f32;
  table->linear[static_cast<int>(PanelFormat::kBF16)] = linear_bf16;
  add_grouped<PanelFormat::k4F16>(table);
  add_grouped<PanelFormat::k4F16Min>(table);
  add_grouped<PanelFormat::k4SuperMin>(table);
  add_grouped<PanelFormat::k4Super16>(table);
  add_grouped<PanelFormat::k4Super16Min>(table);
  add_grouped<PanelFormat::k6SuperMin>(table);
  add_grouped<PanelFormat::k6Super16>(table);
  add_grouped<PanelFormat::k8F16>(table);
  add_grouped<PanelFormat::k8F16Min>(table);
  add_grouped<PanelFormat::k8F32>(table);
  add_grouped<PanelFormat::k8F32Group16>(table);
  add_grouped<PanelFormat::k8Super>(table);
  table->quantize = quantize;
  table->to_bf16_pairs = to_bf16_pairs;
}

}  // namespace kun
