// Latent attention and what feeds it, as the device runs it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "backends/cpu/cache_layout.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/entry_choice.h"
#include "backends/cpu/latent_run.h"
#include "base/check.h"
#include "tensor/float_formats.h"

namespace kun {

void CpuOps::latent_attention(const LatentAttentionArguments& arguments) {
  LatentRun run(kernels_, arguments);
  run.plan(pool_.thread_count(), &latent_items_);
  if (run.partial_floats() > 0) {
    run.set_partials(partial_scratch_.get_array<float>(run.partial_floats()));
  }
  pool_.run(static_cast<std::int64_t>(latent_items_.size()), [&](std::int64_t i, int worker) {
    run.run(latent_items_[static_cast<std::size_t>(i)],
            worker_scratch_[static_cast<std::size_t>(worker)]);
  });
  Scratch::level(worker_scratch_);
  if (run.partial_floats() == 0) return;
  latent_starts_.clear();
  for (std::size_t i = 0; i < latent_items_.size(); ++i) {
    if (latent_items_[i].run_begin == 0) latent_starts_.push_back(i);
  }
  latent_starts_.push_back(latent_items_.size());
  pool_.run(std::ssize(latent_starts_) - 1, [&](std::int64_t i, int worker) {
    const auto index = static_cast<std::size_t>(i);
    run.combine(latent_items_.data() + latent_starts_[index],
                latent_items_.data() + latent_starts_[index + 1],
                worker_scratch_[static_cast<std::size_t>(worker)]);
  });
}

void CpuOps::load_cache(const CachePlane& plane, std::span<const std::int32_t> slots,
                        std::int64_t first_col, TensorView out) {
  CHECK(out.rank == 3 && out.dtype == DType::kF32 && out.rows() == std::ssize(slots));
  CHECK(plane.role == CacheRole::kRows && first_col >= 0 && first_col + out.cols() <= plane.width);
  CHECK(plane.dtype == DType::kF32 || plane.dtype == DType::kBF16);
  const std::int64_t slot_count = plane.block_count * plane.tokens_per_block;
  const std::int64_t width = out.cols();
  run_rows(out.rows(), out.shape[1] * width, [&](std::int64_t t) {
    const std::int64_t slot = slots[static_cast<std::size_t>(t)];
    CHECK(slot >= 0 && slot < slot_count);
    const std::int64_t start = slot * plane.width + first_col;
    float* first = out.row<float>(t);
    if (plane.dtype == DType::kF32) {
      std::copy_n(reinterpret_cast<const float*>(plane.data) + start, width, first);
    } else {
      const auto* in = reinterpret_cast<const std::uint16_t*>(plane.data) + start;
      for (std::int64_t i = 0; i < width; ++i) first[i] = bf16_to_f32(in[i]);
    }
    for (std::int64_t h = 1; h < out.shape[1]; ++h) {
      std::copy_n(first, width, first + h * out.stride[1]);
    }
  });
}

void CpuOps::linear_groups(ConstTensorView in, std::span<const PackedMatrix* const> weights,
                           TensorView out) {
  expert_run_.run_groups(in, weights, out);
}

void CpuOps::route(const RouteArguments& arguments) {
  route_tokens(arguments, pool_, worker_scratch_);
  Scratch::level(worker_scratch_);
}

void CpuOps::experts(const ExpertArguments& arguments) {
  expert_run_.run(arguments);
}

void CpuOps::choose_entries(const ChooseArguments& arguments) {
  EntryChoice choice(kernels_, arguments);
  choice.run(pool_, {partial_scratch_, worker_scratch_, choice_rows_});
  Scratch::level(worker_scratch_);
}

}  // namespace kun
