// Next-token modules (MTP) against stored logits of the same float64 program that made those of the
// models, whatever pieces the text comes in, and where a sequence goes on behind blocks that
// another one computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "checkpoint/checkpoint.h"
#include "models/registry.h"

namespace kun {
namespace {

constexpr int kBlockLength = 32;
constexpr std::int32_t kBlockCount = 6;

using Rows = std::vector<std::vector<double>>;  // [row][vocabulary]

Rows read_rows(simdjson::dom::element json) {
  Rows rows;
  for (const simdjson::dom::element row : json.get_array()) {
    std::vector<double>& values = rows.emplace_back();
    for (const double value : row.get_array()) values.push_back(value);
  }
  return rows;
}

std::filesystem::path folder_of(const std::string& model) {
  return std::filesystem::path(KUN_TEST_DATA) / "tiny-models" / model;
}

struct Case {
  std::string model;
  std::string file;  // "model.gguf", or empty for the folder itself
  std::string kernels;
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model + (info.param.file.empty() ? "_safetensors_" : "_gguf_") +
                     info.param.kernels;
  std::ranges::replace(name, '-', '_');
  return name;
}

// A model with its module and a cache of its own: what a worker does, without one.
class ModelWithModule : public testing::Test {
 protected:
  // `file` is the folder itself, or in it.
  void open(const std::filesystem::path& file, const std::string& kernels) {
    model_.reset();  // before what it reads from
    auto device =
        open_cpu_device({.thread_count = 2, .kernels = kernels, .compute = ComputeType::kFloat32});
    ASSERT_TRUE(device) << device.error().message();
    device_ = *std::move(device);
    auto checkpoint = open_checkpoint(file);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message();
    checkpoint_ = *std::move(checkpoint);
    auto model = load_model(*checkpoint_, device_->ops(),
                            {.cache_dtype = device_->cache_dtype(), .next_token_module = true});
    ASSERT_TRUE(model) << model.error().message();
    model_ = *std::move(model);
    ASSERT_EQ(model_->kv_layout().groups.size(), 2U);
    ASSERT_EQ(model_->guess_group(), 1);
    memory_.clear();
    cache_ = {};
    hidden_.clear();
    allocate();
  }

  simdjson::dom::element read_expected(const std::filesystem::path& folder) {
    const simdjson::dom::element root = parser_.load((folder / "expected.json").string());
    tokens_.clear();
    for (const std::int64_t token : root["tokens"].get_array()) {
      tokens_.push_back(static_cast<Token>(token));
    }
    return root;
  }

  void allocate() {
    for (const KvGroup& group : model_->kv_layout().groups) {
      ASSERT_EQ(group.tokens_per_block, kBlockLength);
      for (const int layer : group.layers) {
        const auto index = static_cast<std::size_t>(layer);
        if (cache_.planes.size() <= index) cache_.planes.resize(index + 1);
        for (const KvPlane& plane : group.planes) {
          CachePlane bytes{.dtype = plane.dtype,
                           .width = plane.width,
                           .tokens_per_block = kBlockLength / plane.positions_per_entry,
                           .block_count = kBlockCount};
          memory_.push_back(device_->ops().allocate(bytes.block_bytes() * kBlockCount));
          bytes.data = memory_.back().get();
          cache_.planes[index].push_back(bytes);
        }
      }
    }
  }

  int length() const { return static_cast<int>(tokens_.size()); }

  GroupBatch group_of(int first, int count) const {
    GroupBatch group;
    for (int p = first; p < first + count; ++p) {
      group.slots.push_back(blocks_[static_cast<std::size_t>(p / kBlockLength)] * kBlockLength +
                            p % kBlockLength);
    }
    group.slices.push_back({0, count, first, blocks_});
    return group;
  }

  // Computes tokens [first, first + count) and appends their hidden states. `tell`: whether the one
  // before them is given, as to a sequence that goes on.
  void compute(int first, int count, bool tell, bool entries_later = false) {
    ForwardBatch batch;
    batch.entries_later = entries_later;
    batch.tokens.assign(tokens_.begin() + first, tokens_.begin() + first + count);
    batch.sequences = {1};
    batch.groups = {group_of(first, count), group_of(first, count)};
    for (int i = 0; i < count; ++i) {
      batch.positions.push_back(first + i);
      batch.kept_rows.push_back(i);
    }
    const auto width = static_cast<std::size_t>(model_->hidden_size());
    std::vector<float> before(width, 1e3F);  // to be noticed where it must not be used
    batch.before_known = {tell && first > 0};
    if (tell && first > 0) std::copy_n(hidden_.end() - model_->hidden_size(), width, before.data());
    batch.before = view(before, 1, model_->hidden_size());
    hidden_.resize(hidden_.size() + static_cast<std::size_t>(count) * width);
    std::vector<float> out(static_cast<std::size_t>(count) * width);
    const Status status = model_->forward(batch, cache_, view(out, count, model_->hidden_size()));
    ASSERT_TRUE(status.ok()) << status.message();
    std::ranges::copy(out, hidden_.end() - std::ssize(out));
  }

