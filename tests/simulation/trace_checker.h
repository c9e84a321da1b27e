// Replays a plan trace (scheduler/plan_trace.h) and holds it to the scheduler's promises: the
// budget, exclusive writers, contiguous positions, and that every position a slice reads was
// written to the slot where it looks for it.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "json_reader.h"

namespace kun {

class TraceChecker {
 public:
  // Lines in order, the header first. The first broken promise as a sentence, or nothing.
  std::string take(std::string_view text) {
    const std::optional<JsonValue> line = JsonReader::read(text);
    if (!line) return "a line is not JSON";
    if (groups_.empty()) return take_header(*line);
    const std::string broken = take_step(*line);
    return broken.empty() ? broken : fmt::format("step {}: {}", (*line)["step"].number, broken);
  }

  int step_count() const { return step_count_; }

 private:
  struct Group {
    std::int64_t length = 0;             // tokens per block
    std::int64_t window = 0;             // tokens that are read back; 0: all
    std::vector<std::int64_t> position;  // [slot]: of the token written there last, or -1
  };
  using Choice = std::pair<std::int64_t, std::int64_t>;  // sequence, choice

  std::string take_header(const JsonValue& line) {
    if (line["kun_trace"].number != 1) return "the first line is no header of a trace";
    budget_ = line["tokens_per_step_max"].number;
    for (const JsonValue& group : line["groups"].items) {
      const std::int64_t length = group["tokens_per_block"].number;
      const std::int64_t count = group["block_count"].number;
      if (length < 1 || length > 4096 || count < 1 || count > 1 << 24) return "a group is absurd";
      groups_.push_back({length, group["window"].number,
                         std::vector<std::int64_t>(static_cast<std::size_t>(length * count), -1)});
      unit_ = std::lcm(unit_, length);
    }
    return groups_.empty() ? "the header names no group" : "";
  }

