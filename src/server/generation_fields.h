// The part of a request that chat and completions share: how to sample, when to stop, what to
// send. Names and ranges are OpenAI's and, for what they lack, vLLM's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/generator.h"
#include "plan/beam_params.h"
#include "plan/refusal.h"
#include "plan/sampling_params.h"
#include "server/repetition_watch.h"
#include "server/request_json.h"
#include "server/served_model.h"
#include "server/server_limits.h"
#include "text/grammar.h"

namespace kun {

struct GenerationFields {
  std::string model;  // as the client named it
  SamplingParams sampling;
  int choice_count = 1;  // of each prompt, in the answer
  int sample_count = 1;  // of each prompt, generated: the best of them are shown
  std::optional<int> max_tokens;
  bool drops_output = false;      // max_tokens is 0: a single token is generated and not shown
  bool wants_logprobs = false;    // in the answer
  int prompt_logprob_count = -1;  // >= 0: of the prompt, in the answer
  std::vector<std::string> stop;
  std::vector<Token> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // logprobs show "token_id:7" and not the token's text
  std::optional<RepetitionLimits> repetition;
  std::optional<int> thinking_token_budget;
  BeamParams beams;  // with a width: `sample_count` of the texts that it finds
  int priority = 0;
  std::string cache_salt;
  Deadlines deadlines;                   // from the arrival of the request
  std::optional<GrammarSource> grammar;  // of the answer
  std::string grammar_field;             // that demanded it
  bool grammar_lets_talk = false;        // it demands nothing before the first call of a tool
  bool thoughts_first = false;           // the grammar holds from behind the thoughts on
  std::string request_id;
  std::optional<int> truncate_prompt_tokens;  // -1: to what fits
  bool truncate_right = false;                // the end of the prompt goes, not its beginning
  bool include_reasoning = true;
  bool separate_reasoning = true;  // false: thoughts stay in the content, marks and all
};

// Reads everything but max_tokens, logprobs and what carries the prompt. Problems are left in
// `reader`. A model of another name is reported with status 404.
GenerationFields read_generation_fields(FieldReader& reader, const ServedModel& model,
                                        const ServerLimits& limits);

// The `model` field: absent, or one of the served names.
std::string read_model(FieldReader& reader, const ServedModel& model,
                       std::optional<ApiError>& not_found);

// llama.cpp's name of max_tokens.
std::optional<int> read_n_predict(FieldReader& reader);

// The `request_id` field, or nothing.
std::string read_request_id(FieldReader& reader);

// Shortens `prompt` as asked and checks that it and the output fit the context; fills in the
// output count that was left out (`default_max`, or what is left of the context).
std::optional<ApiError> fit_context(const ServedModel& model, GenerationFields& fields,
                                    std::optional<int> default_max,
                                    std::string_view max_tokens_name, std::vector<Token>& prompt,
                                    int& output_count_max);

// Closes a thought after `budget` tokens; nothing where the model is not known to think, or does
// not here.
ThinkingLimit thinking_limit(const ServedModel& model, int budget, ReasoningStart start);

GenerateRequest make_generate_request(const ServedModel& model, const GenerationFields& fields,
                                      std::vector<Token> prompt, int output_count_max);

}  // namespace kun
