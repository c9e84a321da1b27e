// The scripted model through its cache: it must say the same however its text is cut into steps,
// and notice a cache that is not what the plan claims.
#include "models/script_model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <numeric>

namespace kun {
namespace {

constexpr int kBlockLength = 4;
constexpr int kBlockCount = 16;

// A model with a cache of its own and one sequence in it.
class Desk {
 public:
  explicit Desk(std::string_view script) {
    auto made = make_script_model("block 4\n" + std::string(script));
    CHECK(made.has_value());
    model_ = *std::move(made);
    const KvPlane& plane = model_->kv_layout().groups.at(0).planes.at(0);
    memory_.resize(static_cast<std::size_t>(plane.width * kBlockCount * kBlockLength));
    CachePlane& entries = cache_.planes.emplace_back().emplace_back();
    entries.data = reinterpret_cast<std::byte*>(memory_.data());
    entries.dtype = plane.dtype;
    entries.width = plane.width;
    entries.tokens_per_block = kBlockLength;
    entries.block_count = kBlockCount;
    blocks_.resize(kBlockCount);
    std::iota(blocks_.rbegin(), blocks_.rend(), 0);  // not in the order of positions
  }

  const Model& model() const { return *model_; }
  std::vector<std::int32_t>& blocks() { return blocks_; }

  // One step: tokens from `first` on; returns the status, and the wanted rows' logits in logits().
  Status step(std::int32_t first, const std::vector<Token>& tokens,
              std::vector<std::int32_t> wanted) {
    ForwardBatch batch;
    batch.tokens = tokens;
    batch.sequences = {1};
    GroupBatch& group = batch.groups.emplace_back();
    for (std::int32_t i = 0; i < std::ssize(tokens); ++i) {
      const std::int32_t position = first + i;
      batch.positions.push_back(position);
      group.slots.push_back(blocks_.at(static_cast<std::size_t>(position / kBlockLength)) *
                                kBlockLength +
                            position % kBlockLength);
    }
    group.slices.push_back({0, static_cast<std::int32_t>(tokens.size()), first, blocks_});
    batch.wanted_rows = std::move(wanted);
    const auto rows = std::ssize(batch.wanted_rows);
    std::vector<float> hidden(static_cast<std::size_t>(rows * model_->hidden_size()));
    const TensorView hidden_view(reinterpret_cast<std::byte*>(hidden.data()), DType::kF32,
                                 {rows, model_->hidden_size()});
    RETURN_IF_ERROR(model_->forward(batch, cache_, hidden_view));
    logits_.resize(static_cast<std::size_t>(rows * model_->vocabulary_size()));
    return model_->logits(hidden_view, {reinterpret_cast<std::byte*>(logits_.data()),
                                        DType::kF32,
                                        {rows, model_->vocabulary_size()}});
  }

  const std::vector<float>& logits() const { return logits_; }
  Token likeliest() const {
    return static_cast<Token>(std::ranges::max_element(logits_) - logits_.begin());
  }

 private:
  std::unique_ptr<const Model> model_;
  std::vector<std::int32_t> memory_;
  KvStorage cache_;
  std::vector<std::int32_t> blocks_;
  std::vector<float> logits_;
};

std::vector<Token> bytes(std::string_view text) {
  std::vector<Token> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

TEST(ScriptModel, SaysTheSameHoweverThePromptIsCut) {
  const std::string prompt = "what is the answer?";
  for (std::size_t chunk = 1; chunk <= prompt.size(); ++chunk) {
    Desk desk("prompt contains \"answer\"\n emit \"42\"\nprompt *\n emit \"!\"\n");
    for (std::size_t first = 0; first < prompt.size(); first += chunk) {
      const std::string part = prompt.substr(first, chunk);
      const bool last = first + part.size() == prompt.size();
      std::vector<std::int32_t> wanted;
      if (last) wanted.push_back(static_cast<std::int32_t>(part.size()) - 1);
      ASSERT_TRUE(desk.step(static_cast<std::int32_t>(first), bytes(part), wanted).ok());
    }
    EXPECT_EQ(desk.likeliest(), '4');
    const auto length = static_cast<std::int32_t>(prompt.size());
    ASSERT_TRUE(desk.step(length, bytes("4"), {0}).ok());
    EXPECT_EQ(desk.likeliest(), '2');
    ASSERT_TRUE(desk.step(length + 1, bytes("2"), {0}).ok());
    EXPECT_EQ(desk.likeliest(), 256);
  }
}

TEST(ScriptModel, GoesOnWhenPromptAndOutputAreComputedAgain) {
  Desk desk("prompt *\n emit \"abc\"\n");
  ASSERT_TRUE(desk.step(0, bytes("prompt:ab"), {8}).ok());
  EXPECT_EQ(desk.likeliest(), 'c');
}

TEST(ScriptModel, ItsLogitsAreOnePeakOverZeros) {
  Desk desk("prompt *\n emit \"a\"\n");
  ASSERT_TRUE(desk.step(0, bytes("x"), {0}).ok());
  EXPECT_EQ(desk.logits()['a'], 50.0F);
  EXPECT_EQ(std::accumulate(desk.logits().begin(), desk.logits().end(), 0.0F), 50.0F);
}

TEST(ScriptModel, WritesNanRowsFailsAndStallsWhereTheScriptSaysSo) {
  Desk desk(
      "prompt contains \"n\"\n nan\nprompt contains \"e\"\n error \"no more\"\n"
      "prompt *\n stall_ms 30\n emit \"a\"\n");
  ASSERT_TRUE(desk.step(0, bytes("n"), {0}).ok());
  EXPECT_TRUE(std::ranges::all_of(desk.logits(), [](float x) { return std::isnan(x); }));
  const Status failed = desk.step(0, bytes("e"), {0});
  EXPECT_EQ(failed.code(), StatusCode::kInternal);
  EXPECT_EQ(failed.message(), "no more");
  EXPECT_TRUE(desk.step(0, bytes("e"), {}).ok()) << "no row is wanted";
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(desk.step(0, bytes("x"), {0}).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(30));
}

TEST(ScriptModel, NoticesACacheThatIsNotWhatThePlanClaims) {
  Desk desk("prompt *\n emit \"a\"\n");
  ASSERT_TRUE(desk.step(0, bytes("12345678"), {}).ok());
  std::swap(desk.blocks()[0], desk.blocks()[1]);
  const Status status = desk.step(8, bytes("9"), {0});
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("position 0 holds position 4"), std::string::npos);
}

TEST(ScriptModel, RefusesTokensOutsideItsVocabulary) {
  Desk desk("prompt *\n emit \"a\"\n");
  EXPECT_EQ(desk.step(0, {257}, {0}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(desk.step(0, {-1}, {0}).code(), StatusCode::kInvalidArgument);
}

TEST(ScriptModel, LoadsFromAFileAndNamesItInErrors) {
  const std::string path = testing::TempDir() + "/kun_script_" + std::to_string(getpid());
  std::ofstream(path) << "vocab 300\nprompt *\n emit 299\n";
  const auto model = load_script_model(path);
  ASSERT_TRUE(model.has_value());
  EXPECT_EQ((*model)->vocabulary_size(), 300);
  std::ofstream(path) << "prompt *\n emit 1000\n";
  const auto bad = load_script_model(path);
  ASSERT_FALSE(bad.has_value());
  EXPECT_NE(bad.error().message().find(path + ": line 2"), std::string::npos);
  unlink(path.c_str());
  EXPECT_EQ(load_script_model(path).error().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace kun
