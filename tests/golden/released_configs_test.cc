// The configurations of all released checkpoints: each is understood to the end, so that only the
// weights are missing, or refused with one sentence that names the reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/promised_checkpoint.h"
#include "device/latent_attention.h"
#include "models/registry.h"
#include "test_folder.h"

namespace kun {
namespace {

namespace fs = std::filesystem;

const fs::path kConfigs = fs::path(KUN_TEST_DATA) / "released-configs";

// What is refused, and words of the sentence.
const std::map<std::string, std::string> kRefused = {
    {"deepseek-v4.1-flash", "DeepseekV41ForCausalLM"},
};

std::set<std::string> names() {
  std::set<std::string> result;
  for (const fs::directory_entry& entry : fs::directory_iterator(kConfigs)) {
    if (entry.path().extension() == ".json") result.insert(entry.path().stem().string());
  }
  return result;
}

// A model folder with this configuration and a single small tensor nobody asks for.
fs::path make_folder(const fs::path& config) {
  const fs::path folder = test_folder("released_" + config.stem().string());
  fs::copy(config, folder / "config.json");
  const std::string header = R"({"unused":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  std::ofstream out(folder / "model.safetensors", std::ios::binary);
  for (std::size_t i = 0; i < 8; ++i) out.put(i == 0 ? static_cast<char>(header.size()) : '\0');
  out << header << std::string(4, '\0');
  return folder;
}

// Whatever stops the model from being loaded.
Status load(const fs::path& config) {
  ASSIGN_OR_RETURN(const auto device, open_cpu_device({.thread_count = 1}));
  ASSIGN_OR_RETURN(const auto checkpoint, open_checkpoint(make_folder(config)));
  ASSIGN_OR_RETURN(const auto model, load_model(*checkpoint, device->ops(), {}));
  return {};
}

class ReleasedConfig : public testing::TestWithParam<std::string> {};
std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' || c == '.' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, ReleasedConfig, testing::ValuesIn(names()), test_name);

TEST_P(ReleasedConfig, IsUnderstoodOrRefusedWithASentence) {
  const Status status = load(kConfigs / (GetParam() + ".json"));
  ASSERT_FALSE(status.ok());
  const auto refused = kRefused.find(GetParam());
  const std::string expected = refused == kRefused.end() ? "is missing" : refused->second;
  EXPECT_NE(status.message().find(expected), std::string::npos) << status.message();
  if (refused == kRefused.end()) {
    EXPECT_NE(status.message().find("tensor"), std::string::npos) << status.message();
  }
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

using Changes = std::map<std::string, std::string>;  // of keys at the top to values

// A folder with nothing but a configuration.
fs::path make_bare_folder(const std::string& name, const Changes& changes = {}) {
  const fs::path folder = test_folder("bare_" + name);
  std::string config = read_file(kConfigs / (name + ".json"));
  for (const auto& [key, value] : changes) {
    config = std::regex_replace(config, std::regex("\"" + key + "\"\\s*:[^,}]*,"), "");
    config.replace(config.find('{'), 1, "{\"" + key + "\": " + value + ",");
  }
  std::ofstream(folder / "config.json") << config;
  return folder;
}

// What `kun inspect` says of it.
struct ModelPlan {
  WeightPlan weights;
  KvLayout cache;
};

Result<ModelPlan> plan(const fs::path& folder, WeightTarget target) {
  ModelPlan result;
  ASSIGN_OR_RETURN(const auto device, open_cpu_device({.thread_count = 1, .weights = target}));
  ASSIGN_OR_RETURN(const auto checkpoint, open_promised_checkpoint(folder));
  ASSIGN_OR_RETURN(result.weights, plan_weights(*checkpoint, device->ops(), DType::kBF16));
  ASSIGN_OR_RETURN(result.cache, plan_kv_layout(*checkpoint, DType::kBF16));
  return result;
}

// A row of docs/models.md.
struct Row {
  std::string name;
  double read_bf16 = 0;  // 10^9 parameters that a token reads
  double gib[3] = {};    // in memory as bf16, int8, int4
  double read_int4 = 0;  // GiB
  double cache_kib = 0;  // a token
};

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells;
  std::string cell;
  for (const char c : line + "|") {
    if (c != '|') {
      cell += c;
      continue;
    }
    const std::size_t first = cell.find_first_not_of(' ');
    const std::size_t last = cell.find_last_not_of(' ');
    cells.push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
    cell.clear();
  }
  return cells;
}

// Rows of the table of checkpoints: a cell before each "|", so the first is empty.
std::map<std::string, Row> documented() {
  std::map<std::string, Row> rows;
  std::ifstream in(fs::path(KUN_TEST_DATA) / ".." / ".." / "docs" / "models.md");
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> cells = split(line);
    if (cells.size() != 13 || cells[1] == "checkpoint" || cells[1].starts_with("-")) continue;
    Row row;
    row.name = cells[1];
    row.read_bf16 = std::stod(cells[5]);
    for (std::size_t i = 0; i < 3; ++i) row.gib[i] = std::stod(cells[6 + i]);
    row.read_int4 = std::stod(cells[9]);
    row.cache_kib = std::stod(cells[10]);
    rows[row.name] = row;
  }
  return rows;
}

// Which row a configuration belongs to.
const std::map<std::string, std::string> kRows = {
    {"deepseek-llm-7b", "DeepSeek-LLM 7B"},
    {"deepseek-llm-67b", "DeepSeek-LLM 67B"},
    {"deepseek-coder-1.3b", "DeepSeek-Coder 1.3B"},
    {"deepseek-coder-6.7b", "DeepSeek-Coder 6.7B"},
    {"deepseek-coder-33b", "DeepSeek-Coder 33B"},
    {"deepseek-coder-7b-v1.5", "DeepSeek-Coder 7B v1.5"},
    {"r1-distill-llama-8b", "R1-Distill-Llama 8B"},
    {"r1-distill-llama-70b", "R1-Distill-Llama 70B"},
    {"r1-distill-qwen-1.5b", "R1-Distill-Qwen 1.5B"},
    {"r1-distill-qwen-7b", "R1-Distill-Qwen 7B"},
    {"r1-distill-qwen-14b", "R1-Distill-Qwen 14B"},
    {"r1-distill-qwen-32b", "R1-Distill-Qwen 32B"},
    {"r1-0528-qwen3-8b", "R1-0528-Qwen3 8B"},
    {"deepseek-moe-16b", "DeepSeek-MoE 16B"},
    {"deepseek-v2-lite", "V2-Lite, Coder-V2-Lite"},
    {"deepseek-v2", "V2, V2.5, Coder-V2"},
    {"deepseek-v2.5", "V2, V2.5, Coder-V2"},
    {"deepseek-v3", "V3, V3-0324, R1, R1-0528"},
    {"deepseek-v3.1", "V3.1, V3.1-Terminus"},
    {"deepseek-v3.2", "V3.2-Exp, V3.2"},
    {"deepseek-v4-flash", "V4-Flash, -0731"},
    {"deepseek-v4-flash-0731", "V4-Flash, -0731"},
    {"deepseek-v4-pro", "V4-Pro"},
};

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

// What `kun inspect` plans from a bare configuration is what the table promises, to its last digit.
TEST_P(ReleasedConfig, NeedsWhatTheTableOfModelsSays) {
  if (kRefused.contains(GetParam())) GTEST_SKIP() << "refused";
  ASSERT_TRUE(kRows.contains(GetParam())) << "no row for this configuration";
  const std::map<std::string, Row> rows = documented();
  ASSERT_TRUE(rows.contains(kRows.at(GetParam()))) << kRows.at(GetParam());
  const Row& row = rows.at(kRows.at(GetParam()));
  const fs::path folder = make_bare_folder(GetParam());
  const WeightTarget targets[] = {WeightTarget::kBF16, WeightTarget::kInt8, WeightTarget::kInt4};
  ModelPlan last;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto planned = plan(folder, targets[i]);
    ASSERT_TRUE(planned) << planned.error().message();
    last = *planned;
    EXPECT_NEAR(static_cast<double>(last.weights.packed_bytes) / kGib, row.gib[i], 0.0501) << i;
    if (i > 0) continue;
    EXPECT_NEAR(static_cast<double>(last.weights.token_bytes) / 2e9, row.read_bf16, 0.0501);
  }
  EXPECT_NEAR(static_cast<double>(last.weights.token_bytes) / kGib, row.read_int4, 0.0501);
  EXPECT_NEAR(last.cache.token_bytes() / 1024.0, row.cache_kib, 0.0501);
}

