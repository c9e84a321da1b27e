// What the engine promises its callers, one promise a test, over a scripted model.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "house.h"

namespace kun {
namespace {

using std::chrono::milliseconds;

constexpr const char* kGreeting = "prompt *\n emit \"Hello, world\"\n";

TEST(Engine, StreamsTheModelsAnswerAndItsEnd) {
  House house(kGreeting);
  const Answer answer = house.answer(ask("Hi?"));
  EXPECT_EQ(answer.text(), "Hello, world");
  EXPECT_EQ(answer.finish, FinishReason::kStop);
  EXPECT_EQ(answer.end_token, Token{256});
  EXPECT_EQ(answer.tokens.back(), 256);
  EXPECT_EQ(answer.usage.prompt_count, 3);
  EXPECT_EQ(answer.usage.output_count, 13);
  EXPECT_TRUE(answer.status.ok());
}

TEST(Engine, EndsAtTheOutputLimit) {
  House house(kGreeting);
  const Answer answer = house.answer(ask("Hi?", 5));
  EXPECT_EQ(answer.text(), "Hello");
  EXPECT_EQ(answer.finish, FinishReason::kLength);
  EXPECT_FALSE(answer.end_token.has_value());
  EXPECT_EQ(answer.usage.output_count, 5);
}

TEST(Engine, GoesOnBehindEndTokensWhenTheyAreIgnored) {
  House house(kGreeting);
  GenerateRequest request = ask("Hi?", 20);
  request.ignore_end_tokens = true;
  const Answer answer = house.answer(std::move(request));
  EXPECT_EQ(answer.tokens.size(), 20U);
  EXPECT_EQ(answer.text(), "Hello, worldHello, ");
  EXPECT_EQ(answer.finish, FinishReason::kLength);
}

TEST(Engine, ForbidsEndTokensBelowTheMinimumOutput) {
  House house(kGreeting);
  GenerateRequest request = ask("Hi?", 20);
  request.sampling.output_count_min = 14;
  const Answer answer = house.answer(std::move(request));
  EXPECT_GE(answer.tokens.size(), 14U);
  EXPECT_NE(answer.tokens[12], 256);
}

TEST(Engine, GivesEveryChoiceItsOwnStream) {
  House house(kGreeting);
  GenerateRequest request = ask("Hi?");
  request.choice_count = 3;
  auto answers = Reader(house.engine().generate(std::move(request))).read_all(3);
  ASSERT_EQ(answers.size(), 3U);
  for (std::uint32_t choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(answers[choice].text(), "Hello, world");
    EXPECT_EQ(answers[choice].finish, FinishReason::kStop);
  }
}

TEST(Engine, GivesLogprobsWhenAskedTo) {
  House house(kGreeting);
  GenerateRequest request = ask("Hi?");
  request.sampling.logprob_count = 2;
  Reader reader(house.engine().generate(std::move(request)));
  const auto event = reader.next();
  ASSERT_TRUE(event.has_value());
  ASSERT_EQ(event->tokens.front().top.size(), 2U);
  EXPECT_EQ(event->tokens.front().top.front().token, 'H');
  EXPECT_NEAR(event->tokens.front().logprob, 0.0, 1e-6);
  EXPECT_NEAR(event->tokens.front().top.back().logprob, -50.0, 1e-4);
}

TEST(Engine, FindsTheSharedPrefixOfLaterPrompts) {
  House house("block 4\nprompt *\n emit \"ok\"\n");
  const std::string prefix = "a prompt that many requests share. ";
  EXPECT_EQ(house.answer(ask(prefix + "1")).usage.cached_count, 0);
  const Answer second = house.answer(ask(prefix + "2"));
  EXPECT_EQ(second.usage.cached_count, 32);
  EXPECT_EQ(second.text(), "ok");
  GenerateRequest salted = ask(prefix + "3");
  salted.cache_salt = "another tenant";
  EXPECT_EQ(house.answer(std::move(salted)).usage.cached_count, 0);
}

// --- Refusals
// -------------------------------------------------------------------------------------

void expect_refused(const Answer& answer, StatusCode code) {
  EXPECT_EQ(answer.event_count, 1);
  EXPECT_TRUE(answer.tokens.empty());
  EXPECT_EQ(answer.finish, FinishReason::kError);
  EXPECT_EQ(answer.status.code(), code) << answer.status.message();
  EXPECT_FALSE(answer.status.message().empty());
}

TEST(Engine, RefusesWhatCanNeverRunInTheFirstEvent) {
  House house(kGreeting);
  expect_refused(house.answer(ask("")), StatusCode::kInvalidArgument);
  expect_refused(house.answer(ask(std::string(5000, 'x'))), StatusCode::kInvalidArgument);
  expect_refused(house.answer(ask("Hi", 0)), StatusCode::kInvalidArgument);
  for (const Token token : {-1, 257, 1'000'000'000}) {
    GenerateRequest request = ask("Hi");
    request.prompt.push_back(token);
    expect_refused(house.answer(std::move(request)), StatusCode::kInvalidArgument);
  }
  for (const int choice_count : {0, -1, 2'000'000'000}) {
    GenerateRequest request = ask("Hi");
    request.choice_count = choice_count;
    expect_refused(house.answer(std::move(request)), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(house.answer(ask("Hi")).text(), "Hello, world");
}

TEST(Engine, RefusesNewRequestsWhileDrainingAndFinishesTheOldOnes) {
  House house("prompt *\n stall_ms 50\n emit \"slow\"\n");
  Reader running(house.engine().generate(ask("Hi?")));
  house.engine().drain();
  expect_refused(house.answer(ask("Me too?")), StatusCode::kUnavailable);
  EXPECT_EQ(running.read().text(), "slow");
  EXPECT_TRUE(house.engine().healthy());
}

TEST(Engine, RefusesWhatFindsTheWaitingLineFull) {
  HouseOptions options;
  options.limits.sequences_running_max = 1;
  options.limits.sequences_waiting_max = 2;
  House house("step_us 20000\nprompt *\n emit \"abc\"\n", std::move(options));
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 12; ++i) {
    readers.push_back(std::make_unique<Reader>(house.engine().generate(ask("Hi?"))));
  }
  int served = 0;
  int refused = 0;
  for (const auto& reader : readers) {
    const Answer answer = reader->read();
    if (answer.text() == "abc") ++served;
    if (answer.status.code() == StatusCode::kResourceExhausted) ++refused;
  }
  EXPECT_EQ(served + refused, 12);
  EXPECT_GE(served, 2);
  EXPECT_GE(refused, 5);
}

// --- Ends
// -----------------------------------------------------------------------------------------

TEST(Engine, LettingGoOfTheStreamFreesItsBlocks) {
  House house("step_us 1000\nprompt *\n repeat 1000 \"a \"\n");
  Reader reader(house.engine().generate(ask("Hi?", 4000)));
  ASSERT_TRUE(reader.next().has_value());
  ASSERT_TRUE(house.wait_for([](const EngineStats& s) { return s.running_count == 1; }));
  reader.let_go();
  EXPECT_TRUE(house.wait_for(
      [](const EngineStats& s) { return s.running_count == 0 && s.cache_usage == 0.0; }));
  EXPECT_LT(house.engine().stats().generated_token_count, 1000U);
}

TEST(Engine, AReaderThatFindsAStopStringEndsTheChoiceWithoutBillingTheRest) {
  House house("step_us 1000\nprompt *\n emit \"one two three\" \n repeat 500 \" more\"\n");
  Reader reader(house.engine().generate(ask("Hi?", 4000)));
  std::vector<Token> tokens;
  while (text_of(tokens).find("three") == std::string::npos) {
    const auto event = reader.next();
    ASSERT_TRUE(event.has_value());
    ASSERT_FALSE(event->finish.has_value());
    for (const SampledToken& token : event->tokens) tokens.push_back(token.token);
  }
  reader.stream().finish(0, 8);
  const auto last = reader.next();
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->finish, FinishReason::kStop);
  EXPECT_FALSE(last->end_token.has_value());
  EXPECT_TRUE(last->tokens.empty());
  EXPECT_EQ(last->usage.output_count, 8);
  EXPECT_TRUE(house.wait_for([](const EngineStats& s) { return s.running_count == 0; }));
  EXPECT_LT(house.engine().stats().generated_token_count, 1000U);
}

TEST(Engine, StoppingOneChoiceLeavesTheOthersRunning) {
  House house("step_us 1000\nprompt *\n emit \"0123456789\"\n");
  GenerateRequest request = ask("Hi?");
  request.choice_count = 3;
  Reader reader(house.engine().generate(std::move(request)));
  reader.stream().finish(1, 0);
  auto answers = reader.read_all(3);
  EXPECT_EQ(answers[0].text(), "0123456789");
  EXPECT_EQ(answers[1].text(), "");
  EXPECT_EQ(answers[1].finish, FinishReason::kStop);
  EXPECT_EQ(answers[1].usage.output_count, 0);
  EXPECT_EQ(answers[2].text(), "0123456789");
}

TEST(Engine, DestructionEndsEveryStreamAsAborted) {
  House house("step_us 1000\nprompt *\n repeat 1000 \"a \"\n");
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 20; ++i) {
    GenerateRequest request = ask("Hi?", 4000);
    request.choice_count = 2;
    readers.push_back(std::make_unique<Reader>(house.engine().generate(std::move(request))));
    if (i == 10) {
      EXPECT_TRUE(readers.front()->next().has_value());
    }
  }
  house.tear_down();
  for (const auto& reader : readers) {
    auto answers = reader->read_all(2);
    for (std::uint32_t choice = 0; choice < 2; ++choice) {
      EXPECT_EQ(answers[choice].finish, FinishReason::kAbort);
      EXPECT_TRUE(answers[choice].status.ok());
    }
  }
}

// --- Faults
// ---------------------------------------------------------------------------------------

TEST(Engine, AFailedStepFailsItsSequencesAndNotTheEngine) {
  House house(
      "prompt contains \"fail\"\n emit \"ab\"\n error \"the device is lost\"\n"
      "prompt *\n emit \"fine\"\n");
  const Answer failed = house.answer(ask("please fail"));
  EXPECT_EQ(failed.text(), "ab");
  EXPECT_EQ(failed.finish, FinishReason::kError);
  EXPECT_NE(failed.status.message().find("the device is lost"), std::string::npos);
  EXPECT_EQ(house.answer(ask("be")).text(), "fine");
  EXPECT_TRUE(house.engine().healthy());
}

TEST(Engine, ANanRowEndsItsOwnSequenceOnly) {
  House house(
      "step_us 500\nprompt contains \"bad\"\n emit \"abc\"\n nan\n"
      "prompt *\n emit \"a long and healthy answer\"\n");
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 12; ++i) {
    readers.push_back(std::make_unique<Reader>(
        house.engine().generate(ask(i % 3 == 0 ? "bad prompt" : "good prompt"))));
  }
  for (int i = 0; i < 12; ++i) {
    const Answer answer = readers[static_cast<std::size_t>(i)]->read();
    if (i % 3 == 0) {
      EXPECT_EQ(answer.text(), "abc");
      EXPECT_EQ(answer.finish, FinishReason::kError);
      EXPECT_EQ(answer.status.code(), StatusCode::kInternal);
    } else {
      EXPECT_EQ(answer.text(), "a long and healthy answer");
      EXPECT_EQ(answer.finish, FinishReason::kStop);
    }
  }
  EXPECT_EQ(house.engine().stats().corrupted_count, 4U);
}

class ThrowingModel final : public Model {
 public:
  explicit ThrowingModel(std::unique_ptr<const Model> real) : real_(std::move(real)) {}
  int vocabulary_size() const override { return real_->vocabulary_size(); }
  int hidden_size() const override { return real_->hidden_size(); }
  int context_length_max() const override { return real_->context_length_max(); }
  const KvLayout& kv_layout() const override { return real_->kv_layout(); }
  Status forward(const ForwardBatch&, const KvStorage&, TensorView) const override {
    throw std::bad_alloc();
  }
  Status logits(ConstTensorView, TensorView) const override { return {}; }

