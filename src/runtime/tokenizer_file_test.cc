// Claims about real tokenizer.json files: the same ids, one by one, as Hugging Face's library and
// llama.cpp give. tests/data/tokenizer says where files and vectors come from.
#include "runtime/tokenizer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace kun {
namespace {

using ::testing::HasSubstr;

const std::string kData = KUN_TEST_DATA "/tokenizer/";
const std::string kShared = KUN_SHARED_DATA "/";

// Seconds this process has computed: bounds hold on a busy machine, too.
double computed_s() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// The whole file, unpacked if it is a gzip; empty when it is absent.
std::string read(const std::string& path) {
  std::string text;
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return text;
  std::array<char, 1U << 16U> buffer;
  for (int count = 1; (count = gzread(file, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  gzclose(file);
  return text;
}

// The tokenizer of a file, loaded once for all tests; nullptr when it is absent.
const Tokenizer* load(const std::string& path) {
  static std::map<std::string, std::unique_ptr<const Tokenizer>> loaded;
  const auto [entry, is_new] = loaded.try_emplace(path);
  if (!is_new) return entry->second.get();
  const std::string json = read(path);
  if (json.empty()) return nullptr;
  Result<TokenizerSpec> spec = parse_tokenizer(json);
  EXPECT_TRUE(spec.has_value()) << path << ": " << spec.error().message();
  if (!spec) return nullptr;
  auto tokenizer = make_tokenizer(*std::move(spec));
  EXPECT_TRUE(tokenizer.has_value()) << path << ": " << tokenizer.error().message();
  if (tokenizer) entry->second = *std::move(tokenizer);
  return entry->second.get();
}

const Tokenizer* load_own(const std::string& name) {
  return load(kData + name + ".tokenizer.json.gz");
}

struct Vector {
  std::string text;
  std::vector<Token> ids;
  std::string decoded;
};

Vector vector_of(const simdjson::dom::element& element, const char* text, const char* ids) {
  Vector made;
  made.text = std::string(element[text].get_string().value());
  const simdjson::dom::array list = element[ids].get_array();
  for (const auto id : list) {
    made.ids.push_back(static_cast<Token>(id.get_int64().value()));
  }
  std::string_view decoded = made.text;
  if (element["decoded"].get(decoded) != simdjson::SUCCESS) decoded = made.text;
  made.decoded = decoded;
  return made;
}

// {"cases": [...]}, {"entries": [...]} or one object; empty when the file is absent.
std::vector<Vector> read_vectors(const std::string& path) {
  std::vector<Vector> vectors;
  const std::string json = read(path);
  if (json.empty()) return vectors;
  simdjson::dom::parser parser;
  const simdjson::dom::element root = parser.parse(json);
  simdjson::dom::array list;
  if (root["cases"].get(list) == simdjson::SUCCESS ||
      root["entries"].get(list) == simdjson::SUCCESS) {
    for (const auto element : list) vectors.push_back(vector_of(element, "text", "ids"));
  } else {
    vectors.push_back(vector_of(root, "prompt_text", "expected_token_ids"));
  }
  return vectors;
}

void expect_vectors(const Tokenizer& tokenizer, const std::vector<Vector>& vectors) {
  ASSERT_FALSE(vectors.empty());
  for (const Vector& vector : vectors) {
    EXPECT_EQ(tokenizer.encode(vector.text, false), vector.ids) << vector.text;
    EXPECT_EQ(tokenizer.decode(vector.ids, false), vector.decoded) << vector.text;
  }
}

TEST(TokenizerFile, AgreesWithHuggingFaceOnEveryStoredText) {
  for (const std::string name : {"deepseek-v3", "mistral-v0.1", "qwen3"}) {
    SCOPED_TRACE(name);
    const Tokenizer* tokenizer = load_own(name);
    ASSERT_NE(tokenizer, nullptr);
    const std::vector<Vector> vectors = read_vectors(kData + name + ".json");
    EXPECT_EQ(vectors.size(), 110U);
    expect_vectors(*tokenizer, vectors);
  }
}

TEST(TokenizerFile, AgreesOnTheRebuiltFilesOfDeepSeekLlmAndCoder) {
  for (const std::string name : {"deepseek-llm", "deepseek-coder"}) {
    SCOPED_TRACE(name);
    const Tokenizer* tokenizer =
        load(kShared + "tokenizers/" + name + ".rebuilt.tokenizer.json.gz");
    if (tokenizer == nullptr) GTEST_SKIP() << "no shared data: " << kShared;
    const std::vector<Vector> vectors = read_vectors(kShared + "token-vectors/" + name + ".json");
    EXPECT_EQ(vectors.size(), 110U);
    expect_vectors(*tokenizer, vectors);
  }
}

TEST(TokenizerFile, AgreesOnAThousandMixedTextsOfDeepSeekV3) {
  const Tokenizer* tokenizer = load_own("deepseek-v3");
  ASSERT_NE(tokenizer, nullptr);
  std::istringstream lines(read(kData + "deepseek_v3_vectors.jsonl.gz"));
  int count = 0;
  simdjson::dom::parser parser;
  for (std::string line; std::getline(lines, line); ++count) {
    const Vector vector = vector_of(parser.parse(line).value(), "text", "ids");
    ASSERT_EQ(tokenizer->encode(vector.text, false), vector.ids) << vector.text;
  }
  EXPECT_EQ(count, 1044);
}

TEST(TokenizerFile, AgreesOnThePromptsOfAnotherRouter) {
  for (const auto& [folder, name] : std::map<std::string, std::string>{
           {"deepseek-v3p2", "deepseek-v3"}, {"qwen3-30b", "qwen3"}}) {
    for (const char* file : {"short", "long", "multi_turn_with_tools", "special_token_heavy"}) {
      SCOPED_TRACE(folder + "/" + file);
      expect_vectors(*load_own(name),
                     read_vectors(kData + "parity/" + folder + "/" + file + ".json"));
    }
  }
}

TEST(TokenizerFile, AgreesWithLlamaCppsTextsForQwen2) {
  const std::string input = read(kData + "ggml-vocab-qwen2.gguf.inp");
  std::istringstream outputs(read(kData + "ggml-vocab-qwen2.gguf.out"));
  const std::string_view mark = "\n__ggml_vocab_test__\n";
  int count = 0;
  for (std::size_t at = 0; at < input.size(); ++count) {
    const std::size_t end = std::min(input.find(mark, at), input.size());
    std::string line;
    ASSERT_TRUE(std::getline(outputs, line));
    std::istringstream ids(line);
    const std::vector<Token> expected{std::istream_iterator<Token>(ids), {}};
    EXPECT_EQ(load_own("qwen3")->encode(input.substr(at, end - at), false), expected);
    at = end == input.size() ? end : end + mark.size();
  }
  EXPECT_EQ(count, 46);  // the last text of 47 is empty
}

TEST(TokenizerFile, AgreesOnTheTextsOfDeepSeekV2WhereItsVocabularyIsTheSame) {
  const Tokenizer* tokenizer = load(kShared + "tokenizers/deepseek-llm.rebuilt.tokenizer.json.gz");
  if (tokenizer == nullptr) GTEST_SKIP() << "no shared data: " << kShared;
  int count = 0;
  for (const Vector& vector :
       read_vectors(kShared + "op-goldens/vllm_cpp/tokenizer_deepseek_v2/encodings.json")) {
    // V2 has the words of DeepSeek-LLM, but no added tokens of one letter.
    bool has_letter = false;
    for (const char* letter : {"ø", "ö", "ú", "ÿ", "õ", "÷", "û", "ý", "À", "ù", "Á", "þ", "ü"}) {
      has_letter = has_letter || vector.text.find(letter) != std::string::npos;
    }
    if (has_letter) continue;
    EXPECT_EQ(tokenizer->encode(vector.text, false), vector.ids) << vector.text;
    ++count;
  }
  EXPECT_GE(count, 95);
}

TEST(TokenizerFile, MergesByScoreAsSentencePieceDoes) {
  // The file was made from a SentencePiece model by listing every way to make a word, the best
  // score first: so the words in the order of the list have the order of the scores.
  Result<TokenizerSpec> spec = parse_tokenizer(read(kData + "mistral-v0.1.tokenizer.json.gz"));
  ASSERT_TRUE(spec.has_value());
  std::map<std::string, float> scores;
  for (const MergeSpec& merge : spec->merges) {
    scores.emplace(merge.left + merge.right, -static_cast<float>(scores.size()));
  }
  spec->model = TokenizerModel::kScoreBpe;
  spec->merges.clear();
  for (std::size_t id = 0; id < spec->pieces.size(); ++id) {
    const auto score = scores.find(spec->pieces[id].text);
    spec->scores.push_back(score == scores.end() ? -1e9F : score->second);
    if (id >= 3 && id < 259) spec->pieces[id].kind = PieceKind::kByte;
  }
  const auto tokenizer = make_tokenizer(*std::move(spec));
  ASSERT_TRUE(tokenizer.has_value());
  expect_vectors(**tokenizer, read_vectors(kData + "mistral-v0.1.json"));
}

// --- Configuration
// --------------------------------------------------------------------------------

TEST(TokenizerFile, TakesBosFromTheConfiguration) {
  const std::string json = read(kData + "deepseek-v3.tokenizer.json.gz");
  Result<TokenizerSpec> plain = parse_tokenizer(json);
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(plain->bos, std::nullopt);
  EXPECT_TRUE(plain->prefix.empty());
  Result<TokenizerSpec> v3 = parse_tokenizer(json, read(kData + "npm_deepseek-v3.json"));
  ASSERT_TRUE(v3.has_value());
  EXPECT_EQ(v3->bos, 0);
  EXPECT_EQ(v3->eos, 1);
  EXPECT_THAT(v3->prefix, ::testing::ElementsAre(0));
  EXPECT_EQ(v3->added_tokens.size(), 818U);
  Result<TokenizerSpec> v32 = parse_tokenizer(json, read(kData + "DeepSeek-V3.2.json"));
  ASSERT_TRUE(v32.has_value());
  EXPECT_EQ(v32->bos, 0);
  EXPECT_TRUE(v32->prefix.empty());
}

TEST(TokenizerFile, AddsWhatTheTemplateSaysUnlessTheConfigurationKnowsBetter) {
  const std::string json = read(kData + "mistral-v0.1.tokenizer.json.gz");
  Result<TokenizerSpec> spec = parse_tokenizer(json);
  ASSERT_TRUE(spec.has_value());
  EXPECT_THAT(spec->prefix, ::testing::ElementsAre(1));
  const std::string config = R"({"bos_token":"<s>","eos_token":{"content":"</s>"},)";
  spec = parse_tokenizer(json, config + R"("add_bos_token":false,"add_eos_token":true})");
  ASSERT_TRUE(spec.has_value());
  EXPECT_TRUE(spec->prefix.empty());
  EXPECT_THAT(spec->suffix, ::testing::ElementsAre(2));
  spec = parse_tokenizer(json, config + R"("add_bos_token":true})");
  EXPECT_THAT(spec->prefix, ::testing::ElementsAre(1)) << "not twice";
}

TEST(TokenizerFile, AddsTokensThatOnlyTheConfigurationKnows) {
  const std::string json = read(kData + "deepseek-v3.tokenizer.json.gz");
  Result<TokenizerSpec> spec =
      parse_tokenizer(json, R"({"added_tokens_decoder":{"0":{"content":"ignored"},)"
                            R"("128820":{"content":"<new>","special":true}}})");
  ASSERT_TRUE(spec.has_value());
  EXPECT_EQ(spec->added_tokens.size(), 819U);
  const auto tokenizer = make_tokenizer(*std::move(spec));
  EXPECT_THAT((*tokenizer)->encode("<new>", false), ::testing::ElementsAre(128820));
}

TEST(TokenizerFile, KeepsTokensOfTheDialogueWhenSpecialOnesAreSkipped) {
  const Tokenizer& tokenizer = *load_own("deepseek-v3");
  const std::string text = "<｜begin▁of▁sentence｜><｜User｜>Hi<｜end▁of▁sentence｜>";
  const std::vector<Token> ids = tokenizer.encode(text, false);
  EXPECT_EQ(ids, (std::vector<Token>{0, 128803, 23166, 1}));
  EXPECT_EQ(tokenizer.decode(ids, false), text);
  EXPECT_EQ(tokenizer.decode(ids, true), "<｜User｜>Hi");
  EXPECT_TRUE(tokenizer.is_special(0));
  EXPECT_FALSE(tokenizer.is_special(128803));
  EXPECT_EQ(tokenizer.piece(128803), "<｜User｜>");
  EXPECT_EQ(tokenizer.vocabulary_size(), 128815);
}

// --- Properties
// -----------------------------------------------------------------------------------

// Bytes that are now and then text: letters of several scripts, emoji, spaces, and stray bytes.
std::string random_text(std::mt19937& random, bool valid) {
  static const std::vector<std::string> kParts = {
      "a",    "the", " ", "  ",   "\n", "\r\n",     "\t",     "1",
      "234",  "é",   "ö", "世界", "가", "か\u3099", "😀",      "👩‍👩‍👧",
      "'s",   "...", "<", "｜",   "▁",  "\u00A0",   "\u180E", "<｜User｜>",
      "</s>", "_"};
  std::string text;
  for (std::size_t i = random() % 24; i > 0; --i) {
    if (!valid && random() % 4 == 0) {
      text += static_cast<char>(random() % 256);
    } else {
      text += kParts[random() % kParts.size()];
    }
  }
  return text;
}

TEST(TokenizerFile, GivesEveryTextBack) {
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    const std::string text = random_text(random, round % 2 == 0);
    const Tokenizer& v3 = *load_own("deepseek-v3");
    ASSERT_EQ(v3.decode(v3.encode(text, false), false), to_valid_utf8(text));
    const Tokenizer& mistral = *load_own("mistral-v0.1");
    if (text.find("</s>") != std::string::npos || text.find("▁") != std::string::npos) continue;
    ASSERT_EQ(mistral.decode(mistral.encode(text, false), false), to_valid_utf8(text));
  }
}

TEST(TokenizerFile, DetokenizesIncrementallyWhatDecodeMakesAtOnce) {
  std::mt19937 random(6);
  for (const std::string name : {"deepseek-v3", "mistral-v0.1", "qwen3"}) {
    const Tokenizer& tokenizer = *load_own(name);
    for (int round = 0; round < 500; ++round) {
      std::vector<Token> ids = tokenizer.encode(random_text(random, false), true);
      for (std::size_t i = random() % 8; i > 0; --i) {
        ids.push_back(
            static_cast<Token>(random() % static_cast<unsigned>(tokenizer.vocabulary_size())));
      }
      const bool skip = round % 2 == 0;
      Detokenizer detokenizer(tokenizer, {.skip_special_tokens = skip});
      std::string text;
      for (const Token id : ids) {
        detokenizer.push(id, text);
        ASSERT_TRUE(is_valid_utf8(text));
      }
      detokenizer.finish(text);
      ASSERT_EQ(text, tokenizer.decode(ids, skip));
    }
  }
}

TEST(TokenizerFile, EncodesAMegabyteOfAnythingInSeconds) {
  const auto repeated = [](std::string_view unit, std::size_t size) {
    std::string text;
    while (text.size() < size) text += unit;
    return text;
  };
  // What is not linear would take minutes; sanitizers take ten times what the program takes.
  const double most = std::getenv("KUN_SANITIZED") == nullptr ? 5 : 50;
  for (const std::string name : {"deepseek-v3", "mistral-v0.1", "qwen3"}) {
    const Tokenizer& tokenizer = *load_own(name);
    for (const std::string_view unit :
         {"a", " ", "\n", "😀", "中", "1", "<", "\xFF", "ab", "▁", " \n", "\u0301", "<｜", "!",
          "<｜place▁holder▁no▁", "がか\u3099"}) {
      const std::size_t size = name == "deepseek-v3" ? 1U << 20U : 1U << 18U;
      const std::string text = repeated(unit, size) + "x";
      const double start = computed_s();
      const std::vector<Token> ids = tokenizer.encode(text, false);
      EXPECT_LT(computed_s() - start, most) << name << " " << unit;
      if (name == "deepseek-v3") {
        EXPECT_EQ(tokenizer.decode(ids, false), to_valid_utf8(text));
      }
    }
  }
}

TEST(TokenizerFile, LoadsALargeFileQuickly) {
  const std::string json = read(kData + "deepseek-v3.tokenizer.json.gz");
  const double start = computed_s();
  Result<TokenizerSpec> spec = parse_tokenizer(json);
  ASSERT_TRUE(spec.has_value());
  ASSERT_TRUE(make_tokenizer(*std::move(spec)).has_value());
  EXPECT_LT(computed_s() - start, 4);  // 0.2 s in a release build
}

// --- Hostile files
// --------------------------------------------------------------------------------

std::string tiny(const std::string& model = "", const std::string& more = "") {
  return R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"])" + model +
         R"(},"decoder":{"type":"ByteLevel"})" + more + "}";
}

std::string error_of(const std::string& json, const std::string& config = "") {
  Result<TokenizerSpec> spec = parse_tokenizer(json, config);
  if (!spec) return spec.error().message();
  const auto tokenizer = make_tokenizer(*std::move(spec));
  return tokenizer.has_value() ? "" : tokenizer.error().message();
}

TEST(TokenizerFile, RefusesUnknownComponentsByName) {
  EXPECT_EQ(error_of(tiny()), "");
  EXPECT_THAT(error_of(R"({"model":{"type":"Unigram"}})"), HasSubstr("model of type 'Unigram'"));
  for (const char* part : {"normalizer", "pre_tokenizer", "post_processor"}) {
    const std::string more = std::string(",\"") + part + R"(":{"type":"Strange"})";
    EXPECT_THAT(error_of(tiny("", more)), HasSubstr("of type 'Strange' is not supported")) << part;
  }
  EXPECT_THAT(error_of(R"({"model":{"vocab":{"a":0},"merges":[]},"decoder":{"type":"CTC"}})"),
              HasSubstr("'CTC'"));
  EXPECT_THAT(error_of(tiny(R"(,"dropout":0.1)")), HasSubstr("dropout"));
  EXPECT_THAT(error_of(tiny(R"(,"end_of_word_suffix":"</w>")")), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(error_of(tiny("", R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[)"
                                R"({"type":"ByteLevel"},{"type":"Digits"}]})")),
              HasSubstr("behind ByteLevel"));
  EXPECT_THAT(error_of(tiny("", R"(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?x)a"},)"
                                R"("behavior":"Isolated"})")),
              HasSubstr("split pattern"));
}

TEST(TokenizerFile, RefusesDamagedFilesWithOneSentence) {
  const std::vector<std::string> damaged = {
      "",
      "{",
      "[]",
      "{}",
      "null",
      "\xFF\xFE",
      R"({"model":3})",
      R"({"model":{"vocab":[],"merges":[]}})",
      R"({"model":{"vocab":{"a":-1},"merges":[]},"decoder":{"type":"ByteLevel"}})",
      R"({"model":{"vocab":{"a":99999999999},"merges":[]},"decoder":{"type":"ByteLevel"}})",
      R"({"model":{"vocab":{"a":1.5},"merges":[]},"decoder":{"type":"ByteLevel"}})",
      R"({"model":{"vocab":{"a":0,"b":0},"merges":[]},"decoder":{"type":"ByteLevel"}})",
      R"({"model":{"vocab":{"a":0},"merges":["aa"]},"decoder":{"type":"ByteLevel"}})",
      R"({"model":{"vocab":{"a":0},"merges":["a b"]},"decoder":{"type":"ByteLevel"}})",
      R"({"model":{"vocab":{"a":0},"merges":[["a"]]},"decoder":{"type":"ByteLevel"}})",
      R"({"model":{"vocab":{"a":0},"merges":[]}})",
      tiny(R"(,"unk_token":"<unk>")"),
      tiny("", R"(,"added_tokens":[{"content":"x"}])"),
      tiny("", R"(,"added_tokens":[{"id":-1,"content":"x"}])"),
      tiny("", R"(,"added_tokens":[{"id":2147483648,"content":"x"}])"),
      tiny("", R"(,"added_tokens":{})"),
      tiny("", R"(,"post_processor":{"type":"TemplateProcessing"})"),
      tiny("", R"(,"post_processor":{"type":"TemplateProcessing","single":[)"
               R"({"SpecialToken":{"id":"x"}}],"special_tokens":{}})"),
      tiny("", R"(,"normalizer":{"type":"Replace"})"),
      tiny("", R"(,"normalizer":)" + std::string(500, '[') + std::string(500, ']')),
  };
  for (const std::string& json : damaged) {
    const std::string error = error_of(json);
    EXPECT_FALSE(error.empty()) << json;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  std::string nested = R"({"type":"NFC"})";
  for (int i = 0; i < 20; ++i) nested = R"({"type":"Sequence","normalizers":[)" + nested + "]}";
  EXPECT_THAT(error_of(tiny("", ",\"normalizer\":" + nested)), HasSubstr("too many normalizers"));
  EXPECT_THAT(error_of(tiny(), R"({"added_tokens_decoder":{"x":{"content":"y"}}})"),
              HasSubstr("without an id"));
}

TEST(TokenizerFile, SurvivesFilesCutAndChangedAnywhere) {
  const std::string whole =
      tiny("", R"(,"added_tokens":[{"id":3,"content":"<x>","special":true}],)"
               R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"}]},)"
               R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split",)"
               R"("pattern":{"Regex":"\\p{N}{1,3}|[a-z&&[^b]]+"},"behavior":"Isolated",)"
               R"("invert":false},{"type":"ByteLevel","add_prefix_space":false}]},)"
               R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":)"
               R"({"id":"<x>","type_id":0}},{"Sequence":{"id":"A"}}],)"
               R"("special_tokens":{"<x>":{"ids":[3]}}})");
  ASSERT_EQ(error_of(whole), "");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(error_of(whole.substr(0, size)), "") << size;
  }
  std::mt19937 random(9);
  for (int round = 0; round < 4000; ++round) {
    std::string changed = whole;
    for (std::size_t i = 1 + random() % 3; i > 0; --i) {
      changed[random() % changed.size()] = static_cast<char>(random() % 128);
    }
    Result<TokenizerSpec> spec = parse_tokenizer(changed);
    if (!spec) continue;
    const auto tokenizer = make_tokenizer(*std::move(spec));
    if (tokenizer) (*tokenizer)->encode("ab 12 <x> é\xFF", true);
  }
}

TEST(TokenizerFile, NamesTheFileThatCannotBeRead) {
  const std::string missing = ::testing::TempDir() + "no_such_tokenizer.json";
  EXPECT_EQ(read_tokenizer_file(missing).error().code(), StatusCode::kNotFound);
  const std::string path =
      ::testing::TempDir() + "kun_damaged_tokenizer_" + std::to_string(::getpid()) + ".json";
  std::ofstream(path) << "{";
  EXPECT_THAT(read_tokenizer_file(path, missing).error().message(), HasSubstr(path));
  std::ofstream(path) << tiny();
  EXPECT_TRUE(read_tokenizer_file(path, missing).has_value()) << "the configuration is optional";
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace kun
