// Operations on one row at a time, in plain C++ with double sums, and the reference table itself.
#include <cmath>
#include <cstring>

#include "backends/cpu/reference/reference.h"

namespace kun {
namespace {

void rms_norm(const float* in, const float* weight, float epsilon, float* out, std::int64_t size) {
  double squares = 0.0;
  for (std::int64_t i = 0; i < size; ++i) squares += static_cast<double>(in[i]) * in[i];
  const double mean = squares / static_cast<double>(size);
  const double scale = 1.0 / std::sqrt(mean + static_cast<double>(epsilon));
  for (std::int64_t i = 0; i < size; ++i) {
    out[i] = static_cast<float>(in[i] * scale * static_cast<double>(weight[i]));
  }
}

void rotate(float* first, float* second, float cos, float sin) {
  const float a = *first;
  const float b = *second;
  *first = a * cos - b * sin;
  *second = b * cos + a * sin;
}

void rope_half(float* head, std::int64_t head_stride, int heads, int dim, const float* cos_sin) {
  for (int h = 0; h < heads; ++h, head += head_stride) {
    for (int i = 0; i < dim / 2; ++i) {
      rotate(head + i, head + dim / 2 + i, cos_sin[2 * i], cos_sin[2 * i + 1]);
    }
  }
}

void rope_interleaved(float* head, std::int64_t head_stride, int heads, int dim,
                      const float* cos_sin) {
  for (int h = 0; h < heads; ++h, head += head_stride) {
    for (int i = 0; i < dim / 2; ++i) {
      rotate(head + 2 * i, head + 2 * i + 1, cos_sin[2 * i], cos_sin[2 * i + 1]);
    }
  }
}

void silu_gate(const float* gate, const float* up, float* out, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) out[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
}

std::uint64_t read_bytes(const std::byte* data, std::int64_t bytes) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < bytes; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + i, 8);
    sum += word;
  }
  return sum;
}

}  // namespace

void add_reference_rows(CpuKernels* table) {
  table->rms_norm = rms_norm;
  table->rope_half = rope_half;
  table->rope_interleaved = rope_interleaved;
  table->silu_gate = silu_gate;
  table->read_bytes = read_bytes;
}

const CpuKernels& reference_kernels() {
  static const CpuKernels table = [] {
    CpuKernels kernels{};
    kernels.name = "reference";
    add_reference_linear(&kernels);
    add_reference_attention(&kernels);
    add_reference_rows(&kernels);
    add_reference_latent(&kernels);
    return kernels;
  }();
  return table;
}

}  // namespace kun
