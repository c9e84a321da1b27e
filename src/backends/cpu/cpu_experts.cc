// Mixture of experts on the processor: tokens are sorted by expert, so that a panel of an expert's
// weights is read once and meets all of its tokens, and each token then adds up its own results in
// the order in which it chose.
#include "backends/cpu/cpu_experts.h"

#include <algorithm>

#include "backends/cpu/cpu_ops.h"
#include "base/check.h"

namespace kun {
namespace {

// What the intermediate results of one call may take; more tokens are done in several rounds.
constexpr std::int64_t kResultBytesMax = std::int64_t{512} << 20;

const CpuPackedMatrix& packed(const PackedMatrix* matrix) {
  return static_cast<const CpuPackedMatrix&>(*matrix);
}

void check_arguments(const ExpertArguments& a) {
  const auto is_matrix = [&](ConstTensorView view, DType dtype) {
    return view.rank == 2 && view.dtype == dtype && view.rows() == a.in.rows();
  };
  CHECK(is_matrix(a.in, DType::kF32) && is_matrix(a.out, DType::kF32));
  CHECK(is_matrix(a.experts, DType::kI32) && is_matrix(a.weights, DType::kF32));
  CHECK(a.experts.cols() == a.weights.cols() && a.in.cols() == a.out.cols());
  CHECK(!a.table.empty());
}

ExpertArguments slice_rows(const ExpertArguments& all, std::int64_t first, std::int64_t count) {
  ExpertArguments part = all;
  part.in = all.in.slice_rows(first, count);
  part.experts = all.experts.slice_rows(first, count);
  part.weights = all.weights.slice_rows(first, count);
  part.out = all.out.slice_rows(first, count);
  return part;
}

}  // namespace

// A counting sort: entries of one expert lie together, in the order of tokens.
void ExpertRun::group_tokens(const ExpertArguments& a) {
  const auto expert_count = static_cast<std::int64_t>(a.table.size());
  const std::int64_t chosen = a.experts.cols();
  const std::int64_t entries = a.in.rows() * chosen;
  starts_.assign(a.table.size() + 1, 0);
  for (std::int64_t t = 0; t < a.in.rows(); ++t) {
    for (std::int64_t j = 0; j < chosen; ++j) {
      const std::int32_t expert = a.experts.row<std::int32_t>(t)[j];
      CHECK(expert >= 0 && expert < expert_count);
      ++starts_[static_cast<std::size_t>(expert) + 1];
    }
  }
  parts_.clear();
  used_.clear();
  for (std::size_t e = 0; e < a.table.size(); ++e) {
    const std::int64_t count = starts_[e + 1];
    starts_[e + 1] += starts_[e];
    if (count == 0) continue;
    parts_.push_back({starts_[e], count, a.in.cols()});
    used_.push_back(&a.table[e]);
  }
  rows_.resize(static_cast<std::size_t>(entries));
  entry_of_.resize(static_cast<std::size_t>(entries));
  for (std::int64_t t = 0; t < a.in.rows(); ++t) {
    for (std::int64_t j = 0; j < chosen; ++j) {
      const auto expert = static_cast<std::size_t>(a.experts.row<std::int32_t>(t)[j]);
      const std::int64_t entry = starts_[expert]++;
      entry_of_[static_cast<std::size_t>(t * chosen + j)] = entry;
      rows_[static_cast<std::size_t>(entry)] = a.in.row<float>(t);
    }
  }
}

// The shared expert is one more part, of all tokens, after the routed ones.
void ExpertRun::add_shared(const ExpertArguments& a) {
  if (a.shared.gate_up == nullptr) return;
  parts_.push_back({static_cast<std::int64_t>(rows_.size()), a.in.rows(), a.in.cols()});
  used_.push_back(&a.shared);
  for (std::int64_t t = 0; t < a.in.rows(); ++t) rows_.push_back(a.in.row<float>(t));
}

void ExpertRun::combine(const ExpertArguments& a, const float* made) const {
  const std::int64_t width = a.out.cols();
  const std::int64_t chosen = a.experts.cols();
  const float* shared = made + a.in.rows() * chosen * width;
  pool_.run(a.in.rows(), [&](std::int64_t t, int) {
    float* out = a.out.row<float>(t);
    for (std::int64_t j = 0; j < chosen; ++j) {
      const float weight = a.weights.row<float>(t)[j];
      const float* in = made + entry_of_[static_cast<std::size_t>(t * chosen + j)] * width;
      kernels_.add_scaled(weight, in, out, width);
    }
    if (a.shared.gate_up == nullptr) return;
    kernels_.add_scaled(1.0F, shared + t * width, out, width);
  });
}

// The shared expert, which all tokens meet, is bound by arithmetic where the routed ones are bound
// by memory. In front it lies in the stretch of one thread and is computed while the others read;
// at the end all would first read together, then compute together.
void ExpertRun::put_shared_first(const ExpertArguments& a) {
  if (a.shared.gate_up == nullptr) return;
  std::rotate(groups_.begin(), groups_.end() - 1, groups_.end());
}

void ExpertRun::run_chunk(const ExpertArguments& a) {
  group_tokens(a);
  add_shared(a);
  const auto entries = static_cast<std::int64_t>(rows_.size());
  std::int64_t inner = 0;
  for (const ExpertWeights* weights : used_) inner = std::max(inner, weights->down->cols);

  float* gated = gated_.get_array<float>(entries * inner);
  float* made = made_.get_array<float>(entries * a.out.cols());
  groups_.clear();
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    CHECK(used_[p]->gate_up->rows == 2 * used_[p]->down->cols);
    groups_.push_back({&packed(used_[p]->gate_up), p, gated + parts_[p].first * inner});
  }
  put_shared_first(a);
  product_.multiply_gated({rows_, parts_}, groups_, inner, a.limit);

