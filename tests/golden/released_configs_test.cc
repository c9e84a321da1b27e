// The configurations of all released checkpoints: each is understood to the end, so that only the
// weights are missing, or refused with one sentence that names the reason.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "backends/cpu/cpu_device.h"
#include "checkpoint/checkpoint.h"
#include "models/registry.h"

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
  const fs::path folder = fs::path(testing::TempDir()) / ("kun_released_" + config.stem().string());
  fs::remove_all(folder);
  fs::create_directories(folder);
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

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
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
  const fs::path folder = fs::path(testing::TempDir()) / "kun_next_token_module";
  fs::remove_all(folder);
  fs::create_directories(folder);
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
