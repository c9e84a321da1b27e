#include "sampling/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "sampling/fast_exp.h"
#include "sampling/random.h"
#include "sampling/thinking_limit.h"
#include "sampling/token_limits.h"

namespace kun {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kGreedyBelow = 1e-5F;  // temperatures below are 0, as in vLLM
constexpr std::size_t kSumBlock = 1024;
constexpr std::size_t kHeapMax = 1024;  // selections larger than this partition all ids instead

struct Scan {
  bool corrupted = false;  // holds a NaN or +inf
  float max = -kInfinity;
};

// Four floats; the compiler knows how on every machine.
using Lanes = float __attribute__((vector_size(16)));
using Marks = std::int32_t __attribute__((vector_size(16)));
constexpr std::size_t kLanes = 4;

Lanes load_lanes(const float* data) {
  Lanes lanes;
  std::memcpy(&lanes, data, sizeof(lanes));
  return lanes;
}

// In vectors: a step of many users looks at megabytes of logits here while nothing else runs. Two
// chains of comparisons do not wait for each other.
Scan scan(std::span<const float> logits) {
  Lanes low = {-kInfinity, -kInfinity, -kInfinity, -kInfinity};
  Lanes high = low;
  Marks unordered = {};
  std::size_t i = 0;
  for (; i + 2 * kLanes <= logits.size(); i += 2 * kLanes) {
    const Lanes a = load_lanes(logits.data() + i);
    const Lanes b = load_lanes(logits.data() + i + kLanes);
    unordered |= (a != a) | (b != b);
    low = a > low ? a : low;
    high = b > high ? b : high;
  }
  Scan result;
  const auto take = [&](float logit) {
    result.corrupted = result.corrupted || std::isnan(logit);
    if (logit > result.max) result.max = logit;
  };
  for (; i < logits.size(); ++i) take(logits[i]);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    take(low[lane]);
    take(high[lane]);
    result.corrupted = result.corrupted || unordered[lane] != 0;
  }
  result.corrupted = result.corrupted || result.max == kInfinity;
  return result;
}

// Larger logit first, then lower id: the one order of every selection here.
struct LikelierFirst {
  std::span<const float> logits;
  bool operator()(Token a, Token b) const {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  }
};

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0F || params.frequency_penalty != 0.0F ||
         params.presence_penalty != 0.0F;
}

bool ends_forbidden(const SamplingRow& row) {
  const auto output_count =
      static_cast<std::int64_t>(row.history.size()) - std::int64_t{row.prompt_count};
  return output_count < row.params->output_count_min && !row.params->end_tokens.empty();
}

}  // namespace

// Checks the row and makes impossible what its parameters forbid.
std::optional<Sampler::Possible> Sampler::prepare(std::span<const float> logits,
                                                  const SamplingRow& row) {
  CHECK(row.params != nullptr && !logits.empty());
  CHECK(row.prompt_count >= 0 && static_cast<std::size_t>(row.prompt_count) <= row.history.size());
  Possible possible;
  possible.limit = logits.size();
  if (vocabulary_limit_ > 0) {
    possible.limit = std::min(possible.limit, static_cast<std::size_t>(vocabulary_limit_));
  }
  starved_ = false;
  const Scan named = scan(logits.first(possible.limit));
  const Scan unnamed = scan(logits.subspan(possible.limit));
  if (named.corrupted || unnamed.corrupted || named.max == -kInfinity) return std::nullopt;

  possible.values = logits.first(possible.limit);
  possible.max = named.max;
  possible.max_of_all = std::max(named.max, unnamed.max);
  const SamplingParams& params = *row.params;
  const std::optional<Token> forced = forced_token(row);
  if (!params.logit_bias.empty() || has_penalties(params) || ends_forbidden(row) ||
      !row.mask.empty() || limits_tokens(params) || forced) {
    possible.values = adjust(possible.values, row);
    if (forced) force(*forced, logits);
    const Scan adjusted = scan(possible.values);
    starved_ = !adjusted.corrupted && adjusted.max == -kInfinity;
    if (adjusted.corrupted || starved_) return std::nullopt;
    possible.max = adjusted.max;
  }
  return possible;
}