  // The guesses behind tokens [first, first + count), computed in one call. Row i - 1 of `all` has
  // seen token i.
  void expect_guesses(int first, int count, const Rows& all) {
    const int width = model_->hidden_size();
    GuessBatch batch;
    batch.tokens.assign(tokens_.begin() + first, tokens_.begin() + first + count);
    batch.positions.resize(static_cast<std::size_t>(count));
    std::iota(batch.positions.begin(), batch.positions.end(), first);
    batch.group = group_of(first, count);
    std::vector<float> before(hidden_.begin() + (first - 1) * width,
                              hidden_.begin() + (first - 1 + count) * width);
    batch.before = view(before, count, width);
    std::vector<float> hidden(before.size());
    const Status status = model_->guess(batch, cache_, view(hidden, count, width));
    ASSERT_TRUE(status.ok()) << status.message();
    expect_logits(hidden, Rows(all.begin() + first - 1, all.begin() + first - 1 + count));
  }

  void expect_logits(std::vector<float>& hidden, const Rows& wanted) {
    const auto count = std::ssize(wanted);
    const int vocabulary = model_->vocabulary_size();
    std::vector<float> out(wanted.size() * static_cast<std::size_t>(vocabulary));
    const Status status =
        model_->logits(view(hidden, count, model_->hidden_size()), view(out, count, vocabulary));
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::size_t row = 0; row < wanted.size(); ++row) {
      ASSERT_EQ(wanted[row].size(), static_cast<std::size_t>(vocabulary));
      for (std::size_t i = 0; i < wanted[row].size(); ++i) {
        ASSERT_NEAR(out[row * wanted[row].size() + i], wanted[row][i], 1e-4)
            << "row " << row << ", token " << i;
      }
    }
  }

  // The module's entries of tokens [first, end of text), which were left out.
  void make_entries(int first) {
    const int count = length() - first;
    GuessBatch batch;
    batch.tokens.assign(tokens_.begin() + first, tokens_.end());
    batch.positions.resize(static_cast<std::size_t>(count));
    std::iota(batch.positions.begin(), batch.positions.end(), first);
    batch.group.slots = group_of(first, count).slots;
    batch.before = view(hidden_, length(), model_->hidden_size()).slice_rows(first - 1, count);
    model_->make_guess_entries(batch, cache_);
  }

  static TensorView view(std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
    return {reinterpret_cast<std::byte*>(values.data()), DType::kF32, {rows, cols}};
  }

  simdjson::dom::parser parser_;
  std::vector<Token> tokens_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<const Model> model_;
  std::vector<std::shared_ptr<std::byte>> memory_;
  KvStorage cache_;
  std::vector<BlockId> blocks_{4, 1};  // in no order
  std::vector<float> hidden_;          // [token computed so far][hidden]
};

class NextToken : public ModelWithModule, public testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    const std::filesystem::path folder = folder_of(GetParam().model);
    const simdjson::dom::element root = read_expected(folder);
    logits_ = read_rows(root["logits"]);
    guesses_ = read_rows(root["mtp_logits"]);
    open(folder / GetParam().file, GetParam().kernels);
  }

  Rows logits_;
  Rows guesses_;
};

TEST_P(NextToken, MatchesTheReferenceWhateverPiecesTheTextComesIn) {
  for (const int pace : {1 << 20, 7, 1}) {
    hidden_.clear();
    for (int first = 0; first < length(); first += pace) {
      compute(first, std::min(pace, length() - first), true);
    }
    expect_logits(hidden_, logits_);
    // Each token by itself, on the entries that the steps left behind.
    for (int position = 1; position < length(); ++position) expect_guesses(position, 1, guesses_);
  }
}

TEST_P(NextToken, ComputesManyRowsAsItComputesOne) {
  compute(0, length(), true);
  expect_guesses(1, length() - 1, guesses_);
}

