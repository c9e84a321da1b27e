// A model that drafts with its own next-token module, through the whole engine: the text is the one
// it gives without, log probabilities included, and the module's cache is right wherever the
// model's is. The second shows in how often drafts are right: had a prefix hit, a chunk, a fork or
// a preemption spoilt the module's entries, the drafts would be others.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "backends/cpu/cpu_device.h"
#include "executor/self_drafter.h"
#include "reader.h"
#include "runtime/engine_setup.h"

namespace kun {
namespace {

constexpr int kVocabulary = 48;
constexpr int kOutputCount = 60;

struct Setting {
  int draft_count = 1;  // 0: no speculation
  int tokens_per_step = 512;
  int token_capacity = 4096;  // of the cache
  bool adaptive = false;
};

// What became of one choice.
struct Text {
  std::vector<SampledToken> tokens;
  std::optional<FinishReason> finish;
  int cached_count = 0;
};

class SelfSpeculation : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto device = open_cpu_device({.thread_count = 2, .compute = ComputeType::kFloat32});
    ASSERT_TRUE(device) << device.error().message();
    device_ = *std::move(device);
    const std::string path = std::string(KUN_TEST_DATA) + "/tiny-models/" + GetParam();
    BundleOptions options;
    for (const bool module : {false, true}) {
      options.next_token_module = module;
      auto bundle = load_bundle(path, *device_, options);
      ASSERT_TRUE(bundle) << bundle.error().message();
      (module ? bundle_ : plain_) = *std::move(bundle);
    }
  }

  std::unique_ptr<Engine> engine(const Setting& setting) const {
    const ModelBundle& bundle = setting.draft_count > 0 ? *bundle_ : *plain_;
    EngineSettings settings;
    settings.tokens_per_step_max = setting.tokens_per_step;
    settings.decode_slowdown_max = 0.0;  // steps do not depend on the clock
    settings.context_length_max = 512;
    for (const KvGroup& group : bundle.model->kv_layout().groups) {
      settings.kv_cache_bytes +=
          group.block_bytes() * (setting.token_capacity / group.tokens_per_block);
    }
    if (setting.draft_count > 0) {
      settings.speculator.config.method = DraftMethod::kMtp;
      settings.speculator.config.draft_count_max = setting.draft_count;
      settings.speculator.config.adaptive = setting.adaptive;
    }
    auto setup = make_engine(bundle, device_->ops(), settings);
    CHECK(setup.has_value());
    return std::move(setup->engine);
  }

  static GenerateRequest request(unsigned seed, int prompt_count, float temperature = 0.0F) {
    std::mt19937 random(seed);
    GenerateRequest made;
    for (int i = 0; i < prompt_count; ++i) {
      made.prompt.push_back(static_cast<Token>(random() % kVocabulary));
    }
    made.output_count_max = kOutputCount;
    made.sampling.temperature = temperature;
    made.sampling.seed = seed;
    made.sampling.logprob_count = 1;
    return made;
  }

  // Prompts around the ends of blocks, parameters of many kinds.
  static std::vector<GenerateRequest> requests(float temperature) {
    std::vector<GenerateRequest> made;
    for (const int count : {1, 2, 31, 32, 33, 64, 65, 90, 150}) {
      const auto i = static_cast<int>(made.size());
      made.push_back(request(static_cast<unsigned>(100 + i), count, temperature));
      if (i % 3 == 1) made.back().sampling.frequency_penalty = 0.3F;
      if (i % 4 == 2) made.back().choice_count = 3;
      if (i % 4 == 3) made.back().end_tokens = {7, 21};
      if (temperature > 0.0F) made.back().sampling.top_p = 0.9F;
    }
    return made;
  }

  // All at once, to their ends: [request][choice].
  static std::vector<std::vector<Text>> run(Engine& engine, std::vector<GenerateRequest> requests) {
    std::vector<std::unique_ptr<Reader>> readers;
    std::vector<std::vector<Text>> texts;
    for (GenerateRequest& request : requests) {
      texts.emplace_back(static_cast<std::size_t>(request.choice_count));
      readers.push_back(std::make_unique<Reader>(engine.generate(std::move(request))));
    }
    for (std::size_t i = 0; i < readers.size(); ++i) {
      for (std::size_t open = texts[i].size(); open > 0;) {
        const auto event = readers[i]->next();
        if (!event) return texts;
        Text& text = texts[i][event->choice];
        text.tokens.insert(text.tokens.end(), event->tokens.begin(), event->tokens.end());
        text.finish = event->finish;
        text.cached_count = event->usage.cached_count;
        if (event->finish) --open;
      }
    }
    return texts;
  }

