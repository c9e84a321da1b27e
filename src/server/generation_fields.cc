#include "server/generation_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <random>

#include "server/beam_fields.h"
#include "server/request_deadlines.h"
#include "server/structured_output.h"

namespace kun {
namespace {

using Kind = JsonView::Kind;

constexpr std::size_t kNameBytesMax = 1024;

void read_sampling(FieldReader& reader, const ServedModel& model, SamplingParams& sampling) {
  const auto real = [](std::optional<double> given, float otherwise) {
    return given ? static_cast<float>(*given) : otherwise;
  };
  const SamplingDefaults& defaults = model.defaults;
  sampling.temperature = real(reader.number("temperature", 0.0, 2.0), defaults.temperature);
  sampling.top_p = real(reader.number_above("top_p", 0.0, 1.0), defaults.top_p);
  sampling.min_p = real(reader.number("min_p", 0.0, 1.0), defaults.min_p);
  sampling.repetition_penalty =
      real(reader.number_above("repetition_penalty", 0.0, 100.0), defaults.repetition_penalty);
  sampling.frequency_penalty = real(reader.number("frequency_penalty", -2.0, 2.0), 0.0F);
  sampling.presence_penalty = real(reader.number("presence_penalty", -2.0, 2.0), 0.0F);
  const auto top_k = reader.integer("top_k", -1, std::numeric_limits<int>::max());
  // vLLM writes -1 where others write 0.
  sampling.top_k = top_k ? std::max(0, static_cast<int>(*top_k)) : defaults.top_k;
  const auto seed = reader.integer("seed", std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max());
  if (seed) {
    sampling.seed = static_cast<std::uint64_t>(*seed);
  } else {
    thread_local std::mt19937_64 random{std::random_device{}()};
    sampling.seed = random();
  }
}

void read_logit_bias(FieldReader& reader, const ServedModel& model, const ServerLimits& limits,
                     SamplingParams& sampling) {
  const auto bias = reader.object("logit_bias");
  if (!bias) return;
  if (bias->size() > static_cast<std::size_t>(limits.logit_bias_max)) {
    return reader.fail("logit_bias",
                       fmt::format("logit_bias has {} entries, at most {} are accepted",
                                   bias->size(), limits.logit_bias_max));
  }
  const int vocabulary_size = model.tokenizer->vocabulary_size();
  for (std::size_t i = 0; i < bias->size(); ++i) {
    const std::string_view key = bias->key(i);
    int token = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || token < 0 ||
        token >= vocabulary_size) {
      return reader.fail("logit_bias",
                         fmt::format("logit_bias key {:?} is no token id between 0 and {}",
                                     std::string(key.substr(0, 32)), vocabulary_size - 1));
    }
    const JsonView value = bias->at(i);
    const bool numeric = value.is(Kind::kInteger) || value.is(Kind::kNumber);
    if (!numeric || value.number() < -100.0 || value.number() > 100.0) {
      return reader.fail("logit_bias", fmt::format("logit_bias of token {} must be a number "
                                                   "between -100 and 100",
                                                   token));
    }
    sampling.logit_bias.emplace_back(token, static_cast<float>(value.number()));
  }
}

void read_stop(FieldReader& reader, const ServerLimits& limits, GenerationFields& fields) {
  const auto stop = reader.any("stop");
  if (!stop) return;
  const auto add = [&](JsonView value) {
    if (!value.is(Kind::kString) || value.string().empty()) {
      reader.fail("stop", "stop must be a string that is not empty, or an array of such");
    } else if (value.string().size() > static_cast<std::size_t>(limits.stop_string_bytes_max)) {
      reader.fail("stop", fmt::format("a stop string is longer than {} bytes",
                                      limits.stop_string_bytes_max));
    } else {
      fields.stop.emplace_back(value.string());
    }
  };
  if (!stop->is(Kind::kArray)) return add(*stop);
  if (stop->size() > static_cast<std::size_t>(limits.stop_strings_max)) {
    return reader.fail("stop", fmt::format("stop has {} strings, at most {} are accepted",
                                           stop->size(), limits.stop_strings_max));
  }
  for (std::size_t i = 0; i < stop->size(); ++i) add(stop->at(i));
}

void read_stream_options(FieldReader& reader, GenerationFields& fields) {
  const auto options = reader.object("stream_options");
  if (!options) return;
  if (!fields.stream) {
    return reader.fail("stream_options", "stream_options needs stream to be true");
  }
  FieldReader inner(*options, "stream_options.");
  fields.include_usage = inner.boolean("include_usage").value_or(false);
  fields.continuous_usage_stats = inner.boolean("continuous_usage_stats").value_or(false);
  inner.ignore({"include_obfuscation"});
  if (inner.error()) reader.fail("stream_options", inner.error()->message);
}

void read_token_limits(FieldReader& reader, const ServedModel& model, SamplingParams& sampling) {
  constexpr std::size_t kWordsMax = 256;
  const Tokenizer& tokenizer = *model.tokenizer;
  const auto size = static_cast<std::size_t>(tokenizer.vocabulary_size());
  sampling.allowed_tokens = reader.tokens("allowed_token_ids", size, tokenizer.vocabulary_size());
  if (const auto given = reader.array("allowed_token_ids", size); given && given->size() == 0) {
    reader.fail("allowed_token_ids", "allowed_token_ids must not be empty");
  }
  std::ranges::sort(sampling.allowed_tokens);
  const auto words = reader.array("bad_words", kWordsMax);
  for (std::size_t i = 0; words && i < words->size(); ++i) {
    const JsonView word = words->at(i);
    if (!word.is(Kind::kString) || word.string().empty() || word.string().size() > kNameBytesMax) {
      return reader.fail("bad_words", fmt::format("bad_words[{}] must be a word", i));
    }
    // Inside of a text and at its beginning words have other tokens.
    const std::string text(word.string());
    for (const std::string& form : {text, " " + text}) {
      std::vector<Token> tokens = tokenizer.encode(form, false);
      if (!tokens.empty()) sampling.bad_words.push_back(std::move(tokens));
    }
  }
}

void read_repetition(FieldReader& reader, GenerationFields& fields) {
  constexpr int kPatternMax = 256;
  const auto given = reader.object("repetition_detection");
  if (!given) return;
  FieldReader inner(*given, "repetition_detection.");
  RepetitionLimits limits;
  limits.pattern_size_max =
      static_cast<int>(inner.integer("max_pattern_size", 0, kPatternMax).value_or(0));
  limits.pattern_size_min =
      static_cast<int>(inner.integer("min_pattern_size", 0, kPatternMax).value_or(1));
  limits.count_min = static_cast<int>(inner.integer("min_count", 2, 1 << 20).value_or(2));
  if (inner.error()) return reader.fail("repetition_detection", inner.error()->message);
  limits.pattern_size_min = std::max(1, limits.pattern_size_min);
  if (limits.pattern_size_max == 0) return;
  if (limits.pattern_size_min > limits.pattern_size_max) {
    return reader.fail("repetition_detection",
                       "repetition_detection.min_pattern_size is above max_pattern_size");
  }
  fields.repetition = limits;
}

// Of `count` samples the best `n` are shown. Their probabilities decide, so they must be known.
void read_best_of(FieldReader& reader, const ServerLimits& limits, GenerationFields& fields) {
  const auto count = reader.integer("best_of", 1, limits.choices_max);
  if (!count) return;
  if (*count < fields.choice_count) {
    return reader.fail("best_of", "best_of must not be smaller than n");
  }
  if (*count > fields.choice_count && fields.stream) {
    return reader.fail("best_of", "best_of above n cannot be streamed: the best is known last");
  }
  fields.sample_count = static_cast<int>(*count);
  if (*count > fields.choice_count) {
    fields.sampling.logprob_count = std::max(fields.sampling.logprob_count, 0);
  }
}

// Known, and an error as long as they are not supported.
void refuse_unsupported(FieldReader& reader) {
  reader.refuse({"logits_processors", "stop_regex", "kv_transfer_params", "lora_path",
                 "return_prompt_text", "store", "media_io_kwargs", "mm_processor_kwargs",
                 "prompt_embeds", "return_hidden_states", "custom_logit_processor",
                 "logprob_token_ids", "vllm_xargs"});
  // Of SGLang, llama.cpp, xLLM and rtp-llm; whoever asks for these would get other texts.
  reader.refuse({"session_params", "mirostat", "dynatemp_range", "xtc_probability",
                 "dry_multiplier", "timings_per_token", "beam_width", "offline",
                 "no_repeat_ngram_size", "qos_priority"});
  if (reader.number("typical_p", 0.0, 1.0).value_or(1.0) != 1.0) {
    reader.fail("typical_p", "typical_p is not supported, but for 1, which changes nothing");
  }
  // Accepted without effect: hints, and names for what is the case anyway.
  reader.ignore({"user", "metadata", "prompt_cache_key", "prompt_cache_retention",
                 "prompt_cache_options", "safety_identifier", "user_id", "cache_prompt",
                 "id_slot"});
  if (!reader.boolean("detokenize").value_or(true)) {
    reader.fail("detokenize",
                "detokenize cannot be false here: return_token_ids shows the ids beside the text");
  }
  static_cast<void>(reader.word("service_tier", {"auto", "default"}));
}

}  // namespace

