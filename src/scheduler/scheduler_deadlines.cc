// Who cannot be served in time. A request whose deadlines cannot be kept is refused when it comes,
// by a forecast of the line; one whose first token cannot come in time any more, even if it were
// next, is dropped; one whose time is over ends where it is.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "scheduler/scheduler_impl.h"

namespace kun {
namespace {

// What alone takes longer than this many times what was asked for is refused for good: the costs of
// steps are measured, not known.
constexpr double kCertain = 2.0;

double ms(double us) {
  return us / 1e3;
}

Microseconds rounded(double us) {
  return static_cast<Microseconds>(std::clamp(us, 0.0, 9e15));
}

}  // namespace

// The least that a prompt takes beside `decode_count` readers, if it is next.
double Scheduler::Impl::least_time(std::int64_t token_count, int decode_count) const {
  const int budget = std::max(1, prompt_budget(decode_count, 0));
  const std::int64_t steps = std::max<std::int64_t>(1, (token_count + budget - 1) / budget);
  return static_cast<double>(steps) * cost_.step_us(decode_count) +
         static_cast<double>(token_count) * cost_.per_token_us();
}

// The shortest time between tokens that a reader asked for; 0: nobody did.
double Scheduler::Impl::pace_limit() const {
  double limit = 0.0;
  if (timed_count_ == 0) return limit;
  for (const SequencePtr& sequence : running_) {
    const auto mine = static_cast<double>(sequence->request->per_token_max);
    if (mine > 0.0 && (limit == 0.0 || mine < limit)) limit = mine;
  }
  return limit;
}

int Scheduler::Impl::expected_output(const Request& request, int so_far) const {
  if (request.pooling != Pooling::kNone) return 1;  // its vector comes when a first token would
  const int most = std::max(1, request.token_count_max - request.prompt_count - so_far);
  if (request.end_tokens.empty() || !output_length_.known()) return most;
  const double mean = std::max<double>(output_length_.mean(), request.sampling.output_count_min);
  // Whoever is past the mean is expected to go on for half of it.
  const double left = so_far < mean ? mean - so_far : mean / 2;
  return std::clamp(static_cast<int>(left), 1, most);
}

WorkItem Scheduler::Impl::work_of(const Sequence& sequence, const Request& request) const {
  WorkItem item;
  item.choice_count = sequence.choice_count();
  item.output_left = expected_output(request, std::max(sequence.output_count(), 0));
  item.prompt_left = sequence.decoding() ? 0 : sequence.pending_count();
  const bool waiting = sequence.tables.front().size() == 0 && sequence.computed_count == 0;
  const auto queried = static_cast<double>(stats_.prefix_query_token_count);
  if (waiting && request.cached_hint > 0) {
    item.prompt_left -= request.cached_hint;
  } else if (waiting && queried > 0.0 && sequence.reusable_count() > 0) {
    const double missed = 1.0 - static_cast<double>(stats_.prefix_hit_token_count) / queried;
    item.prompt_left = static_cast<int>(item.prompt_left * missed);
  }
  if (waiting) {
    item.prompt_left = std::max(item.prompt_left, 1);
    item.room = sequence.token_count();
    return item;
  }
  // Of a group with a window a sequence holds little, however long it is.
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    if (layout_.groups[g].window > 0) continue;
    const auto alone = std::ranges::count_if(sequence.tables[g].ids(), [&](BlockId id) {
      return id != kNoBlock && pools_[g].holder_count(id) == 1;
    });
    item.room = std::max(item.room, alone * std::int64_t{pools_[g].tokens_per_block()});
  }
  return item;
}

