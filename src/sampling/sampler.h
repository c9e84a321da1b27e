// From a row of logits to a token. Order and meaning of the steps are vLLM's: logit bias, minimum
// output, repetition, frequency and presence penalties, temperature, top-k, top-p, min-p, draw.
//
// The same parameters, history and logits give the same token whatever else is in the batch: the
// random number is a function of seed, choice and position, and every sum runs in a fixed order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/sampling_batch.h"
#include "plan/step_result.h"

namespace kun {

// Holds scratch memory only, so two samplers agree; one thread at a time uses it.
class Sampler {
 public:
  // Ids from `vocabulary_limit` on are rows of the head that name no token and are never chosen;
  // 0: every row names a token.
  explicit Sampler(int vocabulary_limit = 0) : vocabulary_limit_(vocabulary_limit) {}

  // nullopt when the row is corrupted (a NaN, +inf, or -inf everywhere) or when mask and parameters
  // leave no token possible. Ids in the parameters or the history that name no row are ignored.
  std::optional<SampledToken> sample(std::span<const float> logits, const SamplingRow& row);

  // The row.candidate_count likeliest of the tokens that are possible, or as many as there are, in
  // SampledToken::top; logprobs are the model's own. Ties: the lower id first. nullopt as above.
  std::optional<SampledToken> candidates(std::span<const float> logits, const SamplingRow& row);

  // Why the last call gave nothing: true when the logits themselves were fine.
  bool starved() const { return starved_; }

 private:
  // The tokens at or before `id` at `value` in the order "larger logit first, then lower id".
  struct Cutoff {
    float value;
    Token id;
  };

  // Of one row: what there is to choose from.
  struct Possible {
    std::span<const float> values;  // logits of what names a token; impossible ones are -inf
    std::size_t limit = 0;
    float max = 0.0F;         // of values
    float max_of_all = 0.0F;  // of the row's logits
  };

  std::optional<Possible> prepare(std::span<const float> logits, const SamplingRow& row);
  void force(Token token, std::span<const float> logits);
  double log_sum_of(std::span<const float> logits, float max);
  std::span<const float> adjust(std::span<const float> logits, const SamplingRow& row);
  void mask(std::span<const std::uint32_t> bits);
  void penalize(const SamplingRow& row);
  Token draw(std::span<const float> logits, float max, const SamplingRow& row);
  void compute_weights(std::span<const float> logits, float max, float inverse_temperature);
  double sum_weights();
  void keep(std::span<const float> logits, Cutoff cutoff);
  Cutoff nucleus(std::span<const float> logits, double mass_kept);
  const std::vector<Token>& likeliest(std::span<const float> logits, std::size_t count);
  void add_logprobs(std::span<const float> logits, const Possible& possible, int count,
                    SampledToken& token);

  int vocabulary_limit_;
  bool starved_ = false;
  std::vector<float> adjusted_;
  std::vector<float> weights_;        // exp((logit - max) / temperature)
  std::vector<double> block_sums_;    // of weights_
  std::vector<Token> ids_;            // of selections
  std::vector<std::int32_t> counts_;  // [token]: 0 unseen, else 1 + occurrences in the output
  std::vector<Token> seen_;           // where counts_ is not 0
};

}  // namespace kun
