// The format is in the header; all values are numbers or fixed words, so nothing needs escaping.
#include "scheduler/plan_trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

namespace kun {

namespace {

using Line = std::back_insert_iterator<std::string>;

// "a,b,c": write_item appends one item, the commas are ours.
template <class Items, class WriteItem>
void write_list(Line out, const Items& items, const WriteItem& write_item) {
  bool first = true;
  for (const auto& item : items) {
    if (!first) fmt::format_to(out, ",");
    first = false;
    write_item(item);
  }
}

}  // namespace

std::string trace_header(const SchedulerLimits& limits, const KvLayout& layout) {
  std::string line;
  const Line out(line);
  fmt::format_to(out, R"({{"kun_trace":1,"tokens_per_step_max":{},"groups":[)",
                 limits.tokens_per_step_max);
  std::size_t g = 0;
  write_list(out, layout.groups, [&](const KvGroup& group) {
    fmt::format_to(out, R"({{"tokens_per_block":{},"block_count":{})", group.tokens_per_block,
                   limits.block_counts.at(g++));
    if (group.window > 0) fmt::format_to(out, R"(,"window":{})", group.window);
    fmt::format_to(out, "}}");
  });
  return line + "]}";
}

std::string trace_line(const BatchPlan& plan, const StepResult& result, Microseconds now) {
  std::string line;
  const Line out(line);
  fmt::format_to(out, R"({{"step":{},"now":{},"copies":[)", plan.step, now);
  write_list(out, plan.block_copies, [&](const BlockCopy& copy) {
    fmt::format_to(out, "[{},{},{}]", copy.group, copy.from, copy.to);
  });
  fmt::format_to(out, R"(],"slices":[)");
  write_list(out, plan.slices, [&](const PlanSlice& slice) {
    fmt::format_to(out, R"({{"sequence":{},"choice":{},"first":{},"count":{},"drafts":{},)",
                   slice.sequence, slice.choice, slice.first_position, slice.tokens.size(),
                   slice.draft_count);
    fmt::format_to(out, R"("wanted":{},)", slice.wanted.size());
    fmt::format_to(out, R"("blocks":[)");
    write_list(out, slice.blocks, [&](const std::vector<BlockId>& ids) {
      fmt::format_to(out, "[{}]", fmt::join(ids, ","));
    });
    fmt::format_to(out, "]}}");
  });
  fmt::format_to(out, R"(],"status":"{}","results":[)", code_name(result.status.code()));
  write_list(out, result.slices, [&](const SliceResult& slice) {
    fmt::format_to(out, R"({{"tokens":{},"corrupted":{}}})", slice.tokens.size(), slice.corrupted);
  });
  return line + "]}";
}

}  // namespace kun