TEST_P(NextToken, MatchesTheReferenceWhereEntriesComeLater) {
  constexpr int kPrompt = 5;
  compute(0, kPrompt, true);
  for (int first = kPrompt; first < length(); ++first) compute(first, 1, true, true);
  expect_logits(hidden_, logits_);
  make_entries(kPrompt);
  expect_guesses(1, length() - 1, guesses_);
  for (int position = kPrompt; position < length(); ++position) {
    expect_guesses(position, 1, guesses_);
  }
}

// What a prefix hit does: a sequence goes on behind a block that it has not computed itself, so
// that nobody but the block knows the hidden state before.
TEST_P(NextToken, GoesOnBehindABlockOfSomebodyElse) {
  ASSERT_GT(length(), kBlockLength + 4);
  compute(0, length(), true);
  hidden_.resize(static_cast<std::size_t>(kBlockLength * model_->hidden_size()));
  blocks_ = {4, 3};
  compute(kBlockLength, length() - kBlockLength, false);
  for (int position = kBlockLength + 1; position < length(); ++position) {
    expect_guesses(position, 1, guesses_);
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& kernels : cpu_kernel_names()) {
    cases.push_back({"deepseek-v3-mtp", "", kernels});
    cases.push_back({"deepseek-v3-mtp", "model.gguf", kernels});
    cases.push_back({"deepseek-v32-mtp", "", kernels});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(TinyModels, NextToken, testing::ValuesIn(all_cases()), case_name);

// kun-tiny-v3, which has learned something: what the program says that trained it.
TEST_F(ModelWithModule, GuessesAsTheProgramThatTrainedItDoes) {
  const std::filesystem::path folder =
      std::filesystem::path(KUN_TEST_DATA).parent_path().parent_path() / "models/kun-tiny-v3";
  const simdjson::dom::element root = read_expected(folder);
  tokens_.resize(root["logits_after"].get_uint64().value());
  const Rows last = read_rows(root["last_mtp_logits"]);
  Rows guesses(tokens_.size() - 1);
  std::ranges::copy(last, guesses.end() - std::ssize(last));
  for (const std::string& kernels : cpu_kernel_names()) {
    open(folder, kernels);
    compute(0, length(), true);
    for (int position = length() - static_cast<int>(last.size()); position < length(); ++position) {
      expect_guesses(position, 1, guesses);
    }
  }
}

Result<std::unique_ptr<const Model>> load_with_module(const std::string& model) {
  static std::vector<std::unique_ptr<Checkpoint>> checkpoints;  // models read from them
  static const auto device = open_cpu_device({.thread_count = 1});
  ASSIGN_OR_RETURN(checkpoints.emplace_back(), open_checkpoint(folder_of(model)));
  return load_model(*checkpoints.back(), (*device)->ops(), {.next_token_module = true});
}

TEST(NextTokenModule, IsRefusedWithOneSentenceWhereThereIsNone) {
  const auto without = load_with_module("deepseek-v3");
  ASSERT_FALSE(without);
  EXPECT_THAT(without.error().message(), testing::HasSubstr("model.layers.3.enorm.weight"));
  for (const char* model : {"deepseek-v4", "deepseek-v2-lite", "llama-mha"}) {
    const auto other = load_with_module(model);
    ASSERT_FALSE(other);
    EXPECT_THAT(other.error().message(), testing::HasSubstr("next-token module"));
  }
}

// Who does not ask for it does not pay: neither cache nor memory.
TEST(NextTokenModule, IsLeftAloneUnlessItIsAskedFor) {
  const auto device = open_cpu_device({.thread_count = 1});
  const auto checkpoint = open_checkpoint(folder_of("deepseek-v3-mtp"));
  ASSERT_TRUE(checkpoint);
  std::int64_t read[2] = {0, 0};
  std::size_t groups[2] = {0, 0};
  for (const bool asked : {false, true}) {
    const auto model =
        load_model(**checkpoint, (*device)->ops(),
                   {.progress = [&](std::int64_t bytes) { read[asked ? 1 : 0] = bytes; },
                    .next_token_module = asked});
    ASSERT_TRUE(model) << model.error().message();
    groups[asked ? 1 : 0] = (*model)->kv_layout().groups.size();
    EXPECT_EQ((*model)->guess_group(), asked ? 1 : -1);
    EXPECT_TRUE((*model)->kv_layout().can_take_back());
  }
  EXPECT_EQ(groups[0], 1U);
  EXPECT_EQ(groups[1], 2U);
  EXPECT_GT(read[1], read[0] + 32 * 64 * 4);  // its eh_proj and more
}

}  // namespace
}  // namespace kun