 private:
  std::unique_ptr<const Model> real_;
};

TEST(Engine, AnExceptionInAStepFailsTheStep) {
  auto script = make_script_model(kGreeting);
  ASSERT_TRUE(script.has_value());
  auto model = std::make_shared<ThrowingModel>(*std::move(script));
  HostOps ops;
  auto worker = Worker::create(model, ops, {{16}});
  ASSERT_TRUE(worker.has_value());
  EngineOptions options;
  options.limits.block_counts = {16};
  options.layout = model->kv_layout();
  options.vocabulary_size = model->vocabulary_size();
  Engine engine(options, std::make_unique<LocalExecutor>(*std::move(worker)));
  for (int i = 0; i < 3; ++i) {
    const Answer answer = Reader(engine.generate(ask("Hi?"))).read();
    EXPECT_EQ(answer.finish, FinishReason::kError);
    EXPECT_EQ(answer.status.code(), StatusCode::kInternal);
  }
  EXPECT_TRUE(engine.healthy());
}

// --- Health and figures
// ---------------------------------------------------------------------------

TEST(Engine, IsUnhealthyOnlyWhileNothingMovesAndWorkIsPending) {
  std::atomic<Microseconds> now = 0;
  HouseOptions options;
  options.engine.clock = [&now] { return now.load(); };
  House house("prompt *\n stall_ms 400\n emit \"x\"\n", std::move(options));
  now = 100'000'000;
  EXPECT_TRUE(house.engine().healthy()) << "an idle engine is healthy however long";

  Reader reader(house.engine().generate(ask("Hi?")));
  std::this_thread::sleep_for(milliseconds(100));  // the step is in its stall by now
  EXPECT_TRUE(house.engine().healthy());
  now += 4'900'000;
  EXPECT_TRUE(house.engine().healthy());
  ++house.ops().tiles;  // a long step that makes progress is not a hang
  EXPECT_TRUE(house.engine().healthy());
  now += 4'900'000;
  EXPECT_TRUE(house.engine().healthy());
  now += 200'000;
  EXPECT_FALSE(house.engine().healthy());
  EXPECT_EQ(reader.read().text(), "x");
  EXPECT_TRUE(house.engine().healthy());
}

TEST(Engine, TracesEveryStepWithoutTokens) {
  std::vector<std::string> lines;
  HouseOptions options;
  options.engine.plan_trace = [&lines](std::string_view line) { lines.emplace_back(line); };
  House house("prompt *\n emit \"abc\"\n", std::move(options));
  EXPECT_EQ(house.answer(ask("Hi?")).text(), "abc");
  house.tear_down();
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0].find("{\"kun_trace\":1"), 0U);
  for (std::size_t step = 1; step < lines.size(); ++step) {
    EXPECT_EQ(lines[step].find("{\"step\":" + std::to_string(step)), 0U) << lines[step];
  }
}

