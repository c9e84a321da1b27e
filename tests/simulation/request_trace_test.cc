// Recorded requests of a real service, replayed: the prefix cache must find every block that the
// trace says was seen before, and the scheduler must get through the load without standing still.
// A recorded block of 512 tokens becomes one of kTokensPerId here, so that the whole trace of
// twelve thousand requests takes a second; what is shared with whom stays as recorded.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <unordered_set>

#include "json_reader.h"
#include "kv/prefix_cache.h"
#include "scheduler/scheduler.h"
#include "simulated_worker.h"

namespace kun {
namespace {

constexpr int kTokensPerId = 4;
constexpr int kRecordedTokensPerId = 512;
constexpr int kScale = kRecordedTokensPerId / kTokensPerId;
constexpr int kOutputScale = 16;  // answers shrink less than prompts: they are what grows

struct Request {
  std::int64_t arrival_ms = 0;
  std::vector<Token> prompt;  // kTokensPerId of each recorded id, then one of its own
  int output_count = 0;
};

struct RequestTrace {
  std::vector<Request> requests;
  std::int64_t id_count = 0;
  std::int64_t seen_count = 0;  // ids that stand in an earlier request: what can be a hit at most

  double share() const { return static_cast<double>(seen_count) / static_cast<double>(id_count); }
};

// Empty when the file is not there; a line that does not parse fails the test.
RequestTrace read_trace(const std::string& path, std::size_t request_count_max) {
  RequestTrace trace;
  std::unordered_set<std::int64_t> seen;
  std::ifstream file(path);
  for (std::string line; trace.requests.size() < request_count_max && std::getline(file, line);) {
    const std::optional<JsonValue> record = JsonReader::read(line);
    if (!record || (*record)["hash_ids"].items.empty()) {
      ADD_FAILURE() << path << ": line " << trace.requests.size() + 1 << " is no request";
      return {};
    }
    Request& request = trace.requests.emplace_back();
    request.arrival_ms = (*record)["timestamp"].number;
    request.output_count = static_cast<int>(1 + (*record)["output_length"].number / kOutputScale);
    const std::vector<JsonValue>& ids = (*record)["hash_ids"].items;
    for (const JsonValue& id : ids) {
      const auto token = static_cast<Token>(id.number);
      request.prompt.insert(request.prompt.end(), kTokensPerId, token);
      if (seen.contains(id.number)) ++trace.seen_count;
    }
    for (const JsonValue& id : ids) seen.insert(id.number);
    trace.id_count += std::ssize(ids);
    request.prompt.push_back(static_cast<Token>(trace.requests.size()));  // always to be computed
  }
  return trace;
}

struct TraceFile {
  const char* name;
  const char* path;
  std::int64_t id_count;
  double share;
};

void PrintTo(const TraceFile& file, std::ostream* out) {
  *out << file.name;
}

constexpr TraceFile kExcerpts[] = {
    {"conversation", KUN_TEST_DATA "/request_traces/conversation_400.jsonl", 11'349, 0.135},
    {"synthetic", KUN_TEST_DATA "/request_traces/synthetic_200.jsonl", 5'330, 0.061},
};
constexpr TraceFile kWholeTraces[] = {
    {"conversation", KUN_SHARED_DATA "/traces/mooncake_fast25_conversation.jsonl", 288'500, 0.366},
    {"synthetic", KUN_SHARED_DATA "/traces/mooncake_fast25_synthetic.jsonl", 121'877, 0.640},
};

std::string name_of(const testing::TestParamInfo<TraceFile>& file) {
  return file.param.name;
}

// --- Pool and prefix cache alone -----------------------------------------------------------------

// Blocks of all prompts, one request after the other, that `block_count` blocks of cache had.
std::int64_t hit_count(const RequestTrace& trace, int block_count) {
  std::deque<KvBlockPool> pools;
  pools.emplace_back(block_count, kTokensPerId);
  const std::uint64_t key[2] = {1, 2};
  const KvLayout layout{{{.tokens_per_block = kTokensPerId}}};
  PrefixCache cache(pools, layout, key);
  std::int64_t hits = 0;
  for (const Request& request : trace.requests) {
    PrefixChain chain = cache.chain("");
    std::vector<BlockTable> tables;
    tables.emplace_back(pools[0]);
    hits += cache.match(request.prompt, chain, tables) / kTokensPerId;
    const int needed = static_cast<int>(std::ssize(request.prompt)) / kTokensPerId + 1;
    while (tables[0].size() < needed) {
      std::optional<BlockRef> block = pools[0].allocate();
      if (!block) {
        ADD_FAILURE() << "no block is free although nobody holds any";
        return -1;
      }
      tables[0].append(*std::move(block));
    }
    cache.publish(request.prompt, chain, tables);
  }
  EXPECT_EQ(pools[0].free_count(), block_count) << "a block leaked";
  return hits;
}

void expect_promised_hits(const TraceFile& file) {
  const RequestTrace trace = read_trace(file.path, SIZE_MAX);
  ASSERT_EQ(trace.id_count, file.id_count);
  ASSERT_NEAR(trace.share(), file.share, 0.0005);
  const std::int64_t unlimited = trace.id_count - trace.seen_count + std::ssize(trace.requests) + 1;
  const std::int64_t hits = hit_count(trace, static_cast<int>(unlimited));
  EXPECT_EQ(hits, trace.seen_count);
  const std::int64_t hits_in_less = hit_count(trace, static_cast<int>(unlimited / 8));
  EXPECT_LE(hits_in_less, hits);
  std::printf(
      "%s: %zu requests, %lld of %lld blocks found (%.1f %%), with an eighth of the cache"
      " %.1f %%\n",
      file.name, trace.requests.size(), static_cast<long long>(hits),
      static_cast<long long>(trace.id_count),
      100.0 * static_cast<double>(hits) / static_cast<double>(trace.id_count),
      100.0 * static_cast<double>(hits_in_less) / static_cast<double>(trace.id_count));
}

class ExcerptTrace : public testing::TestWithParam<TraceFile> {};
INSTANTIATE_TEST_SUITE_P(Mooncake, ExcerptTrace, testing::ValuesIn(kExcerpts), name_of);

TEST_P(ExcerptTrace, FindsEveryBlockSeenBeforeInAnUnlimitedCache) {
  expect_promised_hits(GetParam());
}

class WholeTrace : public testing::TestWithParam<TraceFile> {};
INSTANTIATE_TEST_SUITE_P(Mooncake, WholeTrace, testing::ValuesIn(kWholeTraces), name_of);

TEST_P(WholeTrace, FindsEveryBlockSeenBeforeInAnUnlimitedCache) {
  if (!std::ifstream(GetParam().path).is_open()) GTEST_SKIP() << GetParam().path << " is not there";
  expect_promised_hits(GetParam());
}

// --- The scheduler -------------------------------------------------------------------------------

// The same load through the scheduler, against a worker that computes in a cache of its own. Time
// is simulated: a step costs what one of a real model of that speed would.
class TraceReplay {
 public:
  struct Outcome {
    std::string problem;
    Scheduler::Stats stats;
    int ended_count = 0;
    int longest_stall = 0;  // steps in a row that did not advance what was first in line
  };

  explicit TraceReplay(int block_count, int running_max) {
    SchedulerLimits limits;
    limits.tokens_per_step_max = 256;
    limits.tokens_per_step_min = 32;
    limits.sequences_running_max = running_max;
    limits.sequences_waiting_max = 100'000;
    limits.context_length_max = 4096;
    limits.block_counts = {block_count};
    layout_.groups.resize(1);
    layout_.groups[0].tokens_per_block = kTokensPerId;
    scheduler_ = std::make_unique<Scheduler>(limits, layout_);
    worker_ = std::make_unique<SimulatedWorker>(layout_, limits.block_counts);
  }

  // Arrivals `hurry` times as dense as recorded; 0: each when the one before has ended.
  Outcome run(const RequestTrace& trace, int hurry) {
    hurry_ = hurry;
    std::size_t arrived = 0;
    std::int64_t work = 0;
    for (const Request& request : trace.requests) {
      work += std::ssize(request.prompt) + request.output_count;
    }
    // Every step that has work computes a token at least; preemption may repeat some.
    for (std::int64_t step_bound = 4 * work + 1000; step_bound > 0; --step_bound) {
      while (arrived < trace.requests.size() && is_due(trace.requests[arrived])) {
        add(trace.requests[arrived], static_cast<SequenceId>(arrived + 1));
        ++arrived;
      }
      if (!outcome_.problem.empty()) return outcome_;
      if (scheduler_->idle()) {
        if (arrived == trace.requests.size()) return finish();
        if (hurry_ > 0) now_ = std::max(now_, arrival(trace.requests[arrived]));
        continue;
      }
      step();
    }
    outcome_.problem = "the load does not end: somebody starves";
    return outcome_;
  }

 private:
  Microseconds arrival(const Request& request) const { return request.arrival_ms * 1000 / hurry_; }

  bool is_due(const Request& request) const {
    return hurry_ > 0 ? arrival(request) <= now_ : scheduler_->idle();
  }

  void add(const Request& request, SequenceId id) {
    SequenceSpec spec;
    spec.id = id;
    spec.prompt = request.prompt;
    spec.output_count_max = request.output_count;
    spec.ignore_end_tokens = true;
    const Status status = scheduler_->add(std::move(spec), now_);
    if (!status.ok()) outcome_.problem = status.message();
    waiting_[id] = {request.prompt, 0};
  }

  void step() {
    const BatchPlan& plan = scheduler_->plan(now_);
    std::int64_t tokens = 0;
    bool first_advances = false;
    for (const PlanSlice& slice : plan.slices) {
      tokens += std::ssize(slice.tokens);
      first_advances = first_advances || slice.sequence == waiting_.begin()->first;
    }
    stall_ = first_advances ? 0 : stall_ + 1;
    outcome_.longest_stall = std::max(outcome_.longest_stall, stall_);
    // 30 ms and 4 us for each recorded token: about what the service behind the trace took.
    now_ += 30'000 + tokens * kScale * 4;
    const StepResult result = worker_->run(plan, scheduler_->sampling());
    for (const Scheduler::Progress& progress : scheduler_->apply(result, now_)) take(progress);
  }

  void take(const Scheduler::Progress& progress) {
    auto& [history, outputs] = waiting_.at(progress.sequence);
    for (const SampledToken& token : progress.tokens) {
      if (token.token != reference_token(history, layout_, 0, 0)) {
        outcome_.problem = fmt::format("request {}: a wrong token", progress.sequence);
      }
      history.push_back(token.token);
      ++outputs;
    }
    if (progress.finish == Scheduler::Finish::kNone) return;
    if (progress.finish != Scheduler::Finish::kLength || outputs != progress.output_count) {
      outcome_.problem = fmt::format("request {} ended early", progress.sequence);
    }
    waiting_.erase(progress.sequence);
    ++outcome_.ended_count;
  }

  Outcome finish() {
    outcome_.stats = scheduler_->stats();
    if (outcome_.stats.free_block_count != outcome_.stats.total_block_count) {
      outcome_.problem = "a block leaked";
    }
    return outcome_;
  }

  KvLayout layout_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<SimulatedWorker> worker_;
  std::map<SequenceId, std::pair<std::vector<Token>, int>> waiting_;  // history, outputs
  Microseconds now_ = 0;
  int hurry_ = 1;
  int stall_ = 0;
  Outcome outcome_;
};

std::int64_t hit_blocks(const TraceReplay::Outcome& outcome) {
  return static_cast<std::int64_t>(outcome.stats.prefix_hit_token_count) / kTokensPerId;
}

TEST_P(ExcerptTrace, IsServedOneByOneWithThePromisedHits) {
  const RequestTrace trace = read_trace(GetParam().path, SIZE_MAX);
  ASSERT_EQ(trace.id_count, GetParam().id_count);
  const TraceReplay::Outcome outcome = TraceReplay(40'000, 8).run(trace, /*hurry=*/0);
  EXPECT_EQ(outcome.problem, "");
  EXPECT_EQ(outcome.ended_count, std::ssize(trace.requests));
  EXPECT_EQ(outcome.longest_stall, 0);
  EXPECT_EQ(hit_blocks(outcome), trace.seen_count);
}

void expect_steady_service(const TraceFile& file) {
  const RequestTrace trace = read_trace(file.path, SIZE_MAX);
  ASSERT_EQ(trace.id_count, file.id_count);
  std::int64_t unlimited = trace.id_count;
  for (const Request& request : trace.requests)
    unlimited += 2 + request.output_count / kTokensPerId;
  const TraceReplay::Outcome outcome =
      TraceReplay(static_cast<int>(unlimited), 64).run(trace, /*hurry=*/1);
  EXPECT_EQ(outcome.problem, "");
  EXPECT_EQ(outcome.ended_count, std::ssize(trace.requests));
  EXPECT_EQ(outcome.longest_stall, 0);
  // Requests that arrive together cannot find what the other is about to compute.
  EXPECT_LE(hit_blocks(outcome), trace.seen_count);
  EXPECT_GE(hit_blocks(outcome), trace.seen_count * 95 / 100);
  std::printf("%s at its pace: %lld of %lld promised blocks found\n", file.name,
              static_cast<long long>(hit_blocks(outcome)),
              static_cast<long long>(trace.seen_count));
}

TEST_P(ExcerptTrace, IsServedAtItsPaceWithoutAStall) {
  expect_steady_service(GetParam());
}

TEST_P(WholeTrace, IsServedAtItsPaceWithoutAStall) {
  if (!std::ifstream(GetParam().path).is_open()) GTEST_SKIP() << GetParam().path << " is not there";
  expect_steady_service(GetParam());
}

TEST_P(ExcerptTrace, IsServedInACacheThatHoldsFewPromptsWithoutAStall) {
  const RequestTrace trace = read_trace(GetParam().path, SIZE_MAX);
  ASSERT_EQ(trace.id_count, GetParam().id_count);
  const TraceReplay::Outcome outcome = TraceReplay(400, 32).run(trace, /*hurry=*/50);
  EXPECT_EQ(outcome.problem, "");
  EXPECT_EQ(outcome.ended_count, std::ssize(trace.requests));
  EXPECT_EQ(outcome.longest_stall, 0);
  EXPECT_LE(hit_blocks(outcome), trace.seen_count);
  EXPECT_GT(outcome.stats.preemption_count, 0U) << "the cache was not small";
}

}  // namespace
}  // namespace kun
