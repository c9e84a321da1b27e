// Routing on the processor, in double precision: a gate's choice is a comparison, and a comparison
// that rounding decides would differ between machines.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "backends/cpu/cpu_experts.h"
#include "base/check.h"

namespace kun {
namespace {

// Above this softplus(x) is x in double precision terms of its use here.
constexpr double kSoftplusLinear = 20.0;

void score_all(GateScore kind, const float* logits, std::span<double> scores) {
  const std::size_t count = scores.size();
  if (kind == GateScore::kSoftmax) {
    const auto max = static_cast<double>(*std::max_element(logits, logits + count));
    double sum = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
      scores[i] = std::exp(static_cast<double>(logits[i]) - max);
      sum += scores[i];
    }
    for (double& score : scores) score /= sum;
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto x = static_cast<double>(logits[i]);
    if (kind == GateScore::kSigmoid) {
      scores[i] = 1.0 / (1.0 + std::exp(-x));
    } else {
      scores[i] = std::sqrt(x > kSoftplusLinear ? x : std::log1p(std::exp(x)));
    }
  }
}

double score_group(GroupScore kind, std::span<const double> choices) {
  double best = -INFINITY;
  double second = -INFINITY;
  for (const double choice : choices) {
    second = std::max(second, std::min(best, choice));
    best = std::max(best, choice);
  }
  return kind == GroupScore::kMax ? best : best + second;
}

// The `count` best of `values`, best first, ties to the lower index; NaN counts as the worst.
// order: room for the indices of all values.
std::span<const std::int32_t> best_of(std::span<const double> values, std::int64_t count,
                                      std::span<std::int32_t> order) {
  order = order.first(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](std::int32_t i) {
    const double value = values[static_cast<std::size_t>(i)];
    return std::isnan(value) ? -INFINITY : value;
  };
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const double left = key(a);
                      const double right = key(b);
                      return left != right ? left > right : a < b;
                    });
  return order.first(static_cast<std::size_t>(count));
}

class TokenRouter {
 public:
  TokenRouter(const RouteArguments& arguments, Scratch& scratch) : a_(arguments) {
    const std::int64_t experts = arguments.logits.cols();
    const std::int64_t groups = arguments.group_count;
    auto* doubles = scratch.get_array<double>(3 * experts + 2 * groups);
    const auto take = [&doubles](std::int64_t count) {
      const std::span<double> taken(doubles, static_cast<std::size_t>(count));
      doubles += count;
      return taken;
    };
    scores_ = take(experts);
    choices_ = take(experts);
    judged_ = take(groups);
    order_ = {reinterpret_cast<std::int32_t*>(doubles), static_cast<std::size_t>(experts)};
    kept_ = {order_.data() + experts, static_cast<std::size_t>(groups)};
  }

  void route(std::int64_t token) {
    score_all(a_.score, a_.logits.row<float>(token), scores_);
    if (a_.given.data != nullptr) {
      const auto* given = a_.given.row<std::int32_t>(token);
      write(token, {given, static_cast<std::size_t>(a_.given.cols())});
    } else {
      write(token, choose());
    }
  }

 private:
  std::span<const std::int32_t> choose() {
    std::copy(scores_.begin(), scores_.end(), choices_.begin());
    if (a_.bias.data != nullptr) {
      for (std::size_t i = 0; i < choices_.size(); ++i) {
        choices_[i] += static_cast<double>(a_.bias.row<float>(0)[i]);
      }
    }
    if (a_.group_count > 1) drop_groups();
    return best_of(choices_, a_.experts.cols(), order_);
  }

  void drop_groups() {
    const auto groups = static_cast<std::size_t>(a_.group_count);
    const std::size_t size = choices_.size() / groups;
    for (std::size_t g = 0; g < groups; ++g) {
      judged_[g] = score_group(a_.group_score, choices_.subspan(g * size, size));
      kept_[g] = 0;
    }
    for (const std::int32_t g : best_of(judged_, a_.kept_group_count, order_)) {
      kept_[static_cast<std::size_t>(g)] = 1;
    }
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      if (kept_[i / size] == 0) choices_[i] = -INFINITY;
    }
  }

  void write(std::int64_t token, std::span<const std::int32_t> order) const {
    auto* experts = a_.experts.row<std::int32_t>(token);
    auto* weights = a_.weights.row<float>(token);
    double sum = 0.0;
    for (const std::int32_t expert : order) sum += scores_[static_cast<std::size_t>(expert)];
    // The published code adds 1e-20 to the sum.
    const double factor = static_cast<double>(a_.scale) / (a_.normalize ? sum + 1e-20 : 1.0);
    for (std::size_t j = 0; j < order.size(); ++j) {
      experts[j] = order[j];
      weights[j] = static_cast<float>(scores_[static_cast<std::size_t>(order[j])] * factor);
    }
  }

  const RouteArguments& a_;
  std::span<double> scores_;       // [expert]
  std::span<double> choices_;      // [expert]
  std::span<double> judged_;       // [group]
  std::span<std::int32_t> order_;  // [expert]
  std::span<std::int32_t> kept_;   // [group]: 0 or 1
};

void check_arguments(const RouteArguments& a) {
  const std::int64_t experts = a.logits.cols();
  CHECK(a.logits.rank == 2 && a.logits.dtype == DType::kF32);
  CHECK(a.experts.rank == 2 && a.experts.dtype == DType::kI32 && a.weights.dtype == DType::kF32);
  CHECK(a.experts.rows() == a.logits.rows() && a.weights.rows() == a.logits.rows());
  CHECK(a.experts.cols() == a.weights.cols() && a.experts.cols() <= experts);
  CHECK(a.bias.data == nullptr || a.bias.cols() == experts);
  CHECK(a.given.data == nullptr ||
        (a.given.dtype == DType::kI32 && a.given.rows() == a.logits.rows() &&
         a.given.cols() == a.experts.cols()));
  CHECK(a.group_count >= 1 && experts % a.group_count == 0);
  CHECK(a.kept_group_count >= 1 && a.kept_group_count <= a.group_count);
  CHECK(a.experts.cols() <= experts / a.group_count * a.kept_group_count);
}

}  // namespace

void route_tokens(const RouteArguments& arguments, ThreadPool& pool,
                  std::span<Scratch> worker_scratch) {
  check_arguments(arguments);
  constexpr std::int64_t kTokensPerItem = 16;
  const std::int64_t tokens = arguments.logits.rows();
  pool.run((tokens + kTokensPerItem - 1) / kTokensPerItem, [&](std::int64_t item, int worker) {
    TokenRouter router(arguments, worker_scratch[static_cast<std::size_t>(worker)]);
    const std::int64_t end = std::min(tokens, (item + 1) * kTokensPerItem);
    for (std::int64_t t = item * kTokensPerItem; t < end; ++t) router.route(t);
  });
}

}  // namespace kun
