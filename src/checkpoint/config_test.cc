#include "checkpoint/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/generation_defaults.h"

namespace kun {
namespace {

using ::testing::HasSubstr;

Config parsed(std::string_view json) {
  auto config = Config::parse(json, "config.json");
  if (!config.has_value()) ADD_FAILURE() << config.error().message();
  return config.has_value() ? *config : Config("");
}

std::string error_of(std::string_view json) {
  const auto config = Config::parse(json, "config.json");
  return config.has_value() ? "no error" : config.error().message();
}

double number(const Config& config, std::string_view key) {
  ConfigReader reader(config);
  double value = -1;
  reader.read(key, value);
  return reader.status().ok() ? value : -1;
}

TEST(Config, ReadsTypedValuesUnderPaths) {
  const Config config =
      parsed(R"({"i":7,"whole":4096.0,"f":0.5,"b":true,"s":"text","o":{"p":{"q":3}},"n":null,)"
             R"("ints":[1,2],"floats":[1,2.5],"words":["a","b"],"empty":[]})");
  ConfigReader in(config);
  int i = 0, whole = 0, q = 0;
  float f = 0, from_int = 0;
  bool b = false;
  std::string s;
  std::vector<int> ints, none{1};
  std::vector<float> floats;
  std::vector<std::string> words, no_words{"x"};
  in.read("i", i);
  in.read("whole", whole);
  in.read("f", f);
  in.read("i", from_int);
  in.read("b", b);
  in.read("s", s);
  in.read("o.p.q", q);
  in.read("ints", ints);
  in.read("floats", floats);
  in.read("words", words);
  in.read("empty", none);
  in.read("empty", no_words);
  ASSERT_TRUE(in.status().ok()) << in.status().message();
  EXPECT_EQ(i, 7);
  EXPECT_EQ(whole, 4096);
  EXPECT_EQ(f, 0.5F);
  EXPECT_EQ(from_int, 7.0F);
  EXPECT_TRUE(b);
  EXPECT_EQ(s, "text");
  EXPECT_EQ(q, 3);
  EXPECT_EQ(ints, (std::vector<int>{1, 2}));
  EXPECT_EQ(floats, (std::vector<float>{1.0F, 2.5F}));
  EXPECT_EQ(words, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(no_words.empty());
  EXPECT_TRUE(config.has("o"));
  EXPECT_TRUE(config.has("o.p"));
  EXPECT_FALSE(config.has("n"));
  EXPECT_FALSE(config.has("o.q"));
}

TEST(Config, KeepsTheFirstProblem) {
  const Config config = parsed(R"({"a":"text","b":3})");
  ConfigReader in(config);
  int a = 5, b = 0;
  in.read("a", a);
  in.read("missing", b);
  in.read("b", b, 10, 20);
  EXPECT_EQ(in.status().message(), "config.json: the key 'a' must be a whole number");
  EXPECT_EQ(a, 5);
}

std::string int_error(const Config& config, std::string_view key, int min, int max) {
  ConfigReader in(config);
  int value = 0;
  in.read(key, value, min, max);
  return in.status().message();
}

TEST(Config, HoldsValuesAgainstTheirRange) {
  const Config config = parsed(
      R"({"zero":0,"neg":-1,"big":4294967297,"huge":18446744073709551615,"half":0.5,"inf":1e300})");
  EXPECT_THAT(int_error(config, "zero", 1, 10), HasSubstr("'zero' is 0, it must lie in 1 to 10"));
  EXPECT_THAT(int_error(config, "neg", 0, 10), HasSubstr("'neg' is -1"));
  EXPECT_THAT(int_error(config, "big", 0, 2147483647), HasSubstr("'big' is 4294967297"));
  EXPECT_THAT(int_error(config, "huge", 0, 10), HasSubstr("'huge' must be a whole number"));
  EXPECT_THAT(int_error(config, "half", 0, 10), HasSubstr("'half' must be a whole number"));
  EXPECT_THAT(int_error(config, "absent", 0, 10), HasSubstr("'absent' is missing"));
  EXPECT_EQ(int_error(config, "zero", 0, 10), "");
  ConfigReader in(config);
  float f = 2;
  in.read("inf", f);
  EXPECT_FALSE(in.status().ok());
  EXPECT_EQ(f, 2);
}

TEST(Config, FallsBackOnlyWhereAKeyIsAbsentOrNull) {
  const Config config = parsed(R"({"null":null,"there":3,"bad":"x"})");
  ConfigReader in(config);
  int a = 0, b = 0, c = 0;
  in.read_or("absent", a, 8);
  in.read_or("null", b, 9);
  in.read_or("there", c, 10);
  EXPECT_TRUE(in.status().ok());
  EXPECT_EQ(a, 8);
  EXPECT_EQ(b, 9);
  EXPECT_EQ(c, 3);
  in.read_or("bad", c, 10);
  EXPECT_FALSE(in.status().ok());
}

TEST(Config, NamesTheArchitecture) {
  EXPECT_EQ(parsed(R"({"architectures":["Qwen2ForCausalLM"]})").architecture(), "Qwen2ForCausalLM");
  EXPECT_EQ(parsed(R"({"model_type":"deepseek_v3"})").architecture(), "DeepseekV3ForCausalLM");
  EXPECT_EQ(parsed(R"({"architectures":[],"model_type":"llama"})").architecture(),
            "LlamaForCausalLM");
  EXPECT_EQ(parsed(R"({"architectures":[3],"model_type":"nobody"})").architecture(), "nobody");
  EXPECT_EQ(parsed("{}").architecture(), "");
}

TEST(Config, SpellsRopeSettingsInOneWay) {
  for (const char* json :
       {R"({"rope_theta":5e5,"rope_scaling":{"type":"linear","factor":4}})",
        R"({"rope_theta":5e5,"rope_scaling":{"rope_type":"linear","factor":4}})",
        R"({"rope_parameters":{"rope_theta":5e5,"rope_type":"linear","factor":4}})"}) {
    const Config config = parsed(json);
    EXPECT_EQ(number(config, "rope_theta"), 5e5) << json;
    EXPECT_EQ(number(config, "rope_scaling.factor"), 4) << json;
    EXPECT_EQ(std::get<std::string>(*config.find("rope_scaling.rope_type")), "linear") << json;
  }
}

TEST(Config, WorksOutWhatYarnMultipliesCosAndSinBy) {
  const auto factor = [](std::string_view fields, std::string_view outside = "") {
    const Config config =
        parsed("{" + std::string(outside) + R"("rope_scaling":{"type":"yarn","factor":40)" +
               std::string(fields) + "}}");
    return number(config, "rope_scaling.attention_factor");
  };
  EXPECT_NEAR(factor(""), 1.3688879454, 1e-9);  // 0.1 ln 40 + 1
  EXPECT_EQ(factor(R"(,"attention_factor":1.25,"attn_factor":3)"), 1.25);
  EXPECT_EQ(factor(R"(,"mscale":0.707,"mscale_all_dim":0.707)"), 1.0);
  EXPECT_NEAR(factor(R"(,"mscale":1.0,"mscale_all_dim":0.707)"), 1.3688879454 / 1.26080379, 1e-6);
  EXPECT_EQ(factor("", R"("model_type":"deepseek_v4",)"), 1.0);
  // R1-0528-Qwen3-8B: its attn_factor undoes the usual one exactly.
  const Config r1 = parsed(
      R"({"rope_scaling":{"rope_type":"yarn","factor":4.0,"attn_factor":0.8782488562869419}})");
  EXPECT_NEAR(number(r1, "rope_scaling.attention_factor"), 1.0, 1e-9);
  EXPECT_THAT(error_of(R"({"rope_scaling":{"type":"yarn"}})"), HasSubstr("rope_scaling.factor"));
  EXPECT_THAT(error_of(R"({"rope_scaling":{"type":"yarn","factor":0}})"), HasSubstr("factor"));
}

TEST(Config, RefusesWhatIsNoConfiguration) {
  EXPECT_THAT(error_of(""), HasSubstr("config.json: not valid JSON"));
  EXPECT_THAT(error_of("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("{} x"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("{\"a\":1e999}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("{\"a\":\"\xff\"}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("does not hold a JSON object"));
  EXPECT_THAT(error_of("3"), HasSubstr("does not hold a JSON object"));
  EXPECT_THAT(error_of(R"({"a":1,"a":2})"), HasSubstr("has the key 'a' twice"));
  EXPECT_THAT(error_of(R"({"a":{"b":1},"a.b":2})"), HasSubstr("has the key 'a.b' twice"));
  EXPECT_EQ(error_of(R"({"a":[],"b":{},"architectures":[],"rope_scaling":{},"eos_token_id":[]})"),
            "no error");
  EXPECT_EQ(error_of(R"({"rope_scaling":[],"rope_parameters":3,"auto_map":{"A":"x.py"}})"),
            "no error");
}

TEST(Config, BoundsDepthLengthAndNumberOfKeys) {
  std::string deep;
  for (int i = 0; i < 17; ++i) deep += R"({"a":)";
  EXPECT_THAT(error_of(deep + "1" + std::string(17, '}')), HasSubstr("nests objects too deeply"));
  const std::string brackets = R"({"a":)" + std::string(100000, '[');
  EXPECT_THAT(error_of(brackets), HasSubstr("not valid JSON"));
  const std::string long_key(600, 'k');
  EXPECT_THAT(error_of("{\"" + long_key + "\":1}"), HasSubstr("a key that is too long"));
  std::string many = "{";
  for (int i = 0; i < 70000; ++i) many += "\"" + std::to_string(i) + "\":1,";
  EXPECT_THAT(error_of(many + "\"x\":1}"), HasSubstr("too many keys"));
  EXPECT_THAT(error_of(std::string(5 << 20, ' ')), HasSubstr("at most 4194304"));
}

GenerationDefaults defaults_of(std::string_view config_json, std::string_view generation_json) {
  const Config config = parsed(config_json);
  const Config generation = parsed(generation_json);
  auto defaults = read_generation_defaults(config, &generation);
  if (!defaults.has_value()) ADD_FAILURE() << defaults.error().message();
  return defaults.has_value() ? *defaults : GenerationDefaults{};
}

TEST(GenerationDefaults, ReadsAllFields) {
  const GenerationDefaults read = defaults_of(
      R"({"eos_token_id":2,"bos_token_id":1})",
      R"({"temperature":0.6,"top_p":0.95,"top_k":20,"min_p":0.1,"repetition_penalty":1.1,)"
      R"("do_sample":true,"max_new_tokens":100,"max_length":200,"pad_token_id":0,)"
      R"("bos_token_id":5,"_from_model_config":true,"transformers_version":"4.46"})");
  EXPECT_EQ(read.temperature, 0.6F);
  EXPECT_EQ(read.top_p, 0.95F);
  EXPECT_EQ(read.top_k, 20);
  EXPECT_EQ(read.min_p, 0.1F);
  EXPECT_EQ(read.repetition_penalty, 1.1F);
  EXPECT_EQ(read.do_sample, true);
  EXPECT_EQ(read.max_new_tokens, 100);
  EXPECT_EQ(read.max_length, 200);
  EXPECT_EQ(read.pad, 0);
  EXPECT_EQ(read.bos, 5);
  EXPECT_EQ(read.eos, std::vector<Token>{2});
}

TEST(GenerationDefaults, UnitesTheEndTokensOfBothFiles) {
  EXPECT_EQ(defaults_of(R"({"eos_token_id":7})", R"({"eos_token_id":[9,7,3]})").eos,
            (std::vector<Token>{3, 7, 9}));
  EXPECT_EQ(defaults_of(R"({"eos_token_id":[7,8]})", "{}").eos, (std::vector<Token>{7, 8}));
  EXPECT_TRUE(defaults_of(R"({"eos_token_id":null})", R"({"eos_token_id":[]})").eos.empty());
  EXPECT_EQ(defaults_of(R"({"pad_token_id":-1})", "{}").pad, std::nullopt);
  const Config config = parsed(R"({"eos_token_id":4})");
  const auto alone = read_generation_defaults(config, nullptr);
  ASSERT_TRUE(alone.has_value());
  EXPECT_EQ(alone->eos, std::vector<Token>{4});
  EXPECT_EQ(alone->temperature, std::nullopt);
}

TEST(GenerationDefaults, RefusesAbsurdValues) {
  const Config config = parsed("{}");
  for (const char* json :
       {R"({"temperature":-1})", R"({"temperature":"hot"})", R"({"top_p":1.5})",
        R"({"max_new_tokens":0})", R"({"eos_token_id":"</s>"})", R"({"eos_token_id":[1,"x"]})",
        R"({"eos_token_id":4294967296})", R"({"eos_token_id":-2})", R"({"do_sample":1})"}) {
    const Config generation = parsed(json);
    EXPECT_FALSE(read_generation_defaults(config, &generation).has_value()) << json;
  }
}

}  // namespace
}  // namespace kun
