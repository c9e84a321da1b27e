// Row operations for NEON, and the ARMv8.0 table itself.
#include "backends/cpu/neon/exp.h"
#include "backends/cpu/neon/parts.h"

namespace kun {
namespace {

// Squares are summed in double: a row of large values must not overflow.
void rms_norm(const float* in, const float* weight, float epsilon, float* out, std::int64_t size) {
  float64x2_t even = vdupq_n_f64(0.0);
  float64x2_t odd = vdupq_n_f64(0.0);
  std::int64_t i = 0;
  for (; i + 4 <= size; i += 4) {
    const float32x4_t x = vld1q_f32(in + i);
    const float64x2_t low = vcvt_f64_f32(vget_low_f32(x));
    const float64x2_t high = vcvt_high_f64_f32(x);
    even = vfmaq_f64(even, low, low);
    odd = vfmaq_f64(odd, high, high);
  }
  double squares = vaddvq_f64(vaddq_f64(even, odd));
  for (; i < size; ++i) squares += static_cast<double>(in[i]) * static_cast<double>(in[i]);
  const double mean = squares / static_cast<double>(size);
  const auto scale = static_cast<float>(1.0 / __builtin_sqrt(mean + static_cast<double>(epsilon)));
  for (i = 0; i + 4 <= size; i += 4) {
    const float32x4_t x = vmulq_n_f32(vld1q_f32(in + i), scale);
    vst1q_f32(out + i, vmulq_f32(x, vld1q_f32(weight + i)));
  }
  for (; i < size; ++i) out[i] = in[i] * scale * weight[i];
}

void rope_half(float* head, std::int64_t head_stride, int heads, int dim, const float* cos_sin) {
  const int half = dim / 2;
  for (int h = 0; h < heads; ++h, head += head_stride) {
    int i = 0;
    for (; i + 4 <= half; i += 4) {
      const float32x4x2_t rotation = vld2q_f32(cos_sin + 2 * i);
      const float32x4_t a = vld1q_f32(head + i);
      const float32x4_t b = vld1q_f32(head + half + i);
      vst1q_f32(head + i, vfmsq_f32(vmulq_f32(a, rotation.val[0]), b, rotation.val[1]));
      vst1q_f32(head + half + i, vfmaq_f32(vmulq_f32(b, rotation.val[0]), a, rotation.val[1]));
    }
    for (; i < half; ++i) {
      const float a = head[i];
      const float b = head[half + i];
      head[i] = a * cos_sin[2 * i] - b * cos_sin[2 * i + 1];
      head[half + i] = b * cos_sin[2 * i] + a * cos_sin[2 * i + 1];
    }
  }
}

void rope_interleaved(float* head, std::int64_t head_stride, int heads, int dim,
                      const float* cos_sin) {
  for (int h = 0; h < heads; ++h, head += head_stride) {
    int i = 0;
    for (; i + 8 <= dim; i += 8) {
      const float32x4x2_t rotation = vld2q_f32(cos_sin + i);
      const float32x4x2_t x = vld2q_f32(head + i);
      float32x4x2_t y;
      y.val[0] = vfmsq_f32(vmulq_f32(x.val[0], rotation.val[0]), x.val[1], rotation.val[1]);
      y.val[1] = vfmaq_f32(vmulq_f32(x.val[1], rotation.val[0]), x.val[0], rotation.val[1]);
      vst2q_f32(head + i, y);
    }
    for (; i < dim; i += 2) {
      const float a = head[i];
      const float b = head[i + 1];
      head[i] = a * cos_sin[i] - b * cos_sin[i + 1];
      head[i + 1] = b * cos_sin[i] + a * cos_sin[i + 1];
    }
  }
}

float32x4_t gated(float32x4_t gate, float32x4_t up) {
  const float32x4_t divisor = vaddq_f32(vdupq_n_f32(1.0F), exp(vnegq_f32(gate)));
  return vmulq_f32(vdivq_f32(gate, divisor), up);
}

void silu_gate(const float* gate, const float* up, float* out, std::int64_t size) {
  std::int64_t i = 0;
  for (; i + 4 <= size; i += 4) {
    vst1q_f32(out + i, gated(vld1q_f32(gate + i), vld1q_f32(up + i)));
  }
  for (; i < size; ++i) {
    out[i] = vgetq_lane_f32(gated(vdupq_n_f32(gate[i]), vdupq_n_f32(up[i])), 0);
  }
}

std::uint64_t read_bytes(const std::byte* data, std::int64_t bytes) {
  uint64x2_t sums[4] = {};
  for (std::int64_t i = 0; i < bytes; i += 64) {
    for (int k = 0; k < 4; ++k) {
      const auto* words = reinterpret_cast<const std::uint64_t*>(data + i + 16 * k);
      sums[k] = veorq_u64(sums[k], vld1q_u64(words));
    }
  }
  const uint64x2_t all = veorq_u64(veorq_u64(sums[0], sums[1]), veorq_u64(sums[2], sums[3]));
  return vgetq_lane_u64(all, 0) ^ vgetq_lane_u64(all, 1);
}

}  // namespace

void add_neon_rows(CpuKernels* table) {
  table->rms_norm = rms_norm;
  table->rope_half = rope_half;
  table->rope_interleaved = rope_interleaved;
  table->silu_gate = silu_gate;
  table->read_bytes = read_bytes;
}

const CpuKernels& neon_kernels() {
  static const CpuKernels table = [] {
    CpuKernels kernels = reference_kernels();
    kernels.name = "neon";
    add_neon_linear(&kernels);
    add_neon_attention(&kernels);
    add_neon_int8_attention(&kernels);
    add_neon_rows(&kernels);
    return kernels;
  }();
  return table;
}

}  // namespace kun
