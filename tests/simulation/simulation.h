// One seeded run of the scheduler against a simulated worker, with a load as unkind as chance
// makes it: shared prefixes, salts, priorities, n > 1, cancellations, stops, corrupted rows, failed
// steps, and pools small enough to preempt all the time. Everything the scheduler tells is compared
// with what a model without any cache says.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan_checks.h"
#include "scheduler/plan_trace.h"
#include "scheduler/scheduler.h"
#include "simulated_worker.h"

namespace kun {

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : random_(seed) {
    make_limits();
    scheduler_ = std::make_unique<Scheduler>(limits_, layout_);
    worker_ = std::make_unique<SimulatedWorker>(layout_, limits_.block_counts);
    trace_.push_back(trace_header(limits_, layout_));
  }

  // The first thing that went wrong, or nothing.
  std::string run(int arrival_steps) {
    const int bound = arrival_steps + 200'000;
    for (int step = 0; step < arrival_steps || !scheduler_->idle(); ++step) {
      if (step == bound) return fail("still not idle: somebody starves");
      if (step < arrival_steps) act();
      run_step(/*calm=*/step >= arrival_steps);
      if (!problem_.empty()) return problem_;
    }
    if (!choices_.empty()) return fail("a choice never ended");
    const Scheduler::Stats stats = scheduler_->stats();
    if (stats.free_block_count != stats.total_block_count) return fail("a block leaked");
    if (stats.running_count + stats.waiting_count != 0) return fail("the counts do not end at 0");
    if (stats.accepted_token_count > stats.draft_token_count ||
        static_cast<int>(stats.draft_token_count) > draft_token_count_) {
      return fail("drafts are miscounted");
    }
    return {};
  }

  int step_count() const { return step_count_; }
  int token_count() const { return token_count_; }
  int passed_count() const {
    return passed_count_;
  }                                        // slices with places whose block was given back
  Cell digest() const { return digest_; }  // of every plan: equal seeds give equal plans
  const std::vector<std::string>& trace() const { return trace_; }
  Scheduler::Stats stats() const { return scheduler_->stats(); }
  int ended_count(Scheduler::Finish finish) const {
    const auto entry = ended_counts_.find(finish);
    return entry == ended_counts_.end() ? 0 : entry->second;
  }

 private:
  using Finish = Scheduler::Finish;

