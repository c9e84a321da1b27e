// How a token is chosen from logits. Field names and meanings are vLLM's.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/token.h"

namespace kun {

// How long a model may think; then its thought is closed for it.
struct ThinkingLimit {
  int token_count_max = -1;  // -1: as long as it likes
  bool open = false;         // the prompt, or the model's habit, has opened the thought
  std::vector<Token> begin;  // what opens it where it is not open: at the beginning of the output
  std::vector<Token> close;  // what ends it
};

struct SamplingParams {
  float temperature = 1.0F;  // 0: greedy
  int top_k = 0;             // 0: all
  float top_p = 1.0F;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;  // over prompt and output
  float frequency_penalty = 0.0F;   // over output
  float presence_penalty = 0.0F;    // over output
  std::uint64_t seed = 0;           // always set: whoever fills the request draws one if need be
  int logprob_count = -1;           // -1: none; 0: the chosen token; k: the k likeliest too
  std::vector<std::pair<Token, float>> logit_bias;
  std::vector<Token> allowed_tokens;          // sorted; empty: all
  std::vector<std::vector<Token>> bad_words;  // whose last token is impossible after the others
  int output_count_min = 0;                   // end tokens are impossible before this many outputs
  std::vector<Token> end_tokens;              // forbidden while below output_count_min
  ThinkingLimit thinking;                     // what it forces comes before everything else here
};

}  // namespace kun
