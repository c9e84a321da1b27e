// Gathering the entries of a latent cache, and weighted sums, in plain C++.
#include <cstring>

#include "backends/cpu/reference/reference.h"

namespace kun {
namespace {

void add_scaled(float weight, const float* in, float* out, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) out[i] += weight * in[i];
}

void gather_keys(const std::byte* const* rows, int words, std::byte* out) {
  for (int w = 0; w < words; ++w) {
    for (int p = 0; p < kGroupPositions; ++p) {
      std::memcpy(out + (w * kGroupPositions + p) * 4, rows[p] + w * 4, 4);
    }
  }
}

void gather_values(const std::byte* const* rows, int width, std::int64_t stride, std::byte* out) {
  for (int p = 0; p < kGroupPositions; ++p) {
    std::byte* pair = out + p / 2 * stride * 4 + p % 2 * 2;
    for (int i = 0; i < width; ++i) std::memcpy(pair + i * 4, rows[p] + i * 2, 2);
  }
}

}  // namespace

void add_reference_latent(CpuKernels* table) {
  table->add_scaled = add_scaled;
  table->gather_keys = gather_keys;
  table->gather_values = gather_values;
}

}  // namespace kun
