// Operations that treat every row by itself, and the memory operations.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/cache_layout.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/packed_image.h"
#include "base/check.h"
#include "tensor/float_formats.h"

namespace kun {
namespace {

// Rank 3 as rank 2: row r of the result is (r / heads, r % heads).
struct Rows {
  explicit Rows(ConstTensorView view)
      : heads(view.rank == 3 ? view.shape[1] : 1),
        head_stride(view.rank == 3 ? view.stride[1] : 0),
        token_stride(view.stride[0]),
        count(view.rows() * heads) {}
  std::int64_t offset(std::int64_t row) const {
    return row / heads * token_stride + row % heads * head_stride;
  }

  std::int64_t heads;
  std::int64_t head_stride;
  std::int64_t token_stride;
  std::int64_t count;
};

// Floats between one element of an entry and the next depend on the arrangement; one loop each.
void store_entry(const float* in, const CachePlane& plane, std::int64_t slot) {
  const CacheArrangement layout = arrangement(plane);
  const std::int64_t block = slot / plane.tokens_per_block;
  const std::int64_t position = slot % plane.tokens_per_block;
  std::byte* base = plane.data + block * plane.block_bytes();
  const auto at = [&](std::int64_t col) {
    return cache_element(layout, plane.dtype, plane.width, head_width(plane), position, col);
  };
  const std::int64_t first = at(0);
  if (plane.dtype == DType::kF32) {
    auto* out = reinterpret_cast<float*>(base) + first;
    const std::int64_t step = layout == CacheArrangement::kKeyGroups     ? kGroupPositions
                              : layout == CacheArrangement::kIndexPanels ? kPanelRows
                                                                         : 1;
    for (int c = 0; c < plane.width; ++c) out[c * step] = in[c];
    return;
  }
  auto* out = reinterpret_cast<std::uint16_t*>(base) + first;
  if (layout == CacheArrangement::kKeyGroups || layout == CacheArrangement::kIndexPanels) {
    const int lanes = layout == CacheArrangement::kKeyGroups ? kGroupPositions : kPanelRows;
    for (int c = 0; c < plane.width; c += 2, out += 2 * lanes) {
      out[0] = f32_to_bf16(in[c]);
      out[1] = f32_to_bf16(in[c + 1]);
    }
    return;
  }
  if (layout == CacheArrangement::kPlain) {
    for (int c = 0; c < plane.width; ++c) out[c] = f32_to_bf16(in[c]);
    return;
  }
  const int head = head_width(plane);
  for (int c = 0; c < plane.width; c += head, out += head * kGroupPositions) {
    for (int i = 0; i < head; ++i) out[2 * i] = f32_to_bf16(in[c + i]);
  }
}

// Codes and scales of every head of an entry.
void store_int8_entry(const CpuKernels& kernels, const float* in, const CachePlane& plane,
                      std::int64_t slot) {
  std::byte* block = plane.data + slot / plane.tokens_per_block * plane.block_bytes();
  const Int8Place place(plane, slot % plane.tokens_per_block);
  const int head = head_width(plane);
  // Elements that lie together, and bytes from one such run to the next.
  const bool keys = place.layout == CacheArrangement::kKeyGroups;
  const int run = keys ? 4 : place.layout == CacheArrangement::kValuePairs ? 1 : head;
  const int step = keys ? 4 * kGroupPositions : 2;
  std::int8_t codes[kInt8HeadWidthMax];
  for (int h = 0; h < plane.width / head; ++h) {
    const float scale = kernels.quantize_head(in + h * head, head, codes);
    std::byte* out = block + place.code(h, 0);
    for (int i = 0; i < head; i += run, out += step) {
      std::memcpy(out, codes + i, static_cast<std::size_t>(run));
    }
    std::memcpy(block + place.scale(h), &scale, sizeof(scale));
  }
}

}  // namespace

CpuOps::CpuOps(const CpuKernels& kernels, ComputeType compute, ThreadPool& pool,
               WeightTarget weights)
    : kernels_(kernels),
      compute_(compute),
      packing_{compute, weights, kernels.rounds_to_bf16},
      pool_(pool),
      weight_memory_(pool.node_count()),
      worker_scratch_(static_cast<std::size_t>(pool.thread_count())),
      expert_run_(kernels, pool) {}

std::shared_ptr<std::byte> CpuOps::allocate(std::int64_t bytes) {
  return allocate_zeroed(bytes);
}

Result<std::unique_ptr<PackedMatrix>> CpuOps::pack(std::span<const WeightView> views) {
  return pack_matrix(views, packing_, pool_, weight_memory_);
}

std::int64_t CpuOps::packed_bytes(const WeightView& view) const {
  const std::int64_t panels = (view.rows + kPanelRows - 1) / kPanelRows;
  return panels * panel_bytes(plan_pack(view, packing_).format, view.cols);
}

std::string CpuOps::packing() const {
  return packing_name(packing_);
}

PackedImage CpuOps::image(const PackedMatrix& matrix) {
  return image_of(static_cast<const CpuPackedMatrix&>(matrix), pool_);
}

Result<std::unique_ptr<PackedMatrix>> CpuOps::unpack(const PackedImage& image) {
  return matrix_of(image, pool_, weight_memory_);
}

void CpuOps::prepare(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  pool_.run(count, [&](std::int64_t i, int) { body(i); });
}

void CpuOps::embed(std::span<const Token> ids, const WeightView& table, TensorView out) {
  const auto count = static_cast<std::int64_t>(ids.size());
  CHECK(out.dtype == DType::kF32 && out.rows() == count && out.cols() == table.cols);
  run_rows(count, table.cols, [&](std::int64_t i) {
    dequantize_row(table, ids[static_cast<std::size_t>(i)], out.row<float>(i));
  });
}

void CpuOps::rms_norm(ConstTensorView in, ConstTensorView weight, float epsilon, TensorView out) {
  CHECK(in.dtype == DType::kF32 && weight.dtype == DType::kF32 && out.dtype == DType::kF32);
  CHECK(in.rank == out.rank && in.shape == out.shape && weight.cols() == in.cols());
  const Rows from(in);
  const Rows to(out);
  const auto* source = reinterpret_cast<const float*>(in.data);
  auto* target = reinterpret_cast<float*>(out.data);
  const auto* scales = reinterpret_cast<const float*>(weight.data);
  run_rows(from.count, in.cols(), [&](std::int64_t row) {
    kernels_.rms_norm(source + from.offset(row), scales, epsilon, target + to.offset(row),
                      in.cols());
  });
}

void CpuOps::layer_norm(ConstTensorView in, ConstTensorView weight, ConstTensorView bias,
                        float epsilon, TensorView out) {
  CHECK(in.rank == 2 && out.rank == 2 && in.rows() == out.rows() && in.cols() == out.cols());
  CHECK(weight.cols() == in.cols() && bias.cols() == in.cols());
  const float* scale = weight.row<float>(0);
  const float* shift = bias.row<float>(0);
  const auto width = static_cast<double>(in.cols());
  run_rows(in.rows(), in.cols() * 4, [&](std::int64_t t) {
    const float* x = in.row<float>(t);
    float* y = out.row<float>(t);
    double mean = 0.0;
    double variance = 0.0;
    for (std::int64_t i = 0; i < in.cols(); ++i) mean += static_cast<double>(x[i]) / width;
    for (std::int64_t i = 0; i < in.cols(); ++i) {
      const double offset = static_cast<double>(x[i]) - mean;
      variance += offset * offset / width;
    }
    const double inverse = 1.0 / std::sqrt(variance + static_cast<double>(epsilon));
    for (std::int64_t i = 0; i < in.cols(); ++i) {
      y[i] = static_cast<float>((static_cast<double>(x[i]) - mean) * inverse) * scale[i] + shift[i];
    }
  });
}

void CpuOps::copy_heads(ConstTensorView in, TensorView out) {
  CHECK(in.rank == 3 && out.rank == 3 && in.shape == out.shape);
  CHECK(in.dtype == DType::kF32 && out.dtype == DType::kF32);
  run_rows(in.rows(), in.shape[1] * in.cols(), [&](std::int64_t t) {
    for (std::int64_t h = 0; h < in.shape[1]; ++h) {
      std::copy_n(in.row<float>(t) + h * in.stride[1], in.cols(),
                  out.row<float>(t) + h * out.stride[1]);
    }
  });
}

void CpuOps::rope(TensorView heads, ConstTensorView cos_sin, RopeLayout layout) {
  CHECK(heads.rank == 3 && heads.dtype == DType::kF32 && cos_sin.dtype == DType::kF32);
  CHECK(cos_sin.rank == 3 && cos_sin.rows() == heads.rows() && heads.cols() % 2 == 0);
  CHECK(cos_sin.shape[1] == heads.cols() / 2 && cos_sin.shape[2] == 2 && cos_sin.stride[1] == 2);
  const auto rotate = layout == RopeLayout::kHalf ? kernels_.rope_half : kernels_.rope_interleaved;
  const auto head_count = static_cast<int>(heads.shape[1]);
  const auto dim = static_cast<int>(heads.cols());
  run_rows(heads.rows(), heads.shape[1] * heads.cols(), [&](std::int64_t t) {
    rotate(heads.row<float>(t), heads.stride[1], head_count, dim, cos_sin.row<float>(t));
  });
}

void CpuOps::store_cache(ConstTensorView rows, std::span<const std::int32_t> slots,
                         const CachePlane& plane) {
  const auto count = static_cast<std::int64_t>(slots.size());
  CHECK(rows.rank == 2 && rows.dtype == DType::kF32 && rows.rows() == count);
  CHECK(plane.width % head_width(plane) == 0);
  CHECK(rows.cols() == plane.width);
  const bool coded = plane.dtype == DType::kI8;
  CHECK(coded || plane.dtype == DType::kF32 || plane.dtype == DType::kBF16);
  CHECK(!coded || (head_width(plane) <= kInt8HeadWidthMax && plane.role != CacheRole::kRows &&
                   plane.role != CacheRole::kIndexKeys));
  const std::int64_t slot_count = plane.block_count * plane.tokens_per_block;
  // Where neighbours of an entry lie in different lines, nearly every element waits for memory.
  const std::int64_t cost = arrangement(plane) == CacheArrangement::kPlain ? 2 : 16;
  run_rows(count, plane.width * cost, [&](std::int64_t t) {
    const std::int64_t slot = slots[static_cast<std::size_t>(t)];
    CHECK(slot >= 0 && slot < slot_count);
    if (coded) return store_int8_entry(kernels_, rows.row<float>(t), plane, slot);
    store_entry(rows.row<float>(t), plane, slot);
  });
}

void CpuOps::silu_gate(ConstTensorView gate_up, TensorView out) {
  CHECK(gate_up.rank == 2 && gate_up.dtype == DType::kF32 && out.dtype == DType::kF32);
  CHECK(gate_up.rows() == out.rows() && gate_up.cols() == 2 * out.cols());
  run_rows(out.rows(), out.cols() * 2, [&](std::int64_t t) {
    const float* gate = gate_up.row<float>(t);
    kernels_.silu_gate(gate, gate + out.cols(), out.row<float>(t), out.cols());
  });
}

}  // namespace kun