// The entries of a token by hand: contracts.md's 576 values of latent attention, V3.2's index keys
// of 128, and V4's window of 512 in all layers with entries for each 4 or 128 tokens.
TEST(ReleasedConfigs, DeclareTheCachesOfTheirAttention) {
  const auto bytes = [](const std::string& name) {
    const auto planned = plan(make_bare_folder(name), WeightTarget::kBF16);
    return planned ? planned->cache.token_bytes() : -1.0;
  };
  EXPECT_EQ(bytes("deepseek-llm-7b"), 30 * 2 * 4096 * 2);
  EXPECT_EQ(bytes("deepseek-llm-67b"), 95 * 2 * (8 * 128) * 2);
  EXPECT_EQ(bytes("deepseek-v2-lite"), 27 * 576 * 2);
  EXPECT_EQ(bytes("deepseek-v3"), 61 * 576 * 2);
  EXPECT_EQ(bytes("deepseek-v3.2"), 61 * (576 + 128) * 2);
  const auto v4 = plan(make_bare_folder("deepseek-v4-flash"), WeightTarget::kBF16);
  ASSERT_TRUE(v4) << v4.error().message();
  const KvLayout& cache = v4->cache;
  ASSERT_EQ(cache.groups.size(), 3U);
  EXPECT_EQ(cache.groups[0].window, 128);
  EXPECT_EQ(cache.groups[0].layers.size(), 43U);
  EXPECT_EQ(cache.groups[0].block_bytes(), 43 * 128 * 512 * 2);
  const auto layers_of_4 = static_cast<std::int64_t>(cache.groups[1].layers.size());
  const auto layers_of_128 = static_cast<std::int64_t>(cache.groups[2].layers.size());
  // Of each 128 tokens: 32 entries and index keys, or one entry; and the running sums in F32.
  const auto state = [](int width, bool overlap) {
    return compress_state_width(width, overlap) * 4;
  };
  EXPECT_EQ(cache.groups[1].block_bytes(),
            layers_of_4 * (32 * (512 + 128) * 2 + state(512, true) + state(128, true)));
  EXPECT_EQ(cache.groups[2].block_bytes(), layers_of_128 * (512 * 2 + state(512, false)));
}

