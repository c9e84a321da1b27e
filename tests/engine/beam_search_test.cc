// Beam search through the whole engine against slow searches that know the model's formula and no
// cache: one that keeps beams too, and one that tries every text there is. The model reads its text
// back through the block tables, so that a fork that shares too much or too little says so.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/engine.h"
#include "executor/local_executor.h"
#include "host_ops.h"
#include "reader.h"

namespace kun {
namespace {

constexpr int kVocabulary = 6;
constexpr Token kEnd = 5;

std::uint32_t mix(std::uint32_t a, std::uint32_t b) {
  std::uint32_t x = (a ^ (b + 0x9E3779B9U + (a << 6U) + (a >> 2U))) * 0x85EBCA6BU;
  x = (x ^ (x >> 15U)) * 0xC2B2AE35U;
  return x ^ (x >> 16U);
}

// 24 bits: a float holds them.
std::uint32_t state_of(std::span<const Token> text) {
  std::uint32_t state = 1;
  for (const Token token : text) state = mix(state, static_cast<std::uint32_t>(token));
  return state & 0xFFFFFFU;
}

float logit_of(std::uint32_t state, Token token) {
  const std::uint32_t bits = mix(state, static_cast<std::uint32_t>(token) + 77U) & 0xFFFFU;
  const float logit = static_cast<float>(bits) / 16384.0F;
  return token == kEnd ? logit - 1.0F : logit;
}

class HashModel final : public Model {
 public:
  HashModel() { layout_.groups.push_back({4, {0}, {{"token, position", DType::kI32, 2}}}); }
  int vocabulary_size() const override { return kVocabulary; }
  int hidden_size() const override { return 1; }
  int context_length_max() const override { return 4096; }
  const KvLayout& kv_layout() const override { return layout_; }

  Status forward(const ForwardBatch& batch, const KvStorage& cache,
                 TensorView hidden) const override {
    const CachePlane& plane = cache.planes[0][0];
    const auto entry = [&](std::int32_t slot) {
      return reinterpret_cast<std::int32_t*>(plane.data) + std::ptrdiff_t{slot} * 2;
    };
    const GroupBatch& group = batch.groups[0];
    for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
      entry(group.slots[row])[0] = batch.tokens[row];
      entry(group.slots[row])[1] = batch.positions[row];
    }
    for (std::size_t i = 0; i < batch.wanted_rows.size(); ++i) {
      const std::int32_t row = batch.wanted_rows[i];
      const auto behind =
          std::ranges::upper_bound(group.slices, row, {}, &AttentionSlice::first_row);
      const AttentionSlice& slice = *(behind - 1);
      std::vector<Token> text;
      for (int p = 0; p <= batch.positions[static_cast<std::size_t>(row)]; ++p) {
        const std::int32_t* cell = entry(slice.blocks[static_cast<std::size_t>(p / 4)] * 4 + p % 4);
        if (cell[1] != p) return internal_error("a block holds what it should not");
        text.push_back(cell[0]);
      }
      *hidden.row<float>(static_cast<std::int64_t>(i)) = static_cast<float>(state_of(text));
    }
    return {};
  }

  Status logits(ConstTensorView hidden, TensorView out) const override {
    for (std::int64_t row = 0; row < hidden.rows(); ++row) {
      const auto state = static_cast<std::uint32_t>(*hidden.row<float>(row));
      for (Token t = 0; t < kVocabulary; ++t) out.row<float>(row)[t] = logit_of(state, t);
    }
    return {};
  }

 private:
  KvLayout layout_;
};

class BeamHouse {
 public:
  explicit BeamHouse(SchedulerLimits limits, int block_count = 4000) {
    const auto model = std::make_shared<HashModel>();
    EngineOptions options;
    options.limits = std::move(limits);
    options.limits.block_counts = {block_count};
    options.layout = model->kv_layout();
    options.vocabulary_size = kVocabulary;
    auto worker = Worker::create(model, ops_, {{block_count}, 0, 1 << 20});
    CHECK(worker.has_value());
    engine_ = std::make_unique<Engine>(std::move(options),
                                       std::make_unique<LocalExecutor>(*std::move(worker)));
  }
  Engine& engine() { return *engine_; }

 private:
  HostOps ops_;
  std::unique_ptr<Engine> engine_;
};

// --- The slow searches --------------------------------------------------------------------------

struct Text {
  std::vector<Token> tokens;
  std::vector<double> logprobs;
  bool ended = false;