  for (std::size_t i = 0; i < rows_.size(); ++i) {
    rows_[i] = gated + static_cast<std::int64_t>(i) * inner;
  }
  groups_.clear();
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    CHECK(used_[p]->down->rows == a.out.cols());
    parts_[p].cols = used_[p]->down->cols;
    groups_.push_back({&packed(used_[p]->down), p, made + parts_[p].first * a.out.cols()});
  }
  put_shared_first(a);
  product_.multiply({rows_, parts_}, groups_, a.out.cols());
  combine(a, made);
}

void ExpertRun::run(const ExpertArguments& a) {
  check_arguments(a);
  const std::int64_t per_token =
      (a.experts.cols() + 1) * (a.table.front().down->cols + a.out.cols()) * 4;
  const std::int64_t step = std::max<std::int64_t>(1, kResultBytesMax / per_token);
  for (std::int64_t first = 0; first < a.in.rows(); first += step) {
    run_chunk(slice_rows(a, first, std::min(step, a.in.rows() - first)));
  }
}

void ExpertRun::run_groups(ConstTensorView in, std::span<const PackedMatrix* const> weights,
                           TensorView out) {
  const auto group_count = static_cast<std::int64_t>(weights.size());
  CHECK(in.rank == 3 && out.rank == 3 && in.dtype == DType::kF32 && out.dtype == DType::kF32);
  CHECK(in.rows() == out.rows() && in.shape[1] == group_count && out.shape[1] == group_count);
  if (in.rows() == 0) return;
  const bool same_rows = in.stride[1] == 0;
  rows_.clear();
  parts_.clear();
  groups_.clear();
  for (std::int64_t g = 0; g < group_count; ++g) {
    const CpuPackedMatrix& weight = packed(weights[static_cast<std::size_t>(g)]);
    CHECK(weight.rows == out.cols());
    if (g == 0 || !same_rows) {
      parts_.push_back({static_cast<std::int64_t>(rows_.size()), in.rows(), in.cols()});
      for (std::int64_t t = 0; t < in.rows(); ++t) {
        rows_.push_back(in.row<float>(t) + g * in.stride[1]);
      }
    }
    groups_.push_back({&weight, parts_.size() - 1, out.row<float>(0) + g * out.stride[1]});
  }
  product_.multiply({rows_, parts_}, groups_, out.stride[0]);
}

}  // namespace kun