// V2-Lite in bfloat16 by hand. Its sides are multiples of 32, so nothing is padded.
TEST(ReleasedConfigs, ReadTheChosenExpertsAndKeepThemAll) {
  constexpr std::int64_t kHidden = 2048;
  constexpr std::int64_t kExpert = 3 * kHidden * 1408;
  constexpr std::int64_t kHeads = 16;
  constexpr std::int64_t kQueries = kHeads * 128 * 512;  // to the latent space; values: as many
  constexpr std::int64_t kAttention =
      kHidden * kHeads * 192 + kHidden * 576 + 2 * kQueries + kHeads * 128 * kHidden;
  constexpr std::int64_t kGate = 64 * kHidden * 2;  // in F32: two weights' worth each
  constexpr std::int64_t kDense = 3 * kHidden * 10944;
  constexpr std::int64_t kHead = kHidden * 102400;
  constexpr std::int64_t kRead =
      27 * kAttention + kDense + 26 * (kGate + 2 * kExpert + 6 * kExpert) + kHead;
  constexpr std::int64_t kKept = kRead + 26 * (64 - 6) * kExpert;
  const auto planned = plan(make_bare_folder("deepseek-v2-lite"), WeightTarget::kBF16);
  ASSERT_TRUE(planned) << planned.error().message();
  EXPECT_EQ(planned->weights.token_bytes, 2 * kRead);
  EXPECT_EQ(planned->weights.packed_bytes, 2 * kKept);
  EXPECT_EQ(planned->weights.table_bytes, 2 * kHead);
}

// Words of the sentence that refuses a configuration with `changes`, or what else came of it.
std::string refusal(const std::string& name, const Changes& changes) {
  const auto planned = plan(make_bare_folder(name, changes), WeightTarget::kAuto);
  return planned ? "it was accepted" : planned.error().message();
}

TEST(ReleasedConfigs, RefuseSettingsThatNobodyCanCompute) {
  using testing::HasSubstr;
  EXPECT_EQ(refusal("deepseek-v3", {}), "it was accepted");
  EXPECT_THAT(refusal("deepseek-v3", {{"rope_theta", "1"}}), HasSubstr("rope_theta above 1"));
  EXPECT_THAT(refusal("r1-0528-qwen3-8b", {{"rope_theta", "1.0"}}),
              HasSubstr("rope_theta above 1"));
  EXPECT_THAT(refusal("deepseek-v3", {{"n_group", "256"}, {"topk_group", "256"}}),
              HasSubstr("n_group leaves less than the two experts"));
  EXPECT_EQ(refusal("deepseek-v3", {{"rope_interleave", "false"}}), "it was accepted");
  EXPECT_THAT(refusal("deepseek-v4-flash", {{"rope_interleave", "false"}}),
              HasSubstr("rope_interleave false is not supported"));
}

Result<KvLayout> plan(const std::string& name, DType cache_dtype) {
  ASSIGN_OR_RETURN(const auto checkpoint,
                   open_checkpoint(make_folder(kConfigs / (name + ".json"))));
  return plan_kv_layout(*checkpoint, cache_dtype);
}