  static std::vector<std::vector<Text>> run_one(Engine& engine, GenerateRequest request) {
    std::vector<GenerateRequest> one;
    one.push_back(std::move(request));
    return run(engine, std::move(one));
  }

  // To the last bit.
  static void expect_equal(const std::vector<std::vector<Text>>& given,
                           const std::vector<std::vector<Text>>& expected) {
    ASSERT_EQ(given.size(), expected.size());
    for (std::size_t i = 0; i < given.size(); ++i) {
      for (std::size_t choice = 0; choice < given[i].size(); ++choice) {
        const Text& a = given[i][choice];
        const Text& b = expected[i][choice];
        EXPECT_EQ(a.finish, b.finish);
        ASSERT_EQ(a.tokens.size(), b.tokens.size()) << "request " << i << " choice " << choice;
        for (std::size_t t = 0; t < a.tokens.size(); ++t) {
          ASSERT_EQ(a.tokens[t].token, b.tokens[t].token)
              << "request " << i << " choice " << choice << " output " << t;
          ASSERT_EQ(a.tokens[t].logprob, b.tokens[t].logprob)
              << "request " << i << " choice " << choice << " output " << t;
        }
      }
    }
  }

  // Accepted and all drafts that a request alone has.
  static std::pair<std::uint64_t, std::uint64_t> drafts_of(Engine& engine,
                                                           GenerateRequest request) {
    const EngineStats before = engine.stats();
    run_one(engine, std::move(request));
    const EngineStats after = engine.stats();
    return {after.accepted_token_count - before.accepted_token_count,
            after.draft_token_count - before.draft_token_count};
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<ModelBundle> plain_;
  std::unique_ptr<ModelBundle> bundle_;  // with its module
};

INSTANTIATE_TEST_SUITE_P(TinyModels, SelfSpeculation,
                         testing::Values("deepseek-v3-mtp", "deepseek-v32-mtp"),
                         [](const auto& test) {
                           return test.param == "deepseek-v3-mtp" ? "V3" : "V32";
                         });

TEST_P(SelfSpeculation, ChangesNoTokenAndNoLogprobAlone) {
  for (const float temperature : {0.0F, 0.7F}) {
    const GenerateRequest one = request(5, 40, temperature);
    const auto plain = engine({.draft_count = 0});
    const auto expected = run_one(*plain, one);
    for (const int drafts : {1, 3, 6}) {
      const auto drafted = engine({.draft_count = drafts});
      expect_equal(run_one(*drafted, one), expected);
      const EngineStats stats = drafted->stats();
      EXPECT_GT(stats.accepted_token_count, 10U);
      EXPECT_LT(stats.accepted_token_count, stats.draft_token_count);
      EXPECT_LT(stats.step_count, plain->stats().step_count);
      EXPECT_EQ(stats.accepted_by_position.size(), static_cast<std::size_t>(drafts));
    }
  }
}

TEST_P(SelfSpeculation, ChangesNoTokenAndNoLogprobInCompany) {
  for (const float temperature : {0.0F, 0.8F}) {
    const auto plain = engine({.draft_count = 0});
    const auto expected = run(*plain, requests(temperature));
    for (const Setting& setting :
         {Setting{.draft_count = 1}, Setting{.draft_count = 4, .adaptive = true},
          Setting{.draft_count = 2, .tokens_per_step = 24},
          Setting{.draft_count = 3, .token_capacity = 512}}) {
      const auto drafted = engine(setting);
      expect_equal(run(*drafted, requests(temperature)), expected);
      const EngineStats stats = drafted->stats();
      // How many pay is a matter of time.
      if (!setting.adaptive) {
        EXPECT_GT(stats.accepted_token_count, 20U);
      }
      // Again, on what the first round left in the cache; where that is small, until requests met
      // and one had to give way.
      const bool small = setting.token_capacity == 512;
      for (int round = 0; round == 0 || (small && round < 20); ++round) {
        expect_equal(run(*drafted, requests(temperature)), expected);
        if (drafted->stats().preemption_count > 0) break;
      }
      EXPECT_TRUE(small || drafted->stats().preemption_count == 0);
    }
  }
}

TEST_P(SelfSpeculation, GuessesAsWellBehindAPrefixHit) {
  const auto drafted = engine({.draft_count = 2});
  const GenerateRequest again = request(9, 70);
  const auto cold = drafts_of(*drafted, again);
  EXPECT_GT(cold.first, 8U);
  EXPECT_EQ(drafts_of(*drafted, again), cold);
  EXPECT_EQ(run_one(*drafted, again)[0][0].cached_count, 64);
}

TEST_P(SelfSpeculation, GuessesAsWellBehindPromptsInChunks) {
  const auto whole = engine({.draft_count = 2});
  const auto chunked = engine({.draft_count = 2, .tokens_per_step = 5});
  const GenerateRequest one = request(10, 70);
  const auto expected = drafts_of(*whole, one);
  EXPECT_GT(expected.first, 8U);
  EXPECT_EQ(drafts_of(*chunked, one), expected);
}

TEST_P(SelfSpeculation, GuessesAsWellForEachChoice) {
  for (const int prompt_count : {40, 64}) {  // they part in a block, and between two
    const GenerateRequest one = request(11, prompt_count);
    const auto alone = drafts_of(*engine({.draft_count = 2}), one);
    EXPECT_GT(alone.first, 8U);
    GenerateRequest three = one;
    three.choice_count = 3;  // greedy: all the same
    const auto together = drafts_of(*engine({.draft_count = 2}), std::move(three));
    EXPECT_EQ(together.first, 3 * alone.first);
    EXPECT_EQ(together.second, 3 * alone.second);
  }
}

// A text in a worker by itself, step by step, in blocks whose order is none.
class OneText {
 public:
  OneText(const ModelBundle& bundle, Ops& ops, int token_count)
      : layout_(bundle.model->kv_layout()) {
    WorkerOptions options;
    options.block_counts.assign(layout_.groups.size(), kBlockCount);
    options.vocabulary_limit = kVocabulary;
    options.guess_block_count = SelfDrafter::kGuessBlockCount;
    auto worker = Worker::create({std::shared_ptr<void>(), bundle.model.get()}, ops, options);
    CHECK(worker.has_value());
    worker_ = *std::move(worker);
    auto drafter = SelfDrafter::create(*worker_);
    CHECK(drafter.has_value());
    drafter_ = *std::move(drafter);
    std::mt19937 random(3);
    for (int i = 0; i < token_count; ++i) {
      text_.push_back(static_cast<Token>(random() % kVocabulary));
    }
  }