std::optional<SampledToken> Sampler::sample(std::span<const float> logits, const SamplingRow& row) {
  const std::optional<Possible> possible = prepare(logits, row);
  if (!possible) return std::nullopt;
  const SamplingParams& params = *row.params;
  const std::span<const float> values = possible->values;
  SampledToken result;
  if (params.temperature >= kGreedyBelow) {
    result.token = draw(values, possible->max, row);
  } else {
    result.token = static_cast<Token>(std::ranges::find(values, possible->max) - values.begin());
  }
  if (params.logprob_count >= 0) {
    add_logprobs(logits, *possible, params.logprob_count, result);
  }
  return result;
}

std::optional<SampledToken> Sampler::candidates(std::span<const float> logits,
                                                const SamplingRow& row) {
  CHECK(row.candidate_count > 0);
  const std::optional<Possible> possible = prepare(logits, row);
  if (!possible) return std::nullopt;
  const std::span<const float> values = possible->values;
  const std::size_t count =
      std::min(static_cast<std::size_t>(row.candidate_count), possible->limit);
  std::vector<Token> ids = likeliest(values, count);
  std::erase_if(ids, [&](Token id) { return values[static_cast<std::size_t>(id)] == -kInfinity; });
  const double log_sum = log_sum_of(logits, possible->max_of_all);
  SampledToken result;
  for (const Token id : ids) {
    const double logit{logits[static_cast<std::size_t>(id)]};
    const auto logprob = static_cast<float>(logit - double{possible->max_of_all} - log_sum);
    result.top.push_back({id, logprob});
  }
  result.token = ids.front();
  result.logprob = result.top.front().logprob;
  return result;
}

// Leaves this one token, which must be a row that names one; else changes nothing.
void Sampler::force(Token token, std::span<const float> logits) {
  const auto id = static_cast<std::size_t>(token);  // negative ids become huge
  if (id >= adjusted_.size()) return;
  std::ranges::fill(adjusted_, -kInfinity);
  adjusted_[id] = std::isfinite(logits[id]) ? logits[id] : 0.0F;
}

std::span<const float> Sampler::adjust(std::span<const float> logits, const SamplingRow& row) {
  const SamplingParams& params = *row.params;
  adjusted_.assign(logits.begin(), logits.end());
  const auto names_row = [&](Token token) {
    return token >= 0 && static_cast<std::size_t>(token) < adjusted_.size();
  };
  for (const auto& [token, bias] : params.logit_bias) {
    if (names_row(token)) adjusted_[static_cast<std::size_t>(token)] += bias;
  }
  if (ends_forbidden(row)) {
    for (const Token token : params.end_tokens) {
      if (names_row(token)) adjusted_[static_cast<std::size_t>(token)] = -kInfinity;
    }
  }
  if (has_penalties(params)) penalize(row);
  if (!row.mask.empty()) mask(row.mask);
  if (limits_tokens(params)) apply_token_limits(adjusted_, row);
  return adjusted_;
}

void Sampler::mask(std::span<const std::uint32_t> bits) {
  CHECK(bits.size() * 32 >= adjusted_.size());
  float* const values = adjusted_.data();
  std::size_t i = 0;
  for (std::size_t word = 0; i < adjusted_.size(); ++word) {
    const std::size_t end = std::min(i + 32, adjusted_.size());
    // Most words are all of one kind.
    if (bits[word] == 0) {
      std::fill(values + i, values + end, -kInfinity);
    } else if (bits[word] != ~std::uint32_t{0}) {
      for (std::size_t j = i; j < end; ++j) {
        if (((bits[word] >> (j - i)) & 1U) == 0) values[j] = -kInfinity;
      }
    }
    i = end;
  }
}