TEST(Engine, CountsItsWork) {
  House house("block 4\nprompt *\n emit \"abc\"\n");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(house.answer(ask("0123456789")).text(), "abc");
  ASSERT_TRUE(house.wait_for([](const EngineStats& s) { return s.generated_token_count == 12; }));
  const EngineStats stats = house.engine().stats();
  EXPECT_EQ(stats.prompt_token_count, 30U);
  EXPECT_EQ(stats.prefix_query_token_count, 30U);
  EXPECT_EQ(stats.prefix_hit_token_count, 16U);
  EXPECT_EQ(stats.computed_prompt_token_count, 14U);
  EXPECT_EQ(stats.step_count, 12U);
  EXPECT_EQ(stats.step_token_sum, 10U + 2U + 2U + 9U);
  ASSERT_EQ(stats.step_token_buckets.size(), kStepTokenBounds.size() + 1);
  EXPECT_EQ(stats.step_token_buckets[0], 9U);  // one token
  EXPECT_EQ(stats.step_token_buckets[1], 2U);  // 2 to 8
  EXPECT_EQ(stats.step_token_buckets[2], 1U);  // 9 to 16
  EXPECT_EQ(stats.running_count, 0);
  EXPECT_EQ(stats.cache_usage, 0.0);
}

}  // namespace
}  // namespace kun
