#include "nn/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kun::nn {
namespace {

// Llama 3.1: wavelengths beyond the original context turn `factor` times slower, short ones as
// before, those between in proportion (transformers modeling_rope_utils.py, _compute_llama3). Equal
// factors leave nothing between but one wavelength, which then counts as long.
double llama3_frequency(double frequency, const RopeScaling& s) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < s.original_context / s.high_frequency_factor) return frequency;
  const bool is_long = wavelength > s.original_context / s.low_frequency_factor;
  if (is_long || s.low_frequency_factor == s.high_frequency_factor) return frequency / s.factor;
  const double share = (s.original_context / wavelength - s.low_frequency_factor) /
                       (s.high_frequency_factor - s.low_frequency_factor);
  return frequency * ((1.0 - share) / s.factor + share);
}

// YaRN (Peng et al. 2023, section 3.2): the pair that turns `rotations` times over the original
// context stands at index c(rotations); between c(beta_fast) and c(beta_slow) frequencies blend
// from unchanged to divided by `factor`.
class YarnRamp {
 public:
  YarnRamp(const RopeShape& shape) {
    const auto index_of = [&](double rotations) {
      return shape.width *
             std::log(shape.scaling.original_context / (rotations * 2.0 * std::numbers::pi)) /
             (2.0 * std::log(shape.theta));
    };
    low_ = std::max(std::floor(index_of(shape.scaling.beta_fast)), 0.0);
    high_ = std::min(std::ceil(index_of(shape.scaling.beta_slow)), shape.width - 1.0);
    if (low_ == high_) high_ += 0.001;
  }

  double operator()(int pair) const { return std::clamp((pair - low_) / (high_ - low_), 0.0, 1.0); }

 private:
  double low_ = 0.0;
  double high_ = 0.0;
};

}  // namespace

Rope::Rope(const RopeShape& shape) : layout_(shape.layout), multiplier_(1.0) {
  CHECK(shape.width > 0 && shape.width % 2 == 0);
  const RopeScaling& scaling = shape.scaling;
  const bool yarn = scaling.kind == RopeScaling::Kind::kYarn;
  const YarnRamp ramp(shape);
  if (yarn) multiplier_ = scaling.attention_factor;
  for (int pair = 0; pair < shape.width / 2; ++pair) {
    double frequency = std::pow(shape.theta, -2.0 * pair / shape.width);
    switch (scaling.kind) {
      case RopeScaling::Kind::kNone: break;
      case RopeScaling::Kind::kLinear: frequency /= scaling.factor; break;
      case RopeScaling::Kind::kLlama3: frequency = llama3_frequency(frequency, scaling); break;
      case RopeScaling::Kind::kYarn:
        frequency = frequency / scaling.factor * ramp(pair) + frequency * (1.0 - ramp(pair));
        break;
    }
    frequencies_.push_back(frequency);
  }
}

void Rope::divide_frequencies(std::span<const float> divisors) {
  CHECK(divisors.size() == frequencies_.size());
  for (std::size_t i = 0; i < divisors.size(); ++i) {
    frequencies_[i] /= static_cast<double>(divisors[i]);
  }
}

void Rope::fill(std::span<const std::int32_t> positions, TensorView out) const {
  fill_angles(positions, 1.0, out);
}

void Rope::fill_back(std::span<const std::int32_t> positions, TensorView out) const {
  fill_angles(positions, -1.0, out);
}

void Rope::fill_angles(std::span<const std::int32_t> positions, double direction,
                       TensorView out) const {
  CHECK(out.rows() == std::ssize(positions) && out.shape[1] == pair_count());
  for (std::size_t t = 0; t < positions.size(); ++t) {
    auto* row = out.row<float>(static_cast<std::int64_t>(t));
    for (std::size_t i = 0; i < frequencies_.size(); ++i) {
      const double angle = positions[t] * frequencies_[i];
      row[2 * i] = static_cast<float>(std::cos(angle) * multiplier_);
      row[2 * i + 1] = static_cast<float>(direction * std::sin(angle) * multiplier_);
    }
  }
}

}  // namespace kun::nn