void Sampler::penalize(const SamplingRow& row) {
  counts_.resize(std::max(counts_.size(), adjusted_.size()), 0);
  const auto prompt_count = static_cast<std::size_t>(row.prompt_count);
  for (std::size_t i = 0; i < row.history.size(); ++i) {
    const auto token = static_cast<std::size_t>(row.history[i]);  // negative ids become huge
    if (token >= adjusted_.size()) continue;
    if (counts_[token] == 0) {
      counts_[token] = 1;
      seen_.push_back(row.history[i]);
    }
    if (i >= prompt_count) ++counts_[token];
  }
  const SamplingParams& params = *row.params;
  for (const Token id : seen_) {
    const auto token = static_cast<std::size_t>(id);
    float& logit = adjusted_[token];
    const float r = params.repetition_penalty;
    if (r != 1.0F) logit = logit > 0.0F ? logit / r : logit * r;
    const std::int32_t output_count = counts_[token] - 1;
    if (output_count > 0) {
      logit -= params.frequency_penalty * static_cast<float>(output_count);
      logit -= params.presence_penalty;
    }
    counts_[token] = 0;
  }
  seen_.clear();
}

// Each filter keeps the first tokens in the order of LikelierFirst, so all filters together are one
// cutoff; the draw then runs over the kept weights in the order of ids. A filter that drops nothing
// therefore changes nothing.
Token Sampler::draw(std::span<const float> logits, float max, const SamplingRow& row) {
  const SamplingParams& params = *row.params;
  compute_weights(logits, max, 1.0F / params.temperature);
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < logits.size()) {
    const Token last = likeliest(logits, static_cast<std::size_t>(params.top_k)).back();
    keep(logits, {logits[static_cast<std::size_t>(last)], last});
  }
  if (params.top_p < 1.0F) {
    const double mass_kept = double{params.top_p} * sum_weights();
    keep(logits, nucleus(logits, mass_kept));
  }
  if (params.min_p > 0.0F) {
    // The largest weight is 1, so weights are probabilities over the largest probability.
    const float weight_min = std::min(params.min_p, 1.0F);
    for (float& weight : weights_) weight = weight >= weight_min ? weight : 0.0F;
  }

  const double point = uniform(params.seed, row.choice, row.history.size()) * sum_weights();
  double passed = 0.0;
  std::size_t last_possible = 0;
  for (std::size_t block = 0; block < block_sums_.size(); ++block) {
    if (block_sums_[block] <= 0.0) continue;
    const std::size_t begin = block * kSumBlock;
    const std::size_t end = std::min(begin + kSumBlock, weights_.size());
    // The last block that has weight takes what rounding left over.
    const bool inside = passed + block_sums_[block] > point;
    double sum = passed;
    for (std::size_t i = begin; i < end; ++i) {
      if (weights_[i] <= 0.0F) continue;
      last_possible = i;
      if (!inside) continue;
      sum += double{weights_[i]};
      if (sum > point) return static_cast<Token>(i);
    }
    passed += block_sums_[block];
  }
  return static_cast<Token>(last_possible);
}

void Sampler::compute_weights(std::span<const float> logits, float max, float inverse_temperature) {
  weights_.resize(logits.size());
  const float* in = logits.data();
  float* out = weights_.data();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    out[i] = softmax_exp((in[i] - max) * inverse_temperature);
  }
}