  // Computes the next `count` tokens, and drafts behind them, all wrong.
  void step(int count, int draft_count = 0) {
    PlanSlice slice;
    slice.sequence = 1;
    slice.first_position = computed_;
    slice.tokens.assign(text_.begin() + computed_, text_.begin() + computed_ + count);
    for (int i = 0; i < draft_count; ++i) {
      slice.tokens.push_back((text_[static_cast<std::size_t>(computed_ + count + i)] + 1) %
                             kVocabulary);
    }
    slice.draft_count = draft_count;
    slice.blocks.assign(layout_.groups.size(), blocks_);
    for (int left = draft_count; left >= 0; --left) {
      slice.wanted.push_back(static_cast<std::int32_t>(slice.tokens.size()) - 1 - left);
    }
    plan_.slices = {std::move(slice)};
    CHECK(worker_->forward(plan_).ok());
    plan_ = {};
    computed_ += count;
  }

  // The next step goes on in copies of all blocks, as a fork does.
  void fork() {
    for (int g = 0; g < std::ssize(layout_.groups); ++g) {
      for (const BlockId block : blocks_) plan_.block_copies.push_back({g, block, block + 1});
    }
    for (BlockId& block : blocks_) ++block;
  }

  // Some other text in the cache, in blocks of its own.
  void compute_another() {
    BatchPlan plan;
    PlanSlice& slice = plan.slices.emplace_back();
    slice.sequence = 2;
    slice.tokens.assign(20, 7);
    slice.blocks.assign(layout_.groups.size(), {kBlockCount - 1});
    CHECK(worker_->forward(plan).ok());
  }

