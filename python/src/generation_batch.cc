#include "generation_batch.h"

#include <algorithm>
#include <utility>

#include "engine/embedding.h"

namespace kun {

struct GenerationBatch::Choice {
  Choice(const Tokenizer& tokenizer, const DetokenizerOptions& options, const StopStrings& stops,
         bool include_stop)
      : detokenizer(tokenizer, options), matcher(stops, include_stop) {}

  Detokenizer detokenizer;
  StopMatcher matcher;
  int output_count = 0;
  bool ended = false;
};

struct GenerationBatch::Generation {
  Generation(const Tokenizer& tokenizer, const GenerateRequest& request, OutputOptions given)
      : options(std::move(given)),
        stops(options.stop),
        output_count_min(request.sampling.output_count_min),
        open_count(request.choice_count) {
    DetokenizerOptions text;
    text.skip_special_tokens = options.skip_special_tokens;
    text.spaces_between_special_tokens = options.spaces_between_special_tokens;
    text.starts_text = false;  // it continues the prompt
    choices.reserve(static_cast<std::size_t>(request.choice_count));
    for (int i = 0; i < request.choice_count; ++i) {
      choices.emplace_back(tokenizer, text, stops, options.include_stop);
    }
  }

  const OutputOptions options;
  const StopStrings stops;
  const int output_count_min;
  std::vector<Choice> choices;
  int open_count;
  std::shared_ptr<TokenStream> stream;
};

// Which streams have something to read; written by the engine's thread.
struct GenerationBatch::Signal {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::uint64_t> ready;  // at most one entry for each open request
  bool woken = false;
};

GenerationBatch::GenerationBatch(std::shared_ptr<const LocalLlm> llm)
    : llm_(std::move(llm)), signal_(std::make_shared<Signal>()) {}

GenerationBatch::~GenerationBatch() = default;

Result<std::uint64_t> GenerationBatch::add(GenerateRequest request, OutputOptions options) {
  // The engine bounds what a request may ask for; here it only must not cost memory before that.
  constexpr int kChoicesMax = 65536;
  if (request.choice_count < 1 || request.choice_count > kChoicesMax) {
    return invalid_argument("n must be between 1 and 65536");
  }
  auto generation = std::make_unique<Generation>(llm_->tokenizer(), request, std::move(options));
  ASSIGN_OR_RETURN(generation->stream, llm_->generate(std::move(request)));
  const std::shared_ptr<TokenStream> stream = generation->stream;
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = next_request_++;
    generations_.emplace(number, std::move(generation));
  }
  stream->set_ready_callback([signal = signal_, number] {
    const std::lock_guard lock(signal->mutex);
    signal->ready.push_back(number);
    signal->changed.notify_one();
  });
  return number;
}

std::vector<ChoiceUpdate> GenerationBatch::wait(std::chrono::milliseconds timeout) {
  std::vector<std::uint64_t> ready;
  {
    std::unique_lock lock(signal_->mutex);
    signal_->changed.wait_for(lock, timeout,
                              [this] { return signal_->woken || !signal_->ready.empty(); });
    signal_->woken = false;
    ready.swap(signal_->ready);
  }
  std::vector<ChoiceUpdate> updates;
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t request : ready) drain(request, updates);
  return updates;
}

void GenerationBatch::wake() {
  const std::lock_guard lock(signal_->mutex);
  signal_->woken = true;
  signal_->changed.notify_one();
}

void GenerationBatch::cancel(std::uint64_t request) {
  const std::lock_guard lock(mutex_);
  generations_.erase(request);
}

void GenerationBatch::cancel_all() {
  const std::lock_guard lock(mutex_);
  generations_.clear();
}

std::size_t GenerationBatch::open_count() const {
  const std::lock_guard lock(mutex_);
  return generations_.size();
}

void GenerationBatch::drain(std::uint64_t request, std::vector<ChoiceUpdate>& updates) {
  const auto entry = generations_.find(request);
  if (entry == generations_.end()) return;  // cancelled meanwhile
  Generation& generation = *entry->second;
  while (auto event = generation.stream->poll()) {
    ChoiceUpdate update;
    update.request = request;
    const bool over = take(generation, *std::move(event), update);
    updates.push_back(std::move(update));
    if (over) {
      generations_.erase(entry);
      return;
    }
  }
}

// Fills `update`; true when the request is over.
bool GenerationBatch::take(Generation& generation, StreamEvent event, ChoiceUpdate& update) {
  update.choice = event.choice;
  update.usage = event.usage;
  if (!event.status.ok() || event.finish == FinishReason::kError) {
    update.finish = FinishReason::kError;
    update.status =
        event.status.ok() ? internal_error("the generation failed") : std::move(event.status);
    return true;
  }
  if (event.finish == FinishReason::kAbort) {
    update.finish = FinishReason::kAbort;
    update.status = cancelled("the generation was cancelled because its LLM was closed");
    return true;
  }
  update.prompt_scores = std::move(event.prompt_scores);
  if (!event.pooled.empty()) {
    update.embedding = make_embedding(std::move(event.pooled), generation.options.dimensions,
                                      generation.options.normalize);
  }
  Choice& choice = generation.choices[event.choice];
  if (choice.ended) return false;
  const OutputOptions& options = generation.options;
  const auto emit = [&](const std::string& text, bool check) {
    if (check) return choice.matcher.feed(text);
    return StopMatcher::Fed{text, false};
  };
  for (std::size_t i = 0; i < event.tokens.size() && !choice.matcher.match(); ++i) {
    const Token token = event.tokens[i].token;
    update.tokens.push_back(std::move(event.tokens[i]));
    ++choice.output_count;
    const bool is_end = event.end_token && i + 1 == event.tokens.size();
    if (is_end && std::ranges::count(options.stop_token_ids, token) > 0) update.stop_token = token;
    if (!options.detokenize || (is_end && !options.include_stop)) continue;
    std::string text;
    choice.detokenizer.push(token, text);
    update.text += emit(text, choice.output_count > generation.output_count_min).emit;
  }
  if (choice.matcher.match()) {
    update.stop_string = generation.stops.at(choice.matcher.match()->index);
    if (!event.finish) generation.stream->finish(event.choice, choice.output_count);
    event.finish = FinishReason::kStop;
    update.stop_token.reset();
  } else if (event.finish && options.detokenize) {
    std::string text;
    choice.detokenizer.finish(text);
    update.text += choice.matcher.feed(text).emit;
    update.text += choice.matcher.finish();
  }
  update.usage.output_count = choice.output_count;
  if (!event.finish) return false;
  update.finish = event.finish;
  choice.ended = true;
  return --generation.open_count == 0;
}

}  // namespace kun
