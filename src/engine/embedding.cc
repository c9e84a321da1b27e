// Sums run in double, so that vectors of any size and length give what the formula says.
#include "engine/embedding.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kun {
namespace {

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

}  // namespace

std::vector<float> make_embedding(std::vector<float> pooled, std::size_t dimensions,
                                  bool normalize) {
  if (dimensions > 0) pooled.resize(std::min(pooled.size(), dimensions));
  if (!normalize) return pooled;
  const double length = std::sqrt(dot(pooled, pooled));
  if (length == 0.0) return pooled;
  for (float& value : pooled) value = static_cast<float>(double{value} / length);
  return pooled;
}

float cosine_similarity(std::span<const float> a, std::span<const float> b) {
  CHECK(a.size() == b.size());
  const double lengths = std::sqrt(dot(a, a)) * std::sqrt(dot(b, b));
  if (lengths == 0.0) return 0.0F;
  return static_cast<float>(std::clamp(dot(a, b) / lengths, -1.0, 1.0));
}

}  // namespace kun