// Bytes of a token, from the configurations by hand: layers x (keys and values) x heads x width, or
// latent and rotated parts; an int8 head of 128 ends in 4 bytes of scale.
TEST(ReleasedConfigs, TellWhatACacheHoldsBeforeWeightsAreLoaded) {
  const auto bytes = [](const std::string& name, DType dtype) {
    const auto layout = plan(name, dtype);
    return layout.has_value() ? layout->token_bytes() : -1.0;
  };
  EXPECT_EQ(bytes("r1-distill-qwen-1.5b", DType::kBF16), 28.0 * 2 * 2 * 128 * 2);
  EXPECT_EQ(bytes("r1-distill-qwen-1.5b", DType::kI8), 28.0 * 2 * 2 * (128 + 4));
  EXPECT_EQ(bytes("deepseek-v3", DType::kBF16), 61.0 * 576 * 2);
  EXPECT_EQ(bytes("deepseek-v3.2", DType::kBF16), 61.0 * (576 + 128) * 2);
  EXPECT_GT(bytes("deepseek-v4-flash", DType::kBF16), 0.0);
  const auto layout = plan("r1-distill-qwen-1.5b", DType::kI8);
  EXPECT_EQ(layout->sequence_bytes(33), 2 * layout->groups.front().block_bytes());
}

TEST(ReleasedConfigs, KeepLatentCachesInFloats) {
  for (const char* name : {"deepseek-v2-lite", "deepseek-v3", "deepseek-v3.2", "deepseek-v4-pro"}) {
    const auto layout = plan(name, DType::kI8);
    ASSERT_FALSE(layout.has_value()) << name;
    EXPECT_NE(layout.error().message().find("--kv-cache-dtype auto"), std::string::npos) << name;
  }
}

// Files that come with the checkpoints under other names: DeepSeek's own programs read them.
TEST(ReleasedConfigs, RefusesTheConfigurationsOfOtherPrograms) {
  const fs::path folder = fs::path(KUN_SHARED_DATA) / "configs" / "official-inference";
  if (!fs::exists(folder)) GTEST_SKIP() << "no configurations at " << folder;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const Status status = load(entry.path());
    EXPECT_NE(status.message().find("architecture '' of"), std::string::npos) << status.message();
  }
}

TEST(ReleasedConfigs, ReadsTheCopyOfV32AsItIsStored) {
  const fs::path file = fs::path(KUN_SHARED_DATA) / "configs" / "DeepSeek-V3.2.config.json";
  if (!fs::exists(file)) GTEST_SKIP() << "no configuration at " << file;
  const Status status = load(file);
  EXPECT_NE(status.message().find("is missing"), std::string::npos) << status.message();
}

// Adds a tensor of one float to the bytes of a safetensors file.
std::string with_tensor(const std::string& file, const std::string& name) {
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), sizeof(header_size));
  const std::size_t data_size = file.size() - sizeof(header_size) - header_size;
  std::string header = "{\"" + name + R"(":{"dtype":"F32","shape":[1],"data_offsets":[)" +
                       std::to_string(data_size) + "," + std::to_string(data_size + 4) + "]}," +
                       file.substr(sizeof(header_size) + 1, header_size - 1);
  header_size = header.size();
  std::string out(sizeof(header_size), '\0');
  std::memcpy(out.data(), &header_size, sizeof(header_size));
  return out + header + file.substr(file.size() - data_size) + std::string(4, '\0');
}

// V3 checkpoints hold one layer more than num_hidden_layers says.
TEST(ReleasedConfigs, LeavesTheNextTokenModuleAlone) {
  const fs::path source = fs::path(KUN_TEST_DATA) / "tiny-models" / "deepseek-v3";
  const fs::path folder = test_folder("next_token_module");
  std::string config = read_file(source / "config.json");
  config.replace(config.find('{'), 1, "{\"num_nextn_predict_layers\": 1,");
  std::ofstream(folder / "config.json") << config;
  std::string weights = read_file(source / "model.safetensors");
  for (const char* name : {"eh_proj.weight", "enorm.weight", "shared_head.norm.weight"}) {
    weights = with_tensor(weights, std::string("model.layers.3.") + name);
  }
  std::ofstream(folder / "model.safetensors", std::ios::binary) << weights;
  const auto device = open_cpu_device({.thread_count = 1});
  ASSERT_TRUE(device) << device.error().message();
  const auto checkpoint = open_checkpoint(folder);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  const auto model = load_model(**checkpoint, (*device)->ops(), {});
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ((*model)->kv_layout().groups.front().layers.size(), 3U);
}

}  // namespace
}  // namespace kun
