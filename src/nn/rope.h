// Rotary position embedding: which angle each pair of elements turns by at a position.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/ops.h"
#include "tensor/tensor_view.h"

namespace kun::nn {

struct RopeScaling {
  enum class Kind : std::uint8_t { kNone, kLinear, kLlama3, kYarn };

  Kind kind = Kind::kNone;
  double factor = 1.0;
  double original_context = 0.0;       // positions the model was first trained on
  double low_frequency_factor = 1.0;   // llama3
  double high_frequency_factor = 4.0;  // llama3
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  double attention_factor = 1.0;       // yarn: multiplies cosine and sine
};

struct RopeShape {
  int width = 0;  // rotated elements per head, even
  double theta = 10000.0;
  RopeLayout layout = RopeLayout::kHalf;
  RopeScaling scaling;
};

// Const once built.
class Rope {
 public:
  explicit Rope(const RopeShape& shape);

  // Divides frequency i by divisors[i]: GGUF ships llama3 scaling in this form (rope_freqs.weight).
  // Requires: width / 2 divisors.
  void divide_frequencies(std::span<const float> divisors);

  // Writes cosine and sine of every position: out is [position, width/2, 2].
  // Angles are computed in F64: at position 160,000 F32 would be wrong in the third digit.
  void fill(std::span<const std::int32_t> positions, TensorView out) const;
  // The same for turning back.
  void fill_back(std::span<const std::int32_t> positions, TensorView out) const;

  RopeLayout layout() const { return layout_; }
  std::int64_t pair_count() const { return static_cast<std::int64_t>(frequencies_.size()); }
  std::span<const double> frequencies() const { return frequencies_; }  // radians per position

 private:
  void fill_angles(std::span<const std::int32_t> positions, double direction, TensorView out) const;

  RopeLayout layout_;
  double multiplier_;
  std::vector<double> frequencies_;
};

}  // namespace kun::nn