std::string read_model(FieldReader& reader, const ServedModel& model,
                       std::optional<ApiError>& not_found) {
  const auto name = reader.string("model", kNameBytesMax);
  if (!name) return model.names.front();
  if (!model.is_named(*name)) {
    not_found = ApiError{404, fmt::format("The model `{}` does not exist.", *name), "model"};
  }
  return std::string(*name);
}

std::optional<int> read_n_predict(FieldReader& reader) {
  const auto count = reader.integer("n_predict", 1, std::numeric_limits<int>::max());
  return count ? std::optional(static_cast<int>(*count)) : std::nullopt;
}

std::string read_request_id(FieldReader& reader) {
  std::string_view name = "request_id";
  auto id = reader.string(name, 128);
  if (const auto other = reader.string("rid", 128); !id) {  // SGLang's name
    name = "rid";
    id = other;
  }
  if (!id) return {};
  if (!std::ranges::all_of(*id, [](char c) { return c > 0x20 && c < 0x7f; })) {
    reader.fail(name, fmt::format("{} must be printable ASCII without spaces", name));
  }
  return std::string(*id);
}

GenerationFields read_generation_fields(FieldReader& reader, const ServedModel& model,
                                        const ServerLimits& limits) {
  GenerationFields fields;
  read_sampling(reader, model, fields.sampling);
  read_logit_bias(reader, model, limits, fields.sampling);
  read_token_limits(reader, model, fields.sampling);
  read_stop(reader, limits, fields);
  fields.choice_count = static_cast<int>(reader.integer("n", 1, limits.choices_max).value_or(1));
  fields.sample_count = fields.choice_count;
  fields.stop_token_ids =
      reader.tokens("stop_token_ids", static_cast<std::size_t>(limits.stop_tokens_max),
                    model.tokenizer->vocabulary_size());
  const bool no_stop_trim = reader.boolean("no_stop_trim").value_or(false);  // SGLang's name
  fields.include_stop_str_in_output =
      reader.boolean("include_stop_str_in_output").value_or(no_stop_trim);
  fields.ignore_eos = reader.boolean("ignore_eos").value_or(false);
  fields.skip_special_tokens = reader.boolean("skip_special_tokens").value_or(true);
  fields.spaces_between_special_tokens =
      reader.boolean("spaces_between_special_tokens").value_or(true);
  fields.return_token_ids = reader.boolean("return_token_ids").value_or(false);
  fields.sampling.output_count_min =
      static_cast<int>(reader.integer("min_tokens", 0, model.context_length).value_or(0));
  fields.stream = reader.boolean("stream").value_or(false);
  read_stream_options(reader, fields);
  read_best_of(reader, limits, fields);
  read_repetition(reader, fields);
  fields.tokens_as_ids = reader.boolean("return_tokens_as_token_ids").value_or(false);
  if (const auto count = reader.integer("prompt_logprobs", 0, limits.logprobs_max)) {
    fields.prompt_logprob_count = static_cast<int>(*count);
    if (fields.stream) {
      reader.fail("prompt_logprobs", "prompt_logprobs cannot be had in a stream");
    }
  }
  fields.priority = static_cast<int>(
      reader.integer("priority", std::numeric_limits<int>::min(), std::numeric_limits<int>::max())
          .value_or(0));
  fields.deadlines = read_deadlines(reader, limits);
  fields.cache_salt = reader.string("cache_salt", kNameBytesMax).value_or("");
  fields.request_id = read_request_id(reader);
  if (const auto keep = reader.integer("truncate_prompt_tokens", -1, model.context_length)) {
    if (*keep == 0) reader.fail("truncate_prompt_tokens", "truncate_prompt_tokens must not be 0");
    fields.truncate_prompt_tokens = static_cast<int>(*keep);
  }
  fields.truncate_right = reader.word("truncation_side", {"left", "right"}) == "right";
  StructuredOutput structured = read_structured_output(reader);
  fields.grammar = std::move(structured.grammar);
  fields.grammar_field = std::move(structured.field);
  if (const auto budget =
          reader.integer("thinking_token_budget", 0, std::numeric_limits<int>::max())) {
    fields.thinking_token_budget = static_cast<int>(*budget);
    if (model.syntax.reasoning == ReasoningSyntax::kNone) {
      reader.fail("thinking_token_budget",
                  "this model is not known to think; see --reasoning-parser");
    }
  }
  read_beam_search(reader, fields);
  refuse_unsupported(reader);
  return fields;
}

