// A round admits whom it can and then takes as many equal steps as pass before anything changes: a
// prompt is complete, or an output ends.
#include "scheduler/queue_estimate.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace kun {
namespace {

// Rounds after which the rest is not worth its price.
constexpr int kRoundsMax = 8192;

class Forecaster {
 public:
  explicit Forecaster(QueueState state) : state_(std::move(state)), places_(state_.tenants.size()) {
    for (const TenantWork& tenant : state_.tenants) {
      for (const WorkItem& item : tenant.waiting) has_target_ = has_target_ || item.target;
    }
    for (const WorkItem& item : state_.running) count(item, 1);
  }

  QueueForecast run() {
    for (int round = 0; round < kRoundsMax && !done_; ++round) {
      while (!done_ && admit()) continue;
      if (done_ || state_.running.empty()) break;
      step();
    }
    if (result_.pace_at_us < 0.0) result_.pace_at_us = now_us_;
    return result_;
  }

 private:
  void count(const WorkItem& item, int sign) {
    if (item.prompt_left > 0) {
      prompt_left_ += sign * std::int64_t{item.prompt_left};
    } else {
      decode_count_ += sign * item.choice_count;
    }
  }

  // Whoever is furthest behind, of those who have somebody waiting.
  TenantWork* next() {
    TenantWork* first = nullptr;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      TenantWork& tenant = state_.tenants[i];
      if (places_[i] == tenant.waiting.size()) continue;
      if (first == nullptr || tenant.virtual_time < first->virtual_time) first = &tenant;
    }
    return first;
  }

  bool admit() {
    TenantWork* tenant = next();
    if (tenant == nullptr || prompt_left_ >= state_.prompt_budget(decode_count_)) return false;
    std::size_t& place = places_[static_cast<std::size_t>(tenant - state_.tenants.data())];
    WorkItem item = tenant->waiting[place];
    const bool alone = state_.running.empty();  // then whoever is first fits
    const std::int64_t spare = state_.spare_room * std::ssize(state_.running);
    if (!alone && (item.choice_count > state_.free_slots || item.room + spare > state_.free_room)) {
      return false;
    }
    ++place;
    item.prompt_left = std::max(item.prompt_left, 1);
    state_.free_slots -= item.choice_count;
    state_.free_room -= item.room;
    tenant->virtual_time += item.prompt_left / tenant->weight;
    if (++admitted_count_ >= state_.places_wanted && result_.admission_us < 0.0) {
      result_.admission_us = now_us_;
      done_ = !has_target_;
    }
    count(item, 1);
    state_.running.push_back(item);
    return true;
  }

  void step() {
    const int budget = std::max(state_.prompt_budget(decode_count_), 1);
    const int prompt = static_cast<int>(std::min<std::int64_t>(budget, prompt_left_));
    const double time = state_.cost->step_us(decode_count_ + prompt);
    note_pace();
    std::int64_t steps = std::numeric_limits<std::int64_t>::max();
    for (const WorkItem& item : state_.running) {
      if (item.prompt_left == 0) {
        steps = std::min<std::int64_t>(steps, item.output_left);
      } else {
        // The first prompt has the whole budget; others wait for what it leaves.
        steps = std::min<std::int64_t>(steps, std::max(1, item.prompt_left / budget));
      }
    }
    if (decode_count_ > 0 && state_.free_room > 0) {
      steps = std::min(steps, std::max<std::int64_t>(1, state_.free_room / decode_count_));
    }
    now_us_ += static_cast<double>(steps) * time;
    std::int64_t tokens = steps * budget;
    for (WorkItem& item : state_.running) advance(item, steps, tokens);
    std::erase_if(state_.running, [this](const WorkItem& item) {
      if (item.output_left > 0) return false;
      count(item, -1);
      state_.free_slots += item.choice_count;
      state_.free_room += item.room;
      return true;
    });
    while (state_.free_room < 0 && state_.running.size() > 1) send_away_last();
  }

  // No room for the next tokens of all: the last of the order waits again.
  void send_away_last() {
    WorkItem item = state_.running.back();
    state_.running.pop_back();
    count(item, -1);
    state_.free_slots += item.choice_count;
    state_.free_room += item.room;
    --admitted_count_;
    item.prompt_left = static_cast<int>(std::max<std::int64_t>(item.room, 1));
    std::vector<WorkItem>& line = state_.tenants[item.tenant].waiting;
    line.insert(line.begin() + static_cast<std::ptrdiff_t>(places_[item.tenant]), item);
  }

  void advance(WorkItem& item, std::int64_t steps, std::int64_t& tokens) {
    TenantWork& tenant = state_.tenants[item.tenant];
    if (item.prompt_left == 0) {
      item.output_left -= static_cast<int>(steps);
      item.room += steps * item.choice_count;
      state_.free_room -= steps * item.choice_count;
      tenant.virtual_time += static_cast<double>(steps * item.choice_count) / tenant.weight;
      return;
    }
    count(item, -1);
    const std::int64_t mine = std::min<std::int64_t>(item.prompt_left, tokens);
    item.prompt_left -= static_cast<int>(mine);
    tokens -= mine;
    if (item.prompt_left == 0) --item.output_left;  // its last row gives the first output
    count(item, 1);
    if (item.prompt_left > 0 || !item.target) return;
    target_reads_ = true;
    result_.first_token_us = now_us_;
    result_.pace_us = state_.cost->step_us(decode_count_);
    // Where it is too slow, what remains is to see when it would not be.
    done_ = state_.pace_limit_us <= 0.0 || result_.pace_us <= state_.pace_limit_us ||
            result_.pace_at_us >= 0.0;
  }

  void note_pace() {
    if (result_.pace_at_us >= 0.0 || state_.pace_limit_us <= 0.0) return;
    const int readers = decode_count_ + (target_reads_ ? 0 : 1);
    if (state_.cost->step_us(readers) > state_.pace_limit_us) return;
    result_.pace_at_us = now_us_;
    done_ = target_reads_;
  }

  QueueState state_;
  std::vector<std::size_t> places_;  // [tenant]: of its waiting ones, the next
  QueueForecast result_;
  std::int64_t prompt_left_ = 0;
  int decode_count_ = 0;
  double now_us_ = 0.0;
  int admitted_count_ = 0;  // less those who were sent away
  bool has_target_ = false;
  bool target_reads_ = false;
  bool done_ = false;
};

}  // namespace

QueueForecast forecast(QueueState state) {
  CHECK(state.cost != nullptr && state.cost->known());
  return Forecaster(std::move(state)).run();
}

}  // namespace kun
