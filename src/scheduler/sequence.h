// One generation in progress, and the request it belongs to. There is no prefill state and no
// decode state: a sequence has tokens, of those some are computed, and each step lets
// computed_count catch up. Prompt chunks, decoding and resuming after preemption are one motion.
#pragma once

#include <algorithm>
#include <compare>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kv/prefix_cache.h"
#include "plan/batch_plan.h"
#include "plan/pooling.h"
#include "plan/sampling_params.h"
#include "plan/token_constraint.h"
#include "scheduler/beam_search.h"
#include "scheduler/scheduler.h"
#include "scheduler/speculation.h"

namespace kun {

struct BeamRound;
struct Tenant;

// What the sequences of one request share. Owned by the scheduler until its last sequence ends.
struct Request {
  SequenceId id = 0;
  Tenant* tenant = nullptr;
  int priority = 0;
  std::uint64_t arrival = 0;  // numbers requests in the order of add()
  Microseconds added_at = 0;
  Microseconds queue_time = 0;  // until first admission
  int prompt_count = 0;
  int token_count_max = 0;  // prompt and output
  SamplingParams sampling;
  int prompt_logprob_count = -1;  // >= 0: how likely its tokens are is wanted, and so many others
  int scored_count = 1;           // prompt tokens of which that has been told; of the first never
  Pooling pooling = Pooling::kNone;
  int pooled_count = 0;              // prompt tokens whose hidden states kMean has told
  std::shared_ptr<BeamRound> beams;  // null: no beam search
  std::vector<Token> end_tokens;     // none when they are to be ignored
  std::string cache_salt;
  int cached_count = -1;            // prompt tokens found at first admission; -1: not yet admitted
  int charged_count = 0;            // prompt tokens that the tenant was charged for
  Microseconds first_token_by = 0;  // deadlines; 0: none
  Microseconds end_by = 0;
  Microseconds per_token_max = 0;
  int cached_hint = 0;  // prompt tokens that were in the cache when it came; with deadlines only
  int sequence_count = 0;
};

// The order in which sequences are served. It is total, so no two plans can disagree on it.
struct SequenceKey {
  int priority = 0;
  std::uint64_t arrival = 0;
  std::uint32_t choice = 0;

  auto operator<=>(const SequenceKey&) const = default;
};

struct SequenceChoice {
  std::uint32_t index = 0;
  int kept_count = -1;  // >= 0: stop() came while its step ran
};

struct Sequence {
  Sequence(Request& owner, std::vector<BlockTable> empty_tables)
      : request(&owner), tables(std::move(empty_tables)) {}

  Request* request;
  // All choices of the request until their first tokens are sampled from the one prompt, then one.
  std::vector<SequenceChoice> choices;
  std::vector<Token> tokens;       // prompt, then output; while a step runs, then its drafts
  int computed_count = 0;          // tokens whose cache entries exist
  int planned_count = 0;           // tokens in the step that is running now, drafts included
  int scoring_count = 0;           // rows of that step that score the prompt; they come first
  int draft_count = 0;             // drafts in that step
  bool sheltered = false;          // not to be sent away for another tenant
  Tenant* displaced_by = nullptr;  // who had it sent away, and was charged for so many tokens
  int displaced_count = 0;
  bool ended = false;  // cancelled while its step ran, or finished: apply() takes it away
  std::vector<BlockTable> tables;  // [KV group]
  PrefixChain chain;
  std::unique_ptr<TokenConstraint> constraint;  // has taken in the output; null: none
  std::unique_ptr<Beam> beam;                   // null: no beam search
  std::vector<Token> proposal;                  // drafts for the next step
  Acceptance acceptance;                        // of its drafts so far

  SequenceKey key() const { return {request->priority, request->arrival, choices.front().index}; }
  int choice_count() const { return static_cast<int>(choices.size()); }
  int token_count() const { return static_cast<int>(tokens.size()) - draft_count; }
  int pending_count() const { return token_count() - computed_count; }
  int output_count() const { return token_count() - request->prompt_count; }

  // The logits of the prompt are wanted.
  bool scores_prompt() const {
    return request->prompt_logprob_count >= 0 && request->scored_count < request->prompt_count;
  }

  // A beam that waits for the others of its round: nothing of it is pending.
  bool waits_for_beams() const { return beam != nullptr && beam->answered; }

  bool pools() const { return request->pooling != Pooling::kNone; }

  // How many tokens may come from the cache. The last is always computed, or there would be nothing
  // to sample from; and so is what has to be told of and has not been: the cache holds what later
  // tokens need of earlier ones, not their hidden states.
  int reusable_count() const {
    int count = token_count() - 1;
    if (scores_prompt()) count = std::min(count, request->scored_count - 1);
    if (request->pooling == Pooling::kMean) count = std::min(count, request->pooled_count);
    return count;
  }

  // Somebody reads its output now, and waits for the next token.
  bool decoding() const { return output_count() > 0 && pending_count() == 1; }

  void drop_drafts() {
    tokens.resize(tokens.size() - static_cast<std::size_t>(draft_count));
    draft_count = 0;
  }

  // Forgets all that was computed. What was published may still be found again.
  void rewind() {
    for (BlockTable& table : tables) table.clear();
    computed_count = 0;
    sheltered = false;
    chain.published_count = 0;
    proposal.clear();
  }
};

// Where the beam search of a request stands. Its beams are sequences: their choices' indices are
// together those below the width, so that a request never runs more of them than it was let in for.
struct BeamRound {
  explicit BeamRound(BeamSearch beam_search, int choices)
      : search(std::move(beam_search)), choice_count(choices) {}

  BeamSearch search;
  int choice_count = 1;   // hypotheses that are wanted
  int awaited_count = 1;  // beams without candidates
  bool over = false;
  // Answered beams that had to give their blocks away. They own none and stand in no line: their
  // continuations will, if they have any.
  std::vector<std::unique_ptr<Sequence>> parked;
};

}  // namespace kun
