// Any number of generations that one reader waits for together: what LLM.generate() does with a
// list of prompts, and AsyncLLM with all that its tasks have asked for. It turns tokens into text
// and looks for stop strings, so that what reaches Python is ready to be shown.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "local_llm.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace kun {

// How the tokens of a request become text.
struct OutputOptions {
  std::vector<std::string> stop;
  std::vector<Token> stop_token_ids;  // reported by name; the request's end tokens have them too
  bool include_stop = false;          // the stop string or token is part of the text
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;
  bool detokenize = true;      // false: no text, and no stop strings
  std::size_t dimensions = 0;  // of a pooled hidden state; 0: all
  bool normalize = true;       // a pooled hidden state is scaled to length 1
};

// What is new of one choice.
struct ChoiceUpdate {
  std::uint64_t request = 0;
  std::uint32_t choice = 0;
  std::string text;
  std::vector<SampledToken> tokens;
  std::vector<SampledToken> prompt_scores;  // of the next prompt tokens, from the second on
  std::vector<float> embedding;             // of a request that pools
  std::optional<FinishReason> finish;
  std::optional<Token> stop_token;         // of the request's own, if one ended it
  std::optional<std::string> stop_string;  // what ended it, if a string did
  StreamUsage usage;
  Status status;  // not ok: the request has failed, and nothing follows of any of its choices
};

// Thread-safe; made for one thread in wait().
class GenerationBatch {
 public:
  explicit GenerationBatch(std::shared_ptr<const LocalLlm> llm);
  ~GenerationBatch();

  // The number by which updates name the request. Refusals arrive as updates.
  Result<std::uint64_t> add(GenerateRequest request, OutputOptions options);

  // All that is new, at most one update for each choice; nothing when `timeout` has passed or
  // wake() was called.
  std::vector<ChoiceUpdate> wait(std::chrono::milliseconds timeout);
  void wake();

  // Nothing more is heard of a request that is cancelled. Unknown numbers are ignored.
  void cancel(std::uint64_t request);
  void cancel_all();

  std::size_t open_count() const;  // requests that have not ended

 private:
  struct Choice;
  struct Generation;
  struct Signal;

  void drain(std::uint64_t request, std::vector<ChoiceUpdate>& updates);
  static bool take(Generation& generation, StreamEvent event, ChoiceUpdate& update);

  const std::shared_ptr<const LocalLlm> llm_;
  const std::shared_ptr<Signal> signal_;  // outlives the streams' callbacks
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<Generation>> generations_;
  std::uint64_t next_request_ = 0;
};

}  // namespace kun