  double sum() const { return std::accumulate(logprobs.begin(), logprobs.end(), 0.0); }
  double score(double penalty) const {
    return sum() / std::pow(static_cast<double>(tokens.size()), penalty);
  }
};

Text extended(const std::vector<Token>& prompt, const Text& text, Token next) {
  std::vector<Token> all = prompt;
  all.insert(all.end(), text.tokens.begin(), text.tokens.end());
  double sum = 0.0;
  for (Token t = 0; t < kVocabulary; ++t) sum += std::exp(double{logit_of(state_of(all), t)});
  Text longer = text;
  longer.tokens.push_back(next);
  longer.logprobs.push_back(double{logit_of(state_of(all), next)} - std::log(sum));
  longer.ended = next == kEnd;
  return longer;
}

void sort_by_score(std::vector<Text>& texts, double penalty) {
  std::ranges::stable_sort(
      texts, [&](const Text& a, const Text& b) { return a.score(penalty) > b.score(penalty); });
}

std::vector<Text> every_text(const std::vector<Token>& prompt, int length, double penalty) {
  std::vector<Text> done;
  std::vector<Text> open = {{}};
  for (int i = 0; i < length; ++i) {
    std::vector<Text> longer;
    for (const Text& text : open) {
      for (Token t = 0; t < kVocabulary; ++t) {
        Text next = extended(prompt, text, t);
        (next.ended || i + 1 == length ? done : longer).push_back(std::move(next));
      }
    }
    open = std::move(longer);
  }
  sort_by_score(done, penalty);
  return done;
}

// With early stopping "never", so that only the rule of the rounds is repeated here.
std::vector<Text> slow_beams(const std::vector<Token>& prompt, int width, int length,
                             double penalty) {
  std::vector<Text> done;
  std::vector<Text> beams = {{}};
  for (int i = 0; i < length && !beams.empty(); ++i) {
    std::vector<Text> all;
    for (const Text& beam : beams) {
      for (Token t = 0; t < kVocabulary; ++t) all.push_back(extended(prompt, beam, t));
    }
    sort_by_score(all, 0.0);
    beams.clear();
    for (int k = 0, found = 0; k < std::ssize(all) && found < width; ++k) {
      Text& text = all[static_cast<std::size_t>(k)];
      found += text.ended ? 0 : 1;
      (text.ended || i + 1 == length ? done : beams).push_back(std::move(text));
    }
  }
  sort_by_score(done, penalty);
  return done;
}

// --- The engine's -------------------------------------------------------------------------------

GenerateRequest ask_beams(std::vector<Token> prompt, int width, int count, int length,
                          double penalty) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.output_count_max = length;
  request.choice_count = count;
  request.end_tokens = {kEnd};
  request.beams = {width, penalty, EarlyStopping::kNever};
  return request;
}

struct Found {
  std::vector<Token> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> top;
  FinishReason finish = FinishReason::kError;
  Status status;
};

std::vector<Found> read_found(Reader& reader, std::size_t count) {
  std::vector<Found> all(count);
  for (std::size_t open = count; open > 0;) {
    const auto event = reader.next();
    if (!event.has_value() || !event->finish.has_value()) {
      ADD_FAILURE() << "each text comes in one piece";
      return all;
    }
    Found& found = all[event->choice];
    for (const SampledToken& token : event->tokens) {
      found.tokens.push_back(token.token);
      found.logprobs.push_back(token.logprob);
      found.top.push_back(token.top);
    }
    found.finish = *event->finish;
    found.status = event->status;
    EXPECT_EQ(event->end_token.has_value(), found.status.ok() && found.tokens.back() == kEnd);
    --open;
  }
  return all;
}

std::vector<Found> search(BeamHouse& house, GenerateRequest request) {
  const auto count = static_cast<std::size_t>(request.choice_count);
  Reader reader(house.engine().generate(std::move(request)));
  return read_found(reader, count);
}

void expect_same(const std::vector<Found>& found, const std::vector<Text>& expected) {
  ASSERT_GE(expected.size(), found.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(found[i].status.ok()) << found[i].status.message();
    EXPECT_EQ(found[i].tokens, expected[i].tokens) << "text " << i;
    ASSERT_EQ(found[i].logprobs.size(), expected[i].logprobs.size());
    for (std::size_t t = 0; t < found[i].logprobs.size(); ++t) {
      EXPECT_NEAR(found[i].logprobs[t], expected[i].logprobs[t], 1e-5);
    }
    EXPECT_EQ(found[i].finish, expected[i].ended ? FinishReason::kStop : FinishReason::kLength);
  }
}

TEST(BeamSearchEngine, FindsTheBestOfAllTextsWhenEveryTextHasABeam) {
  SchedulerLimits limits;
  limits.sequences_running_max = 1024;
  BeamHouse house(limits);
  for (const double penalty : {0.0, 1.0, 2.0}) {
    const std::vector<Token> prompt = {1, 2, 3, 0, 4, 1};
    const auto found = search(house, ask_beams(prompt, 625, 40, 4, penalty));
    expect_same(found, every_text(prompt, 4, penalty));
  }
}

TEST(BeamSearchEngine, KeepsTheBeamsThatASlowSearchKeeps) {
  BeamHouse house({});
  for (Token first = 0; first < 5; ++first) {
    for (const int width : {1, 2, 3, 7}) {
      const std::vector<Token> prompt = {first, 2, 2};
      const auto found = search(house, ask_beams(prompt, width, width, 9, 1.0));
      expect_same(found, slow_beams(prompt, width, 9, 1.0));
    }
  }
  EXPECT_EQ(house.engine().stats().cache_usage, 0.0) << "every block was given back";
}