  struct Choice {
    std::vector<Token> history;
    std::optional<int> kept_count;  // stop() was called
  };
  struct Expected {
    SequenceSpec spec;
    Cell origin = 0;
    std::uint64_t arrival = 0;
    Microseconds added_at = 0;
  };
  using ChoiceKey = std::pair<SequenceId, std::uint32_t>;

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int one_in) { return pick(1, one_in) == 1; }

  std::string fail(std::string what) {
    if (problem_.empty()) problem_ = fmt::format("step {}: {}", step_count_, what);
    return problem_;
  }

  void make_limits() {
    const int token_capacity = pick(12, 160);
    for (int g = pick(1, 3); g > 0; --g) {
      static constexpr int kLengths[] = {1, 2, 3, 4, 8};
      KvGroup group;
      group.tokens_per_block = kLengths[pick(0, 4)];
      if (chance(2)) group.window = pick(2, 24);
      layout_.groups.push_back(group);
      // A pool of windows may be far smaller than the others.
      const int most = token_capacity / (group.window > 0 ? pick(1, 6) : 1);
      limits_.block_counts.push_back(most / group.tokens_per_block + pick(1, 4));
    }
    limits_.tokens_per_step_max = pick(1, 48);
    limits_.tokens_per_step_min = pick(1, 8);
    limits_.step_time_target = chance(2) ? 0 : pick(20, 400);
    limits_.sequences_running_max = pick(1, 10);
    limits_.sequences_waiting_max = pick(2, 16);
    limits_.context_length_max = pick(10, 120);
    limits_.prefix_caching = !chance(6);
    limits_.label_key[0] = random_();
    if (!chance(3)) limits_.draft_count_max = pick(1, 6);
    limits_.adaptive_drafts = chance(3);
    limits_.draft_sequences_max = chance(4) ? pick(1, 4) : 0;
    right_draft_percent_ = pick(0, 100);
    priorities_ = pick(1, 3);
    tenants_ = chance(2) ? 1 : pick(2, 4);
    limits_.tenant_credit = pick(1, 60);
    deadline_one_in_ = chance(2) ? 0 : pick(2, 8);
    arrival_one_in_ = pick(1, 6);
    trouble_one_in_ = pick(15, 200);
  }

  void act() {
    if (chance(arrival_one_in_)) arrive();
    if (chance(trouble_one_in_)) cancel_one();
    if (chance(trouble_one_in_)) stop_one();
    if (!choices_.empty() && chance(trouble_one_in_ * 4)) worker_->poison(some_choice().first);
  }

  ChoiceKey some_choice() {
    const auto place = pick(0, static_cast<int>(choices_.size()) - 1);
    return std::next(choices_.begin(), place)->first;
  }

  void arrive() {
    SequenceSpec spec;
    spec.id = ++last_id_;
    const int family = pick(0, 2);
    const int shared = pick(0, 40);
    const int length = pick(1, 60);
    for (int i = 0; i < length; ++i) {
      spec.prompt.push_back(i < shared ? (i * family + family) % kVocabulary
                                       : pick(0, kVocabulary - 1));
    }
    spec.output_count_max = pick(1, 40);
    spec.sampling.output_count_min = chance(3) ? pick(0, 5) : 0;
    if (chance(2)) spec.end_tokens = {pick(0, kVocabulary - 1)};
    spec.ignore_end_tokens = chance(8);
    spec.choice_count = chance(3) ? pick(1, 5) : 1;
    spec.priority = pick(1, priorities_);
    if (tenants_ > 1) {
      const int tenant = pick(1, tenants_);
      spec.tenant = "tenant " + std::to_string(tenant);
      spec.tenant_weight = tenant;
    }
    if (deadline_one_in_ > 0 && chance(deadline_one_in_)) {
      if (chance(2)) spec.deadlines.first_token = pick(1, 4000);
      if (chance(2)) spec.deadlines.total = pick(1, 6000);
      if (chance(4)) spec.deadlines.per_token = pick(20, 400);
    }
    const int salt = chance(4) ? 1 : 0;
    if (salt > 0) spec.cache_salt = "tenant";
    // A salted prompt computes to other bytes here, so that sharing across salts shows.
    const Cell origin = static_cast<Cell>(salt);
    const Status status = scheduler_->add(spec, now_);
    if (!status.ok()) {
      judge_refusal(spec, status);
      return;
    }
    worker_->set_origin(spec.id, origin);
    for (int i = 0; i < spec.choice_count; ++i) {
      choices_[{spec.id, static_cast<std::uint32_t>(i)}] = {.history = spec.prompt,
                                                            .kept_count = {}};
    }
    const SequenceId id = spec.id;
    expected_[id] = {.spec = std::move(spec), .origin = origin, .arrival = id, .added_at = now_};
  }

  int token_count_max() const {
    int most = limits_.context_length_max;
    for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
      const KvGroup& group = layout_.groups[g];
      const int held = limits_.block_counts[g] * group.tokens_per_block;
      const bool endless = group.window > 0 && held >= group.window + group.tokens_per_block - 1;
      if (!endless) most = std::min(most, held + 1);
    }
    return most;
  }

  void judge_refusal(const SequenceSpec& spec, const Status& status) {
    const bool too_long = std::ssize(spec.prompt) + 1 > token_count_max();
    const bool too_wide =
        spec.choice_count > std::min(limits_.sequences_running_max, limits_.tokens_per_step_max);
    const bool hopeless = too_long || too_wide;
    const std::string_view code = scheduler_->refusal().code;
    if (code == kCodeDeadlineImpossible || code == kCodeDeadlineUnreachable) {
      if (!spec.deadlines.any()) fail("refused for a deadline that it does not have");
      return;
    }
    if (hopeless != (status.code() == StatusCode::kInvalidArgument)) fail(status.message());
    if (!hopeless && scheduler_->stats().waiting_count < limits_.sequences_waiting_max) {
      fail("refused although there is room: " + status.message());
    }
  }

  void cancel_one() {
    if (choices_.empty()) return;
    const SequenceId id = some_choice().first;
    scheduler_->cancel(id);
    std::erase_if(choices_, [&](const auto& entry) { return entry.first.first == id; });
  }

  void stop_one() {
    if (choices_.empty()) return;
    const ChoiceKey key = some_choice();
    Choice& choice = choices_[key];
    if (choice.kept_count) return;
    const auto outputs = std::ssize(choice.history) - std::ssize(expected_[key.first].spec.prompt);
    choice.kept_count = pick(0, static_cast<int>(outputs));
    scheduler_->stop(key.first, key.second, *choice.kept_count);
  }

  // Drafts that are right by chance, fewer than wanted at times, and none at others.
  void draft() {
    const std::vector<DraftWish>& wishes = scheduler_->draft_wishes();
    if (wishes.empty() || chance(10)) return;
    std::vector<std::vector<Token>> drafts;
    for (const DraftWish& wish : wishes) {
      std::vector<Token>& mine = drafts.emplace_back();
      const auto known = choices_.find({wish.sequence, wish.choice});
      if (known == choices_.end() || !std::ranges::equal(wish.history, known->second.history)) {
        fail(fmt::format("sequence {} wants drafts for another text", wish.sequence));
        return;
      }
      const Expected& expected = expected_[wish.sequence];
      if (wish.cache_salt != expected.spec.cache_salt) fail("a wish has another salt");
      if (wish.count_max < 1 || wish.count_max > limits_.draft_count_max) fail("an odd wish");
      std::vector<Token> text(wish.history.begin(), wish.history.end());
      const int count = chance(4) ? pick(0, wish.count_max) : wish.count_max;
      for (int i = 0; i < count; ++i) {
        const Token right = reference_token(text, layout_, expected.origin, wish.choice);
        text.push_back(pick(1, 100) <= right_draft_percent_ ? right : pick(0, kVocabulary - 1));
        mine.push_back(text.back());
      }
    }
    scheduler_->offer_drafts(drafts, pick(0, 20));
  }

  void run_step(bool calm) {
    ++step_count_;
    draft();
    if (!problem_.empty()) return;
    const BatchPlan& plan = scheduler_->plan(now_);
    check_plan(plan);
    if (!problem_.empty()) return;
    now_ += 30 + 4 * total_tokens(plan) + pick(0, 3);
    const bool failed = !calm && chance(trouble_one_in_ * 3);
    StepResult result =
        failed ? worker_->fail(plan, random_) : worker_->run(plan, scheduler_->sampling());
    if (!plan.empty()) trace_.push_back(trace_line(plan, result, now_));
    // Readers come and go while the step runs, too.
    if (!calm && chance(trouble_one_in_)) cancel_one();
    if (!calm && chance(trouble_one_in_)) stop_one();
    for (const Scheduler::Progress& progress : scheduler_->apply(result, now_)) {
      take(progress, failed);
    }
  }

  void check_plan(const BatchPlan& plan) {
    if (const std::string broken = broken_promise(plan, layout_); !broken.empty()) fail(broken);
    if (total_tokens(plan) > limits_.tokens_per_step_max) fail("the budget is exceeded");
    std::size_t row = 0;
    std::set<SequenceId> planned;
    for (const PlanSlice& slice : plan.slices) {
      planned.insert(slice.sequence);
      check_slice(slice, row);
      digest_ = mixed(digest_, mixed(slice.sequence, static_cast<Cell>(slice.first_position)));
      for (const std::vector<BlockId>& ids : slice.blocks) passed_count_ += ids[0] == kNoBlock;
      for (const BlockId id : slice.blocks[0]) digest_ = mixed(digest_, static_cast<Cell>(id));
    }
    if (row != scheduler_->sampling().rows.size()) fail("too many sampling rows");
    check_first_in_line(planned);
  }

  void check_slice(const PlanSlice& slice, std::size_t& row) {
    const auto mine = choices_.find({slice.sequence, slice.choice});
    if (mine == choices_.end()) {
      fail(fmt::format("sequence {} runs after its end", slice.sequence));
      return;
    }
    const std::vector<Token>& history = mine->second.history;
    const auto first = static_cast<std::size_t>(slice.first_position);
    const auto drafts = static_cast<std::size_t>(slice.draft_count);
    if (drafts >= slice.tokens.size() || slice.draft_count > limits_.draft_count_max) {
      fail("an absurd number of drafts");
      return;
    }
    const std::size_t end = first + slice.tokens.size() - drafts;
    if (end > history.size() ||
        !std::equal(slice.tokens.begin(), slice.tokens.end() - slice.draft_count,
                    history.begin() + slice.first_position)) {
      fail(fmt::format("sequence {}: the slice has other tokens", slice.sequence));
      return;
    }
    if (slice.wanted.empty() != (end < history.size())) fail("wanted at the wrong place");
    if (drafts > 0 && end != history.size()) fail("drafts in the middle of a prompt");
    if (drafts > 0 && slice.wanted.size() != drafts + 1) fail("a draft is not verified");
    std::vector<Token> text = history;
    text.insert(text.end(), slice.tokens.end() - slice.draft_count, slice.tokens.end());
    for (std::size_t i = 0; i < slice.wanted.size(); ++i) {
      const SamplingRow& sampling = scheduler_->sampling().rows.at(row++);
      const std::size_t seen = drafts > 0 ? end + i : end;
      const auto offset = static_cast<std::size_t>(slice.wanted[i]);
      if (first + offset + 1 != seen) fail("a wrong row is wanted");
      if (!std::ranges::equal(sampling.history, std::span(text).first(seen))) {
        fail("a row has another history");
      }
      if (sampling.draft != (seen < text.size() ? text[seen] : kNoDraft)) {
        fail("a row has another draft");
      }
      const auto prompt_count = std::ssize(expected_[slice.sequence].spec.prompt);
      if (sampling.prompt_count != prompt_count) fail("a row has another prompt");
    }
    draft_token_count_ += static_cast<int>(drafts);
  }

  // No starvation: of all that are here, the first by priority and arrival advances in every step.
  void check_first_in_line(const std::set<SequenceId>& planned) {
    if (planned.empty() && !choices_.empty() && !scheduler_->idle()) check_all_stopped();
    if (tenants_ > 1 || deadline_one_in_ > 0) return;  // then the order is another
    const Expected* first = nullptr;
    for (const auto& [key, choice] : choices_) {
      if (choice.kept_count) continue;
      const Expected& expected = expected_[key.first];
      const auto rank = [](const Expected& e) { return std::pair(e.spec.priority, e.arrival); };
      if (first == nullptr || rank(expected) < rank(*first)) first = &expected;
    }
    if (first != nullptr && !planned.contains(first->spec.id)) {
      fail(fmt::format("sequence {} is first in line and does not advance", first->spec.id));
    }
  }

  // An empty plan while somebody is here: all of them have been told to stop, or were just ended.
  void check_all_stopped() {
    for (const auto& [key, choice] : choices_) {
      if (!choice.kept_count && !expected_[key.first].spec.deadlines.any()) fail("nobody advances");
    }
  }

  void check_deadline(const Scheduler::Progress& progress, const Choice& choice,
                      const Expected& expected) {
    const Deadlines& wanted = expected.spec.deadlines;
    const Microseconds waited = now_ - expected.added_at;
    const bool silent = choice.history.size() == expected.spec.prompt.size();
    if (progress.finish == Finish::kLate && (wanted.first_token == 0 || !silent)) {
      fail("dropped as late without a reason");
    }
    if (progress.finish == Finish::kTimeout && (wanted.total == 0 || waited < wanted.total)) {
      fail("ended before its time was over");
    }
    if (progress.retry_after < 0) fail("to be tried again in the past");
  }

  void take(const Scheduler::Progress& progress, bool failed) {
    const ChoiceKey key{progress.sequence, progress.choice};
    const auto mine = choices_.find(key);
    if (mine == choices_.end()) {
      fail(fmt::format("sequence {} was heard of after its end", key.first));
      return;
    }
    Choice& choice = mine->second;
    const Expected& expected = expected_[key.first];
    const bool late = progress.finish == Finish::kLate || progress.finish == Finish::kTimeout;
    if (late) check_deadline(progress, choice, expected);
    if (failed != (progress.finish == Finish::kFailed) && progress.finish != Finish::kStopped &&
        !late) {
      fail("a failed step ends its sequences as failed, and no other step does");
    }
    for (const SampledToken& token : progress.tokens) {
      if (end_of(choice, expected) != Finish::kNone) fail("a token came behind the end");
      const Token right =
          reference_token(choice.history, layout_, expected.origin, progress.choice);
      if (token.token != right) {
        fail(fmt::format("sequence {} choice {} got token {} instead of {}", key.first, key.second,
                         token.token, right));
      }
      choice.history.push_back(token.token);
      ++token_count_;
    }
    check_end(progress, choice, expected);
    if (progress.finish == Finish::kNone) return;
    ++ended_counts_[progress.finish];
    choices_.erase(mine);
  }

  void check_end(const Scheduler::Progress& progress, const Choice& choice,
                 const Expected& expected) {
    const SequenceSpec& spec = expected.spec;
    const auto outputs = static_cast<int>(std::ssize(choice.history) - std::ssize(spec.prompt));
    if ((progress.finish == Finish::kStopped) != choice.kept_count.has_value()) {
      fail("stop() was not obeyed, or nobody called it");
    }
    if (progress.output_count != choice.kept_count.value_or(outputs)) fail("outputs miscounted");
    if (progress.prompt_count != std::ssize(spec.prompt)) fail("the prompt is miscounted");
    if (progress.cached_count >= std::max(progress.prompt_count, 1)) fail("all was cached");
    if (progress.tokens.empty()) return;
    if (progress.finish != end_of(choice, expected)) fail("the choice ended for another reason");
  }

  // How a choice with this history has ended, if it has.
  Finish end_of(const Choice& choice, const Expected& expected) const {
    const SequenceSpec& spec = expected.spec;
    const auto outputs = std::ssize(choice.history) - std::ssize(spec.prompt);
    if (outputs == 0) return Finish::kNone;
    const Token last = choice.history.back();
    const bool ends = !spec.ignore_end_tokens && outputs >= spec.sampling.output_count_min &&
                      std::ranges::find(spec.end_tokens, last) != spec.end_tokens.end();
    const bool full =
        outputs == spec.output_count_max || std::ssize(choice.history) == token_count_max();
    return ends ? Finish::kEndToken : full ? Finish::kLength : Finish::kNone;
  }

  std::mt19937_64 random_;
  SchedulerLimits limits_;
  KvLayout layout_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<SimulatedWorker> worker_;
  std::map<ChoiceKey, Choice> choices_;  // that have not ended
  std::map<SequenceId, Expected> expected_;
  std::map<Finish, int> ended_counts_;
  std::vector<std::string> trace_;
  std::string problem_;
  Microseconds now_ = 0;
  SequenceId last_id_ = 0;
  Cell digest_ = 0;
  int step_count_ = 0;
  int token_count_ = 0;
  int priorities_ = 1;
  int arrival_one_in_ = 2;
  int trouble_one_in_ = 50;
  int right_draft_percent_ = 0;
  int tenants_ = 1;
  int deadline_one_in_ = 0;  // 0: nobody has one
  int draft_token_count_ = 0;
  int passed_count_ = 0;
};

}  // namespace kun