QueueState Scheduler::Impl::queue_state() {
  QueueState state;
  state.cost = &cost_;
  state.prompt_budget = [this](int decode_count) {
    return std::min(prompt_budget(decode_count, 0), limits_.tokens_per_step_max - decode_count);
  };
  state.free_slots = limits_.sequences_running_max;
  state.free_room = std::numeric_limits<std::int64_t>::max() / 2;
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    if (layout_.groups[g].window > 0) continue;
    const std::int64_t length = pools_[g].tokens_per_block();
    state.spare_room = std::max(state.spare_room, length);
    state.free_room = std::min(state.free_room, pools_[g].free_count() * length);
  }
  std::unordered_map<const Tenant*, std::size_t> places;
  for (const auto& [name, tenant] : tenants_.all()) {
    if (tenant.sequence_count == 0) continue;
    places.emplace(&tenant, state.tenants.size());
    TenantWork& work = state.tenants.emplace_back();
    work.virtual_time = tenant.virtual_time;
    work.weight = tenant.weight;
    for (const auto& [key, sequence] : tenant.waiting) {
      if (sequence->ended) continue;
      work.waiting.push_back(work_of(*sequence, *sequence->request));
      work.waiting.back().tenant = state.tenants.size() - 1;
    }
  }
  for (const SequencePtr& sequence : running_) {
    state.free_slots -= sequence->choice_count();
    if (sequence->ended) continue;
    state.running.push_back(work_of(*sequence, *sequence->request));
    state.running.back().tenant = places.at(sequence->request->tenant);
  }
  return state;
}

Microseconds Scheduler::Impl::admission_time() {
  if (!cost_.known() || tenants_.waiting_count() == 0) return 0;
  if (!admission_time_) {
    QueueState state = queue_state();
    // Those who were sent away wait as well, beyond the line's length.
    state.places_wanted = std::max(1, tenants_.waiting_count() - limits_.sequences_waiting_max + 1);
    admission_time_ = rounded(std::max(forecast(std::move(state)).admission_us, 0.0));
  }
  return *admission_time_;
}

// What would become of a request that is not in the line yet.
QueueForecast Scheduler::Impl::forecast_of(const Request& request, int prompt_left,
                                           int choice_count) {
  QueueState state = queue_state();
  const Tenant& tenant = *request.tenant;
  std::size_t place = 0;
  for (const auto& [name, other] : tenants_.all()) {
    if (&other == &tenant) break;
    place += other.sequence_count > 0 ? 1 : 0;
  }
  if (tenant.sequence_count == 0) {
    // Places behind it move by one.
    for (WorkItem& item : state.running) item.tenant += item.tenant >= place ? 1 : 0;
    TenantWork mine;
    mine.virtual_time = tenant.virtual_time;
    mine.weight = tenant.weight;
    state.tenants.insert(state.tenants.begin() + static_cast<std::ptrdiff_t>(place), mine);
    for (std::size_t i = place + 1; i < state.tenants.size(); ++i) {
      for (WorkItem& item : state.tenants[i].waiting) item.tenant = i;
    }
  }
  WorkItem target;
  target.prompt_left = std::max(prompt_left, 1);
  target.output_left = expected_output(request, 0);
  target.choice_count = choice_count;
  target.room = request.prompt_count;
  target.tenant = place;
  target.target = true;
  std::vector<WorkItem>& line = state.tenants[place].waiting;
  std::size_t ahead = 0;
  for (const auto& [key, sequence] : tenant.waiting) {
    if (sequence->ended) continue;
    if (key.priority <= request.priority) ++ahead;
  }
  line.insert(line.begin() + static_cast<std::ptrdiff_t>(std::min(ahead, line.size())), target);
  // Those whom it may send away at once.
  while (tenant.may_displace && !state.running.empty() &&
         (state.free_slots < target.choice_count || state.free_room < target.room)) {
    const WorkItem& last = state.running.back();
    if (state.tenants[last.tenant].virtual_time < tenant.virtual_time) break;
    state.free_slots += last.choice_count;
    state.free_room += last.room;
    state.running.pop_back();
  }
  state.pace_limit_us = static_cast<double>(request.per_token_max);
  return forecast(std::move(state));
}