TEST(BeamSearchEngine, DoesNotDependOnCompanyChunksOrMemory) {
  const std::vector<Token> prompt = {4, 3, 2, 1, 0, 1, 2, 3, 4, 0, 0};
  const std::vector<Text> expected = slow_beams(prompt, 4, 12, 1.0);
  for (const int block_count : {6, 9, 14, 400}) {  // 6 of 4 tokens hold one beam
    for (const bool caching : {true, false}) {
      SchedulerLimits limits;
      limits.tokens_per_step_max = 8;
      limits.tokens_per_step_min = 1;
      limits.sequences_running_max = 8;
      limits.prefix_caching = caching;
      BeamHouse house(limits, block_count);
      std::vector<std::unique_ptr<Reader>> company;
      for (Token t = 0; t < 3; ++t) {
        GenerateRequest talk;
        talk.prompt = {t, t, t};
        talk.output_count_max = 15;
        talk.ignore_end_tokens = true;
        company.push_back(std::make_unique<Reader>(house.engine().generate(std::move(talk))));
      }
      GenerateRequest request = ask_beams(prompt, 4, 3, 12, 1.0);
      request.priority = block_count == 14 ? 1 : 0;
      GenerateRequest again = request;
      Reader first(house.engine().generate(std::move(request)));
      Reader second(house.engine().generate(std::move(again)));
      expect_same(read_found(first, 3), expected);
      expect_same(read_found(second, 3), expected);
      for (const auto& reader : company) EXPECT_EQ(reader->read().tokens.size(), 15U);
      EXPECT_EQ(house.engine().stats().cache_usage, 0.0);
    }
  }
}

TEST(BeamSearchEngine, HonoursWhatARequestForbids) {
  BeamHouse house({});
  GenerateRequest request = ask_beams({1, 1}, 3, 3, 5, 1.0);
  request.sampling.allowed_tokens = {0, 2, kEnd};
  request.sampling.output_count_min = 3;
  request.sampling.end_tokens = {kEnd};
  request.sampling.bad_words = {{2, 2}};
  request.sampling.logprob_count = 2;
  for (const Found& found : search(house, std::move(request))) {
    ASSERT_TRUE(found.status.ok()) << found.status.message();
    EXPECT_GE(found.tokens.size(), 3U);
    for (std::size_t i = 0; i < found.tokens.size(); ++i) {
      const Token token = found.tokens[i];
      EXPECT_TRUE(token == 0 || token == 2 || (token == kEnd && i >= 3)) << token;
      EXPECT_FALSE(i > 0 && token == 2 && found.tokens[i - 1] == 2);
      ASSERT_EQ(found.top[i].size(), 2U) << "the model's own likeliest, allowed or not";
      EXPECT_GE(found.top[i][0].logprob, found.logprobs[i]);
    }
  }
}

TEST(BeamSearchEngine, SaysSoWhenThereAreFewerTextsThanAskedFor) {
  BeamHouse house({});
  GenerateRequest request = ask_beams({1}, 4, 4, 2, 1.0);
  request.sampling.allowed_tokens = {3};
  const auto found = search(house, std::move(request));
  EXPECT_EQ(found[0].tokens, (std::vector<Token>{3, 3}));
  EXPECT_EQ(found[3].finish, FinishReason::kError);
  EXPECT_EQ(found[3].status.code(), StatusCode::kInvalidArgument);
}

TEST(BeamSearchEngine, LetsGoOfEverythingWhenItsReaderDoes) {
  SchedulerLimits limits;
  limits.tokens_per_step_max = 8;
  limits.sequences_running_max = 8;
  BeamHouse house(limits, 9);
  {
    Reader reader(house.engine().generate(ask_beams({1, 2, 3, 4}, 6, 1, 20, 1.0)));
    while (house.engine().stats().step_count < 10) std::this_thread::yield();
    reader.let_go();
  }
  const auto found = search(house, ask_beams({2}, 2, 2, 5, 1.0));
  expect_same(found, slow_beams({2}, 2, 5, 1.0));
  while (house.engine().stats().running_count > 0) std::this_thread::yield();
  EXPECT_EQ(house.engine().stats().cache_usage, 0.0);
}

TEST(BeamSearchEngine, RefusesWhatItCannotRun) {
  SchedulerLimits limits;
  limits.sequences_running_max = 4;
  BeamHouse house(limits);
  const auto refusal = [&](int width, int count) {
    Reader reader(house.engine().generate(ask_beams({1}, width, count, 5, 1.0)));
    const auto event = reader.next();
    return event.has_value() ? event->status.code() : StatusCode::kOk;
  };
  EXPECT_EQ(refusal(5, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(2, 3), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kun
