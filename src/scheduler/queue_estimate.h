// When a request would be served: runs the waiting line forward, on figures alone, by what steps
// have cost so far. Whole runs of equal steps are taken at once, so that a line of a thousand costs
// a millisecond. Deadlines are refused by it, and Retry-After is told by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "scheduler/step_cost.h"

namespace kun {

// Forecasts that are made for one step: that of a long line takes a millisecond.
inline constexpr int kForecastsPerStep = 16;

// How long outputs are that end of themselves; later ones weigh more.
class OutputLength {
 public:
  void observe(int count) {
    weight_ = weight_ * kDecay + 1.0;
    sum_ = sum_ * kDecay + count;
  }
  bool known() const { return weight_ > 0.0; }
  double mean() const { return sum_ / weight_; }

 private:
  static constexpr double kDecay = 0.95;
  double weight_ = 0.0;
  double sum_ = 0.0;
};

// A sequence, running or waiting.
struct WorkItem {
  int prompt_left = 0;    // tokens to compute before its next output
  int output_left = 1;    // expected, of each choice
  int choice_count = 1;   // slots it takes
  std::int64_t room = 0;  // tokens of cache that it needs, or gives back at its end
  std::size_t tenant = 0;
  bool target = false;  // the one that is asked about
};

struct TenantWork {
  double virtual_time = 0.0;
  double weight = 1.0;
  std::vector<WorkItem> waiting;  // in the tenant's own order
};

struct QueueState {
  const StepCost* cost = nullptr;
  std::function<int(int decode_count)> prompt_budget;  // tokens of prompts in such a step
  int free_slots = 0;
  std::int64_t free_room = 0;
  std::int64_t spare_room = 0;    // that stays free for each running one when another is admitted
  std::vector<WorkItem> running;  // in the order of their turn
  std::vector<TenantWork> tenants;
  int places_wanted = 1;       // see QueueForecast::admission_us
  double pace_limit_us = 0.0;  // > 0: see QueueForecast::pace_at_us
};

// Times from now on; negative: did not happen.
struct QueueForecast {
  double admission_us = -1.0;    // so many fewer wait as places are wanted
  double first_token_us = -1.0;  // of the target
  double pace_us = -1.0;         // time of a step in which the target decodes
  double pace_at_us = -1.0;      // a step with one more reader would take pace_limit_us at most
};

// Ends with the target's first token, or where there is no target when the places are free.
// Requires: state.cost->known().
QueueForecast forecast(QueueState state);

}  // namespace kun