std::optional<ApiError> fit_context(const ServedModel& model, GenerationFields& fields,
                                    std::optional<int> default_max,
                                    std::string_view max_tokens_name, std::vector<Token>& prompt,
                                    int& output_count_max) {
  const int context = model.context_length;
  if (fields.truncate_prompt_tokens) {
    const int fitting = context - std::max(1, fields.max_tokens.value_or(default_max.value_or(1)));
    const int keep =
        *fields.truncate_prompt_tokens < 0 ? std::max(1, fitting) : *fields.truncate_prompt_tokens;
    if (prompt.size() > static_cast<std::size_t>(keep)) {
      if (fields.truncate_right) {
        prompt.resize(static_cast<std::size_t>(keep));
      } else {
        prompt.erase(prompt.begin(), prompt.end() - keep);
      }
    }
  }
  const auto prompt_count = static_cast<std::int64_t>(prompt.size());
  if (prompt_count >= context) {
    return ApiError{400,
                    fmt::format("This model's maximum context length is {} tokens. However, your "
                                "request has {} input tokens. Please reduce the length of the "
                                "input.",
                                context, prompt_count),
                    "prompt", true};
  }
  const int left = context - static_cast<int>(prompt_count);
  if (fields.max_tokens && *fields.max_tokens > left) {
    return ApiError{
        400,
        fmt::format("This model's maximum context length is {} tokens. However, you "
                    "requested {} tokens ({} in the input, {} in the completion). "
                    "Please reduce the length of the input or completion.",
                    context, prompt_count + *fields.max_tokens, prompt_count, *fields.max_tokens),
        std::string(max_tokens_name), true};
  }
  output_count_max = fields.max_tokens.value_or(std::min(left, default_max.value_or(left)));
  if (fields.sampling.output_count_min > output_count_max) {
    return bad_field("min_tokens", fmt::format("min_tokens is {}, more than the {} tokens that "
                                               "may be generated",
                                               fields.sampling.output_count_min, output_count_max));
  }
  return std::nullopt;
}

