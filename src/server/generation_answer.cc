// The part of a GenerationJob that tells a writer what there is: which choices are shown, how each
// ended, and what all of them cost.
#include <algorithm>
#include <numeric>
#include <utility>

#include "server/generation_job.h"

namespace kun {

// Of `sample_count` samples of each prompt the `choice_count` likeliest per token, likeliest first.
std::vector<std::size_t> GenerationJob::shown_choices() const {
  std::vector<std::size_t> all(choices_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const auto samples = static_cast<std::size_t>(setup_.fields.sample_count);
  const auto wanted = static_cast<std::size_t>(setup_.fields.choice_count);
  if (samples == wanted) return all;
  const auto score = [&](std::size_t i) {
    return choices_[i].logprob_sum / std::max(1, choices_[i].output_count);
  };
  std::vector<std::size_t> shown;
  for (std::size_t first = 0; first < all.size(); first += samples) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    std::stable_sort(begin, begin + static_cast<std::ptrdiff_t>(samples),
                     [&](std::size_t a, std::size_t b) { return score(a) > score(b); });
    shown.insert(shown.end(), begin, begin + static_cast<std::ptrdiff_t>(wanted));
  }
  return shown;
}

void GenerationJob::respond() {
  done_ = true;
  streams_.clear();
  const std::vector<std::size_t> shown = shown_choices();
  std::vector<ChoiceFinish> finishes;
  finishes.reserve(shown.size());
  std::vector<ChoicePart> parts;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const Choice& choice = choices_[shown[i]];
    finishes.push_back(finish_of(choice));
    ChoicePart part = part_of(choice, shown[i]);
    part.index = static_cast<int>(i);
    part.finish = &finishes.back();
    part.last = i + 1 == shown.size();
    parts.push_back(part);
  }
  std::string body = setup_.writer->whole(parts, usage());
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  if (blanks_sent_) {
    exchange->write(body);
    return exchange->end();
  }
  HttpResponse response;
  response.body = std::move(body);
  exchange->respond(std::move(response));
}

std::size_t GenerationJob::prompt_of(std::size_t choice) const {
  return choice / static_cast<std::size_t>(setup_.fields.sample_count);
}

ChoicePart GenerationJob::part_of(const Choice& choice, std::size_t index) const {
  ChoicePart part;
  part.index = static_cast<int>(index);
  part.first = choice.first;
  part.thinks = choice.thinks;
  part.text = &choice.answer;
  part.tokens = choice.tokens;
  part.text_offset = choice.text_offset;
  part.prompt = setup_.prompts[prompt_of(index)].tokens;
  part.prompt_scores = prompt_scores_[prompt_of(index)];
  return part;
}

ChoiceFinish GenerationJob::finish_of(const Choice& choice) const {
  ChoiceFinish finish;
  const bool calls = choice.parser && choice.parser->calls_tools();
  if (choice.reason == FinishReason::kLength || setup_.fields.drops_output) {
    finish.reason = "length";
  } else if (choice.repeats) {
    finish.reason = "repetition";
  } else if (choice.reason == FinishReason::kTimeout) {
    // DeepSeek's word, and vLLM's.
    finish.reason = deepseek_ ? "insufficient_system_resource" : "abort";
  } else {
    finish.reason = calls ? "tool_calls" : "stop";
  }
  finish.stop_string = choice.text.stop_string();
  finish.stop_token = choice.stop_token;
  return finish;
}

CompletionUsage GenerationJob::usage() const {
  CompletionUsage usage;
  for (const JobPrompt& prompt : setup_.prompts) {
    usage.prompt_count += static_cast<std::int64_t>(prompt.tokens.size());
  }
  for (const int count : cached_counts_) usage.cached_count += count;
  for (const Choice& choice : choices_) {
    usage.output_count += choice.output_count;
    usage.reasoning_count += choice.reasoning_count;
  }
  return usage;
}

}  // namespace kun
