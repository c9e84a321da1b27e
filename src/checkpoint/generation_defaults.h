// How a model's makers want it to be sampled, and where its answers end: generation_config.json of
// a Hugging Face folder, or general.sampling.* of a GGUF file. Requests override all of it but
// `eos`.
#pragma once

#include <optional>
#include <vector>

#include "base/status.h"
#include "base/token.h"
#include "checkpoint/config.h"

namespace kun {

struct GenerationDefaults {
  std::optional<float> temperature;  // 0: greedy
  std::optional<float> top_p;
  std::optional<int> top_k;  // 0 or less: off
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<bool> do_sample;  // false: greedy, whatever the temperature
  std::optional<int> max_new_tokens;
  std::optional<int> max_length;  // prompt included
  std::vector<Token> eos;         // any of these ends an answer; sorted, may be empty
  std::optional<Token> bos;
  std::optional<Token> pad;
};

// The union of what both files say; where both speak, `generation` wins, except that the end tokens
// add up. `generation` may be nullptr when there is no such file.
Result<GenerationDefaults> read_generation_defaults(const Config& config, const Config* generation);

}  // namespace kun