  std::string take_step(const JsonValue& line) {
    ++step_count_;
    if (line["step"].number <= last_step_) return "steps do not count upwards";
    last_step_ = line["step"].number;
    if (std::string broken = take_copies(line["copies"]); !broken.empty()) return broken;
    std::int64_t total = 0;
    std::map<std::pair<std::size_t, std::int64_t>, int> users;
    for (const JsonValue& slice : line["slices"].items) {
      total += slice["count"].number;
      if (slice["blocks"].items.size() != groups_.size()) return "a table per group is missing";
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        for (const JsonValue& id : slice["blocks"].items[g].items) {
          if (id.number >= 0) ++users[{g, id.number}];
        }
      }
    }
    if (total > budget_) return fmt::format("{} tokens exceed the budget of {}", total, budget_);
    const std::vector<JsonValue>& results = line["results"].items;
    for (std::size_t s = 0; s < line["slices"].items.size(); ++s) {
      const JsonValue& slice = line["slices"].items[s];
      const std::int64_t given = s < results.size() ? results[s]["tokens"].number : 1;
      if (std::string broken = check_positions(slice, given); !broken.empty()) return broken;
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        const auto shared = [&](std::int64_t id) { return users[{g, id}] > 1; };
        if (std::string broken = write(slice, g, shared); !broken.empty()) return broken;
      }
    }
    for (const JsonValue& slice : line["slices"].items) {
      for (std::size_t g = 0; g < groups_.size(); ++g) {
        if (std::string broken = read(slice, g); !broken.empty()) return broken;
      }
    }
    return {};
  }

  std::string take_copies(const JsonValue& copies) {
    std::set<std::pair<std::int64_t, std::int64_t>> touched;
    for (const JsonValue& copy : copies.items) {
      if (copy.items.size() != 3) return "a copy is not [group, from, to]";
      const std::int64_t number = copy.items[0].number;
      if (number < 0 || number >= std::ssize(groups_)) return "a copy names an unknown group";
      Group& group = groups_[static_cast<std::size_t>(number)];
      const std::int64_t from = copy.items[1].number * group.length;
      const std::int64_t to = copy.items[2].number * group.length;
      if (!inside(group, from) || !inside(group, to)) return "a copy names an unknown block";
      if (!touched.insert({number, to}).second) return "a block is copied to twice";
      for (std::int64_t i = 0; i < group.length; ++i) {
        group.position[static_cast<std::size_t>(to + i)] =
            group.position[static_cast<std::size_t>(from + i)];
      }
    }
    return {};
  }

  // A sequence goes on where it stopped, or comes back to the end of a cached run of whole units. A
  // further choice of a request may also begin where their common prompt ended, or take over in its
  // middle from one that was stopped.
  // `given` tokens came out of it: the drafts that were right and one more.
  std::string check_positions(const JsonValue& slice, std::int64_t given) {
    const Choice choice{slice["sequence"].number, slice["choice"].number};
    const std::int64_t first = slice["first"].number;
    const std::int64_t end = first + slice["count"].number;
    if (first < 0 || slice["count"].number < 1) return "a slice is empty";
    const auto known = next_.find(choice);
    const bool goes_on = known != next_.end() && known->second == first;
    const auto prompt = prompt_ends_.find(choice.first);
    const bool forks = prompt != prompt_ends_.end() && prompt->second == first;
    const auto place = prompt_places_.find(choice.first);
    const bool takes_over = place != prompt_places_.end() && place->second == first;
    if (!goes_on && !forks && !takes_over && first % unit_ != 0) {
      return fmt::format("sequence {} choice {} jumps to position {}", choice.first, choice.second,
                         first);
    }
    const std::int64_t drafts = slice["drafts"].number;
    if (drafts < 0 || drafts >= slice["count"].number) return "a slice is nothing but drafts";
    if (drafts > 0 && given > drafts + 1) return "more drafts were right than there were";
    next_[choice] = drafts == 0 ? end : end - drafts + std::max<std::int64_t>(given - 1, 0);
    prompt_places_[choice.first] = slice["wanted"].number == 0 ? end : -1;
    if (drafts == 0 && slice["wanted"].number > 1) prompt_ends_[choice.first] = end;
    return {};
  }

  template <class Shared>
  std::string write(const JsonValue& slice, std::size_t g, const Shared& shared) {
    const std::int64_t end = slice["first"].number + slice["count"].number;
    for (std::int64_t p = slice["first"].number; p < end; ++p) {
      const std::int64_t slot = slot_of(slice, g, p);
      if (slot < 0) return fmt::format("position {} has no block", p);
      const std::int64_t block = slot / groups_[g].length;
      if (shared(block)) return fmt::format("block {} is written and shared", block);
      groups_[g].position[static_cast<std::size_t>(slot)] = p;
    }
    return {};
  }

  std::string read(const JsonValue& slice, std::size_t g) const {
    const std::int64_t window = groups_[g].window;
    const std::int64_t first =
        window == 0 ? 0 : std::max<std::int64_t>(0, slice["first"].number + 1 - window);
    for (std::int64_t p = first; p < slice["first"].number; ++p) {
      const std::int64_t slot = slot_of(slice, g, p);
      if (slot < 0) return fmt::format("position {} has no block", p);
      if (groups_[g].position[static_cast<std::size_t>(slot)] == p) continue;
      return fmt::format("sequence {} reads position {} where it was not written",
                         slice["sequence"].number, p);
    }
    return {};
  }

  std::int64_t slot_of(const JsonValue& slice, std::size_t g, std::int64_t position) const {
    const Group& group = groups_[g];
    const std::vector<JsonValue>& ids = slice["blocks"].items[g].items;
    const std::int64_t index = position / group.length;
    if (index >= std::ssize(ids)) return -1;
    const std::int64_t first = ids[static_cast<std::size_t>(index)].number * group.length;
    return inside(group, first) ? first + position % group.length : -1;
  }

  static bool inside(const Group& group, std::int64_t slot) {
    return slot >= 0 && slot < std::ssize(group.position);
  }

  std::vector<Group> groups_;
  std::map<Choice, std::int64_t> next_;  // the position each is to go on with
  std::map<std::int64_t, std::int64_t> prompt_ends_;
  std::map<std::int64_t, std::int64_t>
      prompt_places_;  // of requests in the middle of their prompts
  std::int64_t budget_ = 0;
  std::int64_t unit_ = 1;
  std::int64_t last_step_ = -1;
  int step_count_ = 0;
};

}  // namespace kun