// Fills block_sums_ too.
double Sampler::sum_weights() {
  block_sums_.clear();
  double total = 0.0;
  for (std::size_t begin = 0; begin < weights_.size(); begin += kSumBlock) {
    const std::size_t end = std::min(begin + kSumBlock, weights_.size());
    double lanes[4] = {};
    std::size_t i = begin;
    for (; i + 4 <= end; i += 4) {
      for (std::size_t lane = 0; lane < 4; ++lane) lanes[lane] += double{weights_[i + lane]};
    }
    for (; i < end; ++i) lanes[0] += double{weights_[i]};
    block_sums_.push_back((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
    total += block_sums_.back();
  }
  return total;
}

void Sampler::keep(std::span<const float> logits, Cutoff cutoff) {
  const std::size_t ties_end = static_cast<std::size_t>(cutoff.id) + 1;
  for (std::size_t i = 0; i < ties_end; ++i) {
    weights_[i] = logits[i] >= cutoff.value ? weights_[i] : 0.0F;
  }
  for (std::size_t i = ties_end; i < weights_.size(); ++i) {
    weights_[i] = logits[i] > cutoff.value ? weights_[i] : 0.0F;
  }
}

// The last token of the smallest set of likeliest tokens that holds `mass_kept`; never empty.
Sampler::Cutoff Sampler::nucleus(std::span<const float> logits, double mass_kept) {
  // Buckets by the leading bits of the weights, 8 to an octave, tell where the mass is reached, so
  // that only the tokens of one bucket need an order.
  constexpr int kShift = 20;
  constexpr std::size_t kBucketCount = (std::bit_cast<std::uint32_t>(1.0F) >> kShift) + 2;
  const auto bucket_of = [](float weight) {
    return std::size_t{std::bit_cast<std::uint32_t>(weight) >> kShift};
  };
  std::array<double, kBucketCount> masses{};
  for (const float weight : weights_) masses[bucket_of(weight)] += double{weight};
  double passed = 0.0;
  std::size_t bucket = 0;
  for (std::size_t b = kBucketCount; b-- > 0;) {
    if (masses[b] <= 0.0) continue;
    if (bucket != 0) passed += masses[bucket];
    bucket = b;
    if (passed + masses[b] >= mass_kept) break;
  }
  ids_.clear();
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (bucket_of(weights_[i]) == bucket) ids_.push_back(static_cast<Token>(i));
  }
  // Bisects: partition around the middle, then go on in the half where the mass is reached.
  const LikelierFirst order{logits};
  auto begin = ids_.begin();
  auto end = ids_.end();
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, order);
    double mass = passed;
    for (auto it = begin; it != middle; ++it) {
      mass += double{weights_[static_cast<std::size_t>(*it)]};
    }
    if (mass >= mass_kept) {
      end = middle;
    } else {
      passed = mass;
      begin = middle;
    }
  }
  return {logits[static_cast<std::size_t>(*begin)], *begin};
}

// The `count` likeliest tokens in order. Requires: 0 < count <= logits.size().
const std::vector<Token>& Sampler::likeliest(std::span<const float> logits, std::size_t count) {
  const LikelierFirst order{logits};
  ids_.clear();
  if (count > kHeapMax) {
    for (std::size_t i = 0; i < logits.size(); ++i) ids_.push_back(static_cast<Token>(i));
    const auto end = ids_.begin() + static_cast<std::ptrdiff_t>(count);
    if (end != ids_.end()) std::nth_element(ids_.begin(), end - 1, ids_.end(), order);
    ids_.erase(end, ids_.end());
    std::sort(ids_.begin(), ids_.end(), order);
    return ids_;
  }
  // A heap with the least likely of the best on top: most tokens fail one comparison with it.
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (ids_.size() == count) {
      // Later ids lose ties, so only a larger logit enters.
      if (!(logits[i] > logits[static_cast<std::size_t>(ids_.front())])) continue;
      std::pop_heap(ids_.begin(), ids_.end(), order);
      ids_.pop_back();
    }
    ids_.push_back(static_cast<Token>(i));
    std::push_heap(ids_.begin(), ids_.end(), order);
  }
  std::sort_heap(ids_.begin(), ids_.end(), order);
  return ids_;
}

double Sampler::log_sum_of(std::span<const float> logits, float max) {
  compute_weights(logits, max, 1.0F);
  return std::log(sum_weights());
}

// log softmax over all rows of the head, as the model defines it; the entries name tokens only.
void Sampler::add_logprobs(std::span<const float> logits, const Possible& possible, int count,
                           SampledToken& token) {
  const double log_sum = log_sum_of(logits, possible.max_of_all);
  const auto logprob = [&](Token id) {
    const double logit{logits[static_cast<std::size_t>(id)]};
    return static_cast<float>(logit - double{possible.max_of_all} - log_sum);
  };
  token.logprob = logprob(token.token);
  const std::size_t top_count = std::min(static_cast<std::size_t>(count), possible.limit);
  if (top_count == 0) return;
  token.top.reserve(top_count);
  for (const Token id : likeliest(logits.first(possible.limit), top_count)) {
    token.top.push_back({id, logprob(id)});
  }
}

}  // namespace kun
