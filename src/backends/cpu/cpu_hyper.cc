// Hyper-connections on the processor: a few dozen weights a token, computed in double precision,
// and two passes over the streams.
#include <cmath>

#include "backends/cpu/cpu_ops.h"
#include "base/check.h"

namespace kun {
namespace {

constexpr int kStreamsMax = 8;

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

// A matrix of streams x streams, whose rows and columns are to sum to 1.
class Mixing {
 public:
  Mixing(int streams, double epsilon) : n_(streams), epsilon_(epsilon) {}

  double& at(int row, int col) { return values_[row * kStreamsMax + col]; }

  void softmax_rows() {
    for (int r = 0; r < n_; ++r) {
      double max = -INFINITY;
      double sum = 0.0;
      for (int c = 0; c < n_; ++c) max = std::fmax(max, at(r, c));
      for (int c = 0; c < n_; ++c) sum += at(r, c) = std::exp(at(r, c) - max);
      for (int c = 0; c < n_; ++c) at(r, c) = at(r, c) / sum + epsilon_;
    }
  }

  void scale_rows() {
    for (int r = 0; r < n_; ++r) {
      double sum = epsilon_;
      for (int c = 0; c < n_; ++c) sum += at(r, c);
      for (int c = 0; c < n_; ++c) at(r, c) /= sum;
    }
  }

  void scale_columns() {
    for (int c = 0; c < n_; ++c) {
      double sum = epsilon_;
      for (int r = 0; r < n_; ++r) sum += at(r, c);
      for (int r = 0; r < n_; ++r) at(r, c) /= sum;
    }
  }

 private:
  int n_;
  double epsilon_;
  double values_[kStreamsMax * kStreamsMax] = {};
};

void weigh(const HyperWeightsArguments& a, const float* mix, float* out) {
  const int n = a.streams;
  const auto epsilon = static_cast<double>(a.epsilon);
  const float* base = a.base.row<float>(0);
  const float* scale = a.scale.row<float>(0);
  const auto value = [&](int i, int part) {
    return static_cast<double>(mix[i]) * static_cast<double>(scale[part]) +
           static_cast<double>(base[i]);
  };
  for (int i = 0; i < n; ++i) out[i] = static_cast<float>(sigmoid(value(i, 0)) + epsilon);
  if (a.mix.cols() == n) return;
  for (int i = n; i < 2 * n; ++i) out[i] = static_cast<float>(2.0 * sigmoid(value(i, 1)));
  Mixing mixing(n, epsilon);
  for (int m = 0; m < n; ++m) {
    for (int k = 0; k < n; ++k) mixing.at(m, k) = value(2 * n + m * n + k, 2);
  }
  mixing.softmax_rows();
  mixing.scale_columns();
  for (int i = 1; i < a.iterations; ++i) {
    mixing.scale_rows();
    mixing.scale_columns();
  }
  for (int m = 0; m < n; ++m) {
    for (int k = 0; k < n; ++k) out[2 * n + m * n + k] = static_cast<float>(mixing.at(m, k));
  }
}

}  // namespace

void CpuOps::hyper_weights(const HyperWeightsArguments& a) {
  const std::int64_t n = a.streams;
  CHECK(n >= 1 && n <= kStreamsMax && a.mix.dtype == DType::kF32 && a.out.dtype == DType::kF32);
  CHECK(a.mix.cols() == n || (a.mix.cols() == n * (2 + n) && a.scale.cols() == 3));
  CHECK(a.mix.rank == 2 && a.mix.shape == a.out.shape && a.base.cols() == a.mix.cols());
  run_rows(a.mix.rows(), a.mix.cols() * a.iterations * 2,
           [&](std::int64_t t) { weigh(a, a.mix.row<float>(t), a.out.row<float>(t)); });
}

void CpuOps::hyper_collapse(ConstTensorView streams, ConstTensorView weights, TensorView out) {
  CHECK(streams.rank == 3 && out.rank == 2 && streams.rows() == out.rows());
  CHECK(weights.rows() == out.rows() && weights.cols() >= streams.shape[1]);
  CHECK(streams.cols() == out.cols());
  run_rows(out.rows(), out.cols() * streams.shape[1], [&](std::int64_t t) {
    const float* weight = weights.row<float>(t);
    float* to = out.row<float>(t);
    for (std::int64_t n = 0; n < streams.shape[1]; ++n) {
      const float* from = streams.row<float>(t) + n * streams.stride[1];
      for (std::int64_t i = 0; i < out.cols(); ++i) {
        to[i] = n == 0 ? weight[n] * from[i] : to[i] + weight[n] * from[i];
      }
    }
  });
}

void CpuOps::hyper_expand(ConstTensorView in, ConstTensorView weights, TensorView streams) {
  const std::int64_t n = streams.shape[1];
  CHECK(streams.rank == 3 && n <= kStreamsMax && in.rank == 2 && streams.rows() == in.rows());
  CHECK(weights.rows() == in.rows() && weights.cols() == n * (2 + n));
  CHECK(streams.cols() == in.cols());
  run_rows(in.rows(), in.cols() * n * n, [&](std::int64_t t) {
    const float* post = weights.row<float>(t) + n;
    const float* mixing = post + n;
    const float* y = in.row<float>(t);
    float* first = streams.row<float>(t);
    for (std::int64_t i = 0; i < in.cols(); ++i) {
      float old[kStreamsMax];
      for (std::int64_t m = 0; m < n; ++m) old[m] = first[m * streams.stride[1] + i];
      for (std::int64_t k = 0; k < n; ++k) {
        float sum = post[k] * y[i];
        for (std::int64_t m = 0; m < n; ++m) sum += mixing[m * n + k] * old[m];
        first[k * streams.stride[1] + i] = sum;
      }
    }
  });
}

}  // namespace kun
