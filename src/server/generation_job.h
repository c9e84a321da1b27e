// One request from its tokens to its last byte: starts the generations, turns their events into
// text and its parts, and has an AnswerWriter make bytes of them. It runs in the text pool, one
// piece at a time, whenever a stream has events or the client has taken what there was; its
// exchange keeps it alive, and when the client goes away it lets go of the streams, which cancels
// the generations.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_ledger.h"
#include "server/answer_writer.h"
#include "server/choice_text.h"
#include "server/exchange.h"
#include "server/generation_fields.h"
#include "server/server_context.h"
#include "text/answer_parser.h"

namespace kun {

// One prompt of a request. Its choices follow those of the prompt before it.
struct JobPrompt {
  std::vector<Token> tokens;
  std::string echo;  // goes before the text of each choice
  int output_count_max = 16;
  ReasoningStart start = ReasoningStart::kUndecided;
};

class GenerationJob : public ExchangeListener, public std::enable_shared_from_this<GenerationJob> {
 public:
  struct Setup {
    std::shared_ptr<const ServedModel> model;
    GenerationFields fields;
    std::vector<JobPrompt> prompts;
    std::unique_ptr<AnswerWriter> writer;
    std::unique_ptr<const AnswerParserOptions> parser;  // null: the text is content as it is
  };

  // Starts the job; the exchange owns it from here on.
  static void start(ServerContext& context, const std::shared_ptr<Exchange>& exchange, Setup setup);

  // `memory`: what the request is expected to need.
  GenerationJob(ServerContext& context, const std::shared_ptr<Exchange>& exchange, Setup setup,
                MemoryHold memory);

  void on_closed() override;
  void on_drained() override;
  void on_idle() override;

 private:
  using Clock = std::chrono::steady_clock;

  struct Choice {
    explicit Choice(const ChoiceText::Options& options) : text(options) {}

    ChoiceText text;
    std::optional<AnswerParser> parser;
    std::optional<RepetitionWatch> repetition;
    bool repeats = false;
    AnswerPiece answer;                // not sent yet
    std::vector<SampledToken> tokens;  // not sent yet; only if somebody wants to see them
    std::size_t text_offset = 0;       // characters before `tokens`
    bool first = true;
    bool thinks = false;
    bool ended = false;
    FinishReason reason = FinishReason::kStop;
    std::optional<Token> stop_token;
    int output_count = 0;
    double queue_seconds = 0.0;
    int reasoning_count = 0;  // of output_count
    double logprob_sum = 0.0;
    Clock::time_point first_token;
    Clock::time_point last_token;
  };

  void add_choices(const JobPrompt& prompt);
  AnswerInfo answer_info(const Exchange& exchange) const;

  void run();
  void run_locked();
  void schedule();
  bool constraint_ready();
  void take_grammar(const Result<std::shared_ptr<const Grammar>>& grammar);
  void generate();
  void pump();
  void keep_alive(Exchange& exchange);
  bool take_event(std::size_t prompt, StreamEvent event);
  void take_tokens(Choice& choice, const StreamEvent& event);
  bool take_text(Choice& choice, Token token);
  bool scores_missing(std::size_t prompt) const;
  void end_choice(Choice& choice, std::size_t prompt, FinishReason reason);
  void observe_longest();
  bool silent() const;
  void fail(const Status& status, const Refusal& refusal = {});
  void send_error(Exchange& exchange, const ApiError& error);
  void let_go();

  void begin_stream();
  void send_piece(Choice& choice, std::size_t index);
  void finish_stream();
  void respond();
  std::vector<std::size_t> shown_choices() const;

  std::size_t prompt_of(std::size_t choice) const;
  ChoicePart part_of(const Choice& choice, std::size_t index) const;
  ChoiceFinish finish_of(const Choice& choice) const;
  CompletionUsage usage() const;

  ServerContext& context_;
  const std::weak_ptr<Exchange> exchange_;  // which owns this
  const Setup setup_;
  const Clock::time_point arrived_;
  MemoryHold memory_;
  const bool deepseek_;
  const bool keeps_tokens_;
  ChoiceText::Options text_options_;

  // What callbacks may touch from other threads. Whether run() waits in the pool's line: callbacks
  // of streams may outlive the job, so they share it.
  const std::shared_ptr<std::atomic<bool>> scheduled_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> idle_ = false;

  std::mutex mutex_;  // run() may be entered again before it has returned
  std::vector<std::shared_ptr<TokenStream>> streams_;  // [prompt]
  std::vector<Choice> choices_;                        // [prompt * n + choice]
  Clock::time_point submitted_;
  std::vector<int> cached_counts_;                        // [prompt]
  std::vector<std::vector<SampledToken>> prompt_scores_;  // [prompt][token], where asked for
  std::size_t ended_count_ = 0;
  std::shared_ptr<const Grammar> grammar_;  // counted in memory as long as its states live
  std::shared_ptr<const TokenConstraint> constraint_;  // of all choices; null: none, or not yet
  bool grammar_asked_ = false;
  bool started_ = false;       // generations
  bool stream_begun_ = false;  // head sent, events follow
  bool blanks_sent_ = false;   // head sent, one JSON object follows
  bool done_ = false;
};

}  // namespace kun