  std::vector<Token> guesses() {
    SamplingParams params;
    params.temperature = 0.0F;
    const auto end = static_cast<std::size_t>(computed_) + 1;
    DraftWish wish{.sequence = 1,
                   .history = std::span(text_).first(end),
                   .prompt_count = 1,
                   .count_max = 6,
                   .params = &params,
                   .cache_salt = {},
                   .blocks = {}};
    wish.blocks.assign(layout_.groups.size(), blocks_);
    std::vector<std::vector<Token>> drafts(1);
    CHECK(drafter_->propose({&wish, 1}, drafts).ok());
    return drafts[0];
  }

 private:
  static constexpr int kBlockCount = 16;

  const KvLayout& layout_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<SelfDrafter> drafter_;
  std::vector<Token> text_;
  std::vector<BlockId> blocks_{8, 0, 4, 2};
  BatchPlan plan_;  // the next one
  int computed_ = 0;
};

// Entries of single tokens wait until somebody drafts, however long that takes (more of them than
// wait at a time), whatever wrong drafts lay in their places and wherever their blocks were copied.
TEST_P(SelfSpeculation, GuessesAsWellOnEntriesThatCameLate) {
  constexpr int kPrompt = 20;
  constexpr int kLength = 110;
  const auto text = [&] { return OneText(*bundle_, device_->ops(), kLength + 8); };
  OneText whole = text();
  whole.step(kLength);
  const std::vector<Token> expected = whole.guesses();
  ASSERT_EQ(expected.size(), 6U);
  OneText single = text();
  OneText drafted = text();
  OneText forked = text();
  OneText joined = text();
  for (OneText* one : {&single, &drafted, &forked, &joined}) one->step(kPrompt);
  for (int i = kPrompt; i < kLength; ++i) {
    single.step(1);
    drafted.step(1, i % 3);
    if (i % 25 == 0) forked.fork();
    forked.step(1);
    if (i % 10 == 0) joined.compute_another();
    joined.step(1);
  }
  EXPECT_EQ(single.guesses(), expected);
  EXPECT_EQ(drafted.guesses(), expected);
  EXPECT_EQ(forked.guesses(), expected);
  EXPECT_EQ(joined.guesses(), expected);
}

TEST_P(SelfSpeculation, GuessesForMoreSequencesThanAreComputedTogether) {
  std::vector<GenerateRequest> many;
  for (unsigned i = 0; i < 40; ++i) many.push_back(request(200 + i, 10 + static_cast<int>(i)));
  const auto plain = engine({.draft_count = 0});
  const auto drafted = engine({.draft_count = 1});
  expect_equal(run(*drafted, many), run(*plain, many));
  // Every step of 40 sequences has a draft for each but the first and the last.
  EXPECT_GT(drafted->stats().draft_token_count, 40U * kOutputCount / 3);
}

TEST_P(SelfSpeculation, StopsAndIsLetGoBetweenDrafts) {
  const auto drafted = engine({.draft_count = 3});
  const auto expected = run_one(*drafted, request(12, 20));
  int stop_count = 0;
  for (int kept = 1; kept < 40; kept += 6) {
    Reader reader(drafted->generate(request(12, 20)));
    std::vector<Token> seen;
    bool stopped = false;
    while (const auto event = reader.next()) {
      for (const SampledToken& token : event->tokens) seen.push_back(token.token);
      if (!stopped && std::ssize(seen) >= kept) {
        reader.stream().finish(0, kept);
        stopped = true;
      }
      if (!event->finish) continue;
      // The engine may have reached the end before it hears of the stop.
      const bool heard = event->finish == FinishReason::kStop;
      EXPECT_EQ(event->usage.output_count, heard ? kept : kOutputCount);
      stop_count += heard ? 1 : 0;
      break;
    }
    for (std::size_t i = 0; i < std::min<std::size_t>(seen.size(), 40); ++i) {
      EXPECT_EQ(seen[i], expected[0][0].tokens[i].token);
    }
    Reader dropped(drafted->generate(request(13, 20)));
    ASSERT_TRUE(dropped.next().has_value());
    dropped.let_go();
  }
  EXPECT_GT(stop_count, 0);
  expect_equal(run_one(*drafted, request(12, 20)), expected);
}

}  // namespace
}  // namespace kun