ThinkingLimit thinking_limit(const ServedModel& model, int budget, ReasoningStart start) {
  ThinkingLimit limit;
  if (model.syntax.reasoning == ReasoningSyntax::kNone || start == ReasoningStart::kClosed) {
    return limit;
  }
  limit.token_count_max = budget;
  limit.open = start == ReasoningStart::kOpen;
  limit.begin = model.tokenizer->encode("<think>", false);
  limit.close = model.tokenizer->encode("</think>", false);
  return limit;
}

GenerateRequest make_generate_request(const ServedModel& model, const GenerationFields& fields,
                                      std::vector<Token> prompt, int output_count_max) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.output_count_max = output_count_max;
  request.sampling = fields.sampling;
  request.end_tokens = fields.stop_token_ids;
  if (!fields.ignore_eos) {
    request.end_tokens.insert(request.end_tokens.end(), model.end_tokens.begin(),
                              model.end_tokens.end());
  }
  request.ignore_end_tokens = request.end_tokens.empty();
  request.sampling.end_tokens = request.end_tokens;
  request.choice_count = fields.sample_count;
  request.prompt_logprob_count = fields.prompt_logprob_count;
  request.beams = fields.beams;
  request.priority = fields.priority;
  request.cache_salt = fields.cache_salt;
  return request;
}

}  // namespace kun