// Fills in the deadlines of a request that comes in, and refuses one that would come too late.
Status Scheduler::Impl::refuse_late(const SequenceSpec& spec, PrefixChain& chain, Request& request,
                                    Microseconds now) {
  const Deadlines& wanted = spec.deadlines;
  if (wanted.first_token > 0) request.first_token_by = now + wanted.first_token;
  if (wanted.total > 0) request.end_by = now + wanted.total;
  request.per_token_max = wanted.per_token;
  if (!cost_.known() || forecasts_left_ == 0) return {};
  --forecasts_left_;
  const bool reads_all = spec.prompt_logprob_count >= 0 || spec.pooling == Pooling::kMean;
  if (limits_.prefix_caching && !reads_all) {
    std::vector<BlockTable> tables = empty_tables();
    const auto prompt = std::span<const Token>(spec.prompt).first(spec.prompt.size() - 1);
    request.cached_hint = prefixes_.match(prompt, chain, tables);
    chain.published_count = 0;
  }
  const int prompt_left = request.prompt_count - request.cached_hint;
  const bool pools = request.pooling != Pooling::kNone;
  const int most = pools ? 1 : request.token_count_max - request.prompt_count;
  const int least_output =
      request.end_tokens.empty() ? most : std::clamp(request.sampling.output_count_min, 1, most);
  const auto judge = [&](double first, double pace, double scale, std::string_view when) -> Status {
    const double last = first + pace * (least_output - 1);
    const auto refuse = [&](std::string_view field, double time, Microseconds limit) {
      refusal_.retry_after = rounded(time - static_cast<double>(limit));
      return unavailable(fmt::format("{} is {:.0f}, and {} it would be about {:.0f} ms", field,
                                     ms(static_cast<double>(limit)), when, ms(time)));
    };
    const auto exceeds = [scale](double time, Microseconds limit) {
      return limit > 0 && time > static_cast<double>(limit) * scale;
    };
    if (exceeds(first, wanted.first_token)) return refuse("ttft_slo_ms", first, wanted.first_token);
    if (exceeds(pace, wanted.per_token)) return refuse("tpot_slo_ms", pace, wanted.per_token);
    if (exceeds(last, wanted.total)) return refuse("timeout_ms", last, wanted.total);
    return {};
  };
  if (Status never = judge(least_time(prompt_left, 0), cost_.step_us(1), kCertain,
                           "on a server that does nothing else");
      !never.ok()) {
    refusal_ = {kCodeDeadlineImpossible, 0};
    return invalid_argument(never.message());
  }
  const QueueForecast expected = forecast_of(request, prompt_left, spec.choice_count);
  constexpr double kNever = 1e15;
  const double first = expected.first_token_us < 0.0 ? kNever : expected.first_token_us;
  Status late = judge(first, std::max(expected.pace_us, 0.0), 1.0, "behind what waits now");
  if (late.ok()) return {};
  refusal_.code = kCodeDeadlineUnreachable;
  const bool by_pace = wanted.per_token > 0 && expected.pace_us > double(wanted.per_token);
  if (by_pace) refusal_.retry_after = rounded(std::max(expected.pace_at_us, 0.0));
  return late;
}

// Its first token would come too late even if it were next.
bool Scheduler::Impl::too_late(const Sequence& sequence, Microseconds now, int decode_count) const {
  const Request& request = *sequence.request;
  if (request.first_token_by == 0 || sequence.output_count() > 0) return false;
  const int hint = sequence.computed_count == 0 ? request.cached_hint : 0;
  const double least =
      cost_.known() ? least_time(sequence.pending_count() - hint, decode_count) : 0.0;
  return static_cast<double>(now) + least > static_cast<double>(request.first_token_by);
}

void Scheduler::Impl::end_late(Microseconds now) {
  forecasts_left_ = kForecastsPerStep;
  admission_time_.reset();
  if (timed_count_ == 0) return;
  int decode_count = 0;
  for (const SequencePtr& sequence : running_) decode_count += sequence->decoding() ? 1 : 0;
  bool any = false;
  const auto judge = [&](Sequence& sequence) {
    if (sequence.ended) return;
    const Request& request = *sequence.request;
    const bool over = request.end_by > 0 && now >= request.end_by;
    if (!over && !too_late(sequence, now, decode_count)) return;
    any = true;
    ++stats_.late_count;
    if (over) return end(sequence, Finish::kTimeout);
    ++request.tenant->refused_count;
    Microseconds retry_after = 0;
    if (cost_.known() && forecasts_left_ > 0) {
      --forecasts_left_;
      const double first =
          forecast_of(request, sequence.pending_count(), sequence.choice_count()).first_token_us;
      retry_after = rounded(first - double(request.first_token_by - request.added_at));
    }
    const std::size_t before = progress_.size();
    end(sequence, Finish::kLate);
    for (std::size_t i = before; i < progress_.size(); ++i) progress_[i].retry_after = retry_after;
  };
  for (const SequencePtr& sequence : running_) judge(*sequence);
  for (const auto& [name, tenant] : tenants_.all()) {
    for (const auto& [key, sequence] : tenant.waiting) judge(*sequence);
  }
  if (any) sweep();
}

}  // namespace kun
