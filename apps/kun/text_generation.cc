#include "text_generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "stream_reader.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace kun {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

SamplingParams sampling_params(const GenerationArguments& arguments,
                               const GenerationDefaults& defaults) {
  SamplingParams params;
  params.temperature = defaults.temperature.value_or(params.temperature);
  if (defaults.do_sample == false) params.temperature = 0.0F;
  params.top_p = defaults.top_p.value_or(params.top_p);
  params.top_k = std::max(defaults.top_k.value_or(0), 0);
  params.min_p = defaults.min_p.value_or(params.min_p);
  params.repetition_penalty = defaults.repetition_penalty.value_or(params.repetition_penalty);
  if (arguments.temperature >= 0.0) params.temperature = static_cast<float>(arguments.temperature);
  if (arguments.top_p >= 0.0) params.top_p = static_cast<float>(arguments.top_p);
  if (arguments.top_k >= 0) params.top_k = arguments.top_k;
  params.seed = arguments.seed;
  return params;
}

// Tokens to text up to a stop string, handed on as it gets certain.
class TextSink {
 public:
  TextSink(const Tokenizer& tokenizer, const StopStrings& stop,
           const std::function<void(std::string_view)>& on_text)
      : detokenizer_(tokenizer), matcher_(stop), on_text_(on_text) {}

  // True when a stop string was met.
  bool push(Token token) {
    std::string piece;
    detokenizer_.push(token, piece);
    return feed(piece);
  }

  void finish() {
    std::string rest;
    detokenizer_.finish(rest);
    if (!feed(rest)) emit(matcher_.finish());
  }

  std::string take_text() { return std::move(text_); }

 private:
  bool feed(std::string_view piece) {
    const StopMatcher::Fed fed = matcher_.feed(piece);
    emit(fed.emit);
    return fed.matched;
  }

  void emit(const std::string& piece) {
    if (piece.empty()) return;
    text_ += piece;
    if (on_text_) on_text_(piece);
  }

  Detokenizer detokenizer_;
  StopMatcher matcher_;
  const std::function<void(std::string_view)>& on_text_;
  std::string text_;
};

}  // namespace

void add_generation_arguments(CLI::App& command, GenerationArguments& arguments) {
  command.add_option("--max-tokens", arguments.tokens_max, "output tokens at most")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  command
      .add_option("--temperature", arguments.temperature,
                  "0: greedy (default: what the model's makers recommend)")
      ->check(CLI::Range(0.0, 100.0));
  command.add_option("--top-p", arguments.top_p, "nucleus sampling")->check(CLI::Range(0.0, 1.0));
  command.add_option("--top-k", arguments.top_k, "0: all")->check(CLI::Range(0, 1 << 30));
  command.add_option("--seed", arguments.seed, "same seed, same text")->capture_default_str();
  command.add_option("--stop", arguments.stop, "text that ends the output");
  command.add_option("--speculative-config", arguments.speculative_config,
                     "JSON as of kun serve: faster where texts repeat, the same text");
}

Result<TextGenerator> TextGenerator::open(const ModelArguments& model,
                                          const std::string& speculative_config) {
  TextGenerator generator;
  ASSIGN_OR_RETURN(generator.open_, open_model(model, needs_next_token_module(speculative_config)));
  if (generator.open_.bundle->tokenizer == nullptr) {
    return invalid_argument(fmt::format("{} comes without a tokenizer", model.model));
  }
  EngineSettings settings;
  settings.sequences_running_max = 1;
  ASSIGN_OR_RETURN(settings.speculator, load_speculator(speculative_config, *generator.open_.bundle,
                                                        *generator.open_.device));
  ASSIGN_OR_RETURN(generator.setup_,
                   make_engine(*generator.open_.bundle, generator.open_.device->ops(), settings));
  return generator;
}

Result<GeneratedText> TextGenerator::generate(
    std::vector<Token> prompt, const GenerationArguments& arguments,
    const std::function<void(std::string_view)>& on_text) const {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.output_count_max = arguments.tokens_max;
  request.sampling = sampling_params(arguments, bundle().generation);
  request.end_tokens = bundle().end_tokens;

  const StopStrings stop(arguments.stop);
  TextSink sink(*bundle().tokenizer, stop, on_text);
  GeneratedText result;
  StreamWaiter waiter;
  const Clock::time_point start = Clock::now();
  const auto stream = setup_.engine->generate(std::move(request));
  waiter.watch(*stream);
  bool stopped = false;
  int output_count = 0;
  while (true) {
    const auto event = stream->poll();
    if (!event) {
      waiter.wait();
      continue;
    }
    if (!event->status.ok()) return event->status;
    if (output_count == 0 && !event->tokens.empty()) {
      result.first_token_seconds = seconds_since(start);
    }
    for (const SampledToken& token : event->tokens) {
      if (stopped) break;
      ++output_count;
      const bool is_end = event->end_token && &token == &event->tokens.back();
      if (is_end) continue;
      stopped = sink.push(token.token);
      if (stopped && !event->finish) stream->finish(0, output_count);
    }
    if (!event->finish) continue;
    if (!stopped) sink.finish();
    result.text = sink.take_text();
    result.finish_reason = stopped || *event->finish == FinishReason::kStop ? "stop" : "length";
    result.usage = event->usage;
    result.total_seconds = seconds_since(start);
    return result;
  }
}

}  // namespace kun
