// Claims about tokenizers in GGUF files: llama.cpp's own check hashes, its texts and ids, and
// files built here that are wrong in one place.
#include "runtime/tokenizer_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "runtime/tokenizer_file.h"
#include "text/tokenizer.h"

namespace kun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kShared = KUN_SHARED_DATA "/";

// SHA-256 (FIPS 180-4), for hashes that are the only published answer.
class Sha256 {
 public:
  static std::string hex(const std::string& text) {
    Sha256 hash;
    std::string padded = text + '\x80';
    while (padded.size() % 64 != 56) padded += '\0';
    const std::uint64_t bits = text.size() * 8;
    for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(bits >> shift);
    for (std::size_t at = 0; at < padded.size(); at += 64) hash.block(padded.data() + at);
    std::string digest;
    for (const std::uint32_t word : hash.state_) {
      std::array<char, 9> digits;
      std::snprintf(digits.data(), digits.size(), "%08x", word);
      digest += digits.data();
    }
    return digest;
  }

 private:
  // The first 32 bits of the fractional part of a root of the first primes.
  static std::uint32_t fraction(double root) {
    return static_cast<std::uint32_t>((root - std::floor(root)) * 4294967296.0);
  }

  Sha256() {
    int found = 0;
    for (int n = 2; found < 64; ++n) {
      bool prime = true;
      for (int d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
      if (!prime) continue;
      if (found < 8) state_[static_cast<std::size_t>(found)] = fraction(std::sqrt(n));
      round_[static_cast<std::size_t>(found++)] = fraction(std::cbrt(n));
    }
  }

  void block(const char* bytes) {
    std::array<std::uint32_t, 64> w{};
    for (std::size_t i = 0; i < 64; ++i) {
      for (std::size_t b = 0; i < 16 && b < 4; ++b) {
        w[i] = (w[i] << 8U) | static_cast<unsigned char>(bytes[i * 4 + b]);
      }
      if (i < 16) continue;
      const std::uint32_t s0 =
          std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3U);
      const std::uint32_t s1 =
          std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10U);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    std::array<std::uint32_t, 8> s = state_;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t e = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
      const std::uint32_t a = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
      const std::uint32_t t1 = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + round_[i] + w[i];
      const std::uint32_t t2 = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) state_[i] += s[i];
  }

  std::array<std::uint32_t, 8> state_{};
  std::array<std::uint32_t, 64> round_{};
};

// As Python prints a list.
std::string printed(const std::vector<Token>& ids) {
  std::string text = "[";
  for (const Token id : ids) text += (text.size() > 1 ? ", " : "") + std::to_string(id);
  return text + "]";
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// llama.cpp's check text is case 45 of every vector file.
std::string check_text() {
  const std::string json = read(KUN_TEST_DATA "/tokenizer/deepseek-v3.json");
  simdjson::dom::parser parser;
  return std::string(parser.parse(json)["cases"].at(45)["text"].get_string().value());
}

std::unique_ptr<const Tokenizer> load(const std::string& path) {
  Result<GgufFile> file = GgufFile::open(path);
  EXPECT_TRUE(file.has_value()) << file.error().message();
  Result<TokenizerSpec> spec = read_tokenizer_gguf(*file);
  EXPECT_TRUE(spec.has_value()) << spec.error().message();
  auto tokenizer = make_tokenizer(*std::move(spec));
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().message();
  return *std::move(tokenizer);
}

bool exists(const std::string& path) {
  return std::ifstream(path).good();
}

TEST(TokenizerGguf, ReproducesTheCheckHashesOfDeepSeek) {
  EXPECT_EQ(Sha256::hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  for (const auto& [name, hash] : std::vector<std::pair<std::string, std::string>>{
           {"deepseek-llm", "049ecf76"}, {"deepseek-coder", "347715f5"}}) {
    const std::string path = kShared + "gguf-vocab/ggml-vocab-" + name + ".gguf";
    if (!exists(path)) GTEST_SKIP() << "absent: " << path;
    const std::vector<Token> ids = load(path)->encode(check_text(), true);
    EXPECT_EQ(Sha256::hex(printed(ids)).substr(0, 8), hash) << name;
  }
}

TEST(TokenizerGguf, GivesTheIdsOfTheVocabularysOwnTexts) {
  for (const std::string name : {"deepseek-llm", "deepseek-coder", "gpt-2"}) {
    const std::string path = kShared + "gguf-vocab/ggml-vocab-" + name + ".gguf";
    if (!exists(path)) GTEST_SKIP() << "absent: " << path;
    const auto tokenizer = load(path);
    const std::string vectors = kShared + "token-vectors/ggml-vocab/ggml-vocab-" + name + ".gguf";
    const std::string input = read(vectors + ".inp");
    std::istringstream outputs(read(vectors + ".out"));
    const std::string_view mark = "\n__ggml_vocab_test__\n";
    int count = 0;
    for (std::size_t at = 0; at < input.size(); ++count) {
      const std::size_t end = std::min(input.find(mark, at), input.size());
      std::string line;
      ASSERT_TRUE(std::getline(outputs, line));
      std::istringstream ids(line);
      const std::vector<Token> expected{std::istream_iterator<Token>(ids), {}};
      EXPECT_EQ(tokenizer->encode(input.substr(at, end - at), false), expected) << name;
      at = end == input.size() ? end : end + mark.size();
    }
    EXPECT_GE(count, 46) << name;
  }
}

TEST(TokenizerGguf, ReproducesTheCheckHashOfSmolLM2) {
  const char* path = std::getenv("KUN_TEST_MODEL");
  if (path == nullptr || !exists(path)) GTEST_SKIP() << "KUN_TEST_MODEL names no SmolLM2 GGUF";
  const auto tokenizer = load(path);
  EXPECT_EQ(Sha256::hex(printed(tokenizer->encode(check_text(), true))),
            "855059429035d75a914d1eda9f10a876752e281a054a7a3d421ef0533e5b6249");
  EXPECT_THAT(tokenizer->encode("<|im_start|>", true), ElementsAre(1));
  EXPECT_EQ(tokenizer->eos(), 2);
}

// --- Files built here
// -----------------------------------------------------------------------------

class GgufBuilder {
 public:
  GgufBuilder& text(const std::string& key, const std::string& value) {
    begin(key, 8);
    string(value);
    return *this;
  }
  GgufBuilder& flag(const std::string& key, bool value) {
    begin(key, 7);
    body_ += static_cast<char>(value);
    return *this;
  }
  GgufBuilder& number(const std::string& key, std::uint32_t value) {
    begin(key, 4);
    put(value);
    return *this;
  }
  GgufBuilder& texts(const std::string& key, const std::vector<std::string>& values) {
    begin_array(key, 8, values.size());
    for (const std::string& value : values) string(value);
    return *this;
  }
  template <class T>
  GgufBuilder& numbers(const std::string& key, std::uint32_t type, const std::vector<T>& values) {
    begin_array(key, type, values.size());
    for (const T value : values) put(value);
    return *this;
  }
  std::string bytes() const {
    std::string head = "GGUF";
    append(head, std::uint32_t{3});
    append(head, std::uint64_t{0});
    append(head, count_);
    return head + body_;
  }

 private:
  template <class T>
  static void append(std::string& to, T value) {
    std::array<char, sizeof(T)> bytes;
    std::memcpy(bytes.data(), &value, sizeof(T));
    to.append(bytes.data(), bytes.size());
  }
  template <class T>
  void put(T value) {
    append(body_, value);
  }
  void string(const std::string& value) {
    put(std::uint64_t{value.size()});
    body_ += value;
  }
  void begin(const std::string& key, std::uint32_t type) {
    ++count_;
    string(key);
    put(type);
  }
  void begin_array(const std::string& key, std::uint32_t type, std::uint64_t count) {
    begin(key, 9);
    put(type);
    put(count);
  }

  std::uint64_t count_ = 0;
  std::string body_;
};

GgufBuilder score_file() {
  GgufBuilder file;
  file.text("tokenizer.ggml.model", "llama");
  file.texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "<0x21>", "▁", "a", "▁a", "<mark>"});
  file.numbers<std::int32_t>("tokenizer.ggml.token_type", 5, {2, 3, 3, 6, 1, 1, 1, 4});
  file.numbers<float>("tokenizer.ggml.scores", 6, {0, 0, 0, 0, -3, -2, -1, 0});
  return file;
}

Result<TokenizerSpec> spec_of(const GgufBuilder& builder) {
  const std::string bytes = builder.bytes();
  Result<GgufFile> file =
      GgufFile::parse({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "built");
  EXPECT_TRUE(file.has_value()) << file.error().message();
  return read_tokenizer_gguf(*file);
}

std::string error_of(const GgufBuilder& builder) {
  Result<TokenizerSpec> spec = spec_of(builder);
  if (!spec) return spec.error().message();
  const auto tokenizer = make_tokenizer(*std::move(spec));
  return tokenizer ? "" : tokenizer.error().message();
}

TEST(TokenizerGguf, ReadsSentencePieceModels) {
  const auto tokenizer = make_tokenizer(*spec_of(score_file()));
  ASSERT_TRUE(tokenizer.has_value());
  EXPECT_THAT((*tokenizer)->encode("a a!<mark>a?", true), ElementsAre(1, 6, 6, 3, 7, 6, 0));
  EXPECT_EQ((*tokenizer)->decode(std::vector<Token>{1, 6, 6, 3, 7}, true), "a a!<mark>");
  EXPECT_TRUE((*tokenizer)->is_special(0));
  EXPECT_FALSE((*tokenizer)->is_special(7));
  const auto bare = make_tokenizer(*spec_of(score_file()
                                                .flag("tokenizer.ggml.add_space_prefix", false)
                                                .flag("tokenizer.ggml.add_bos_token", false)
                                                .flag("tokenizer.ggml.add_eos_token", true)));
  EXPECT_THAT((*bare)->encode("a a", true), ElementsAre(5, 6, 2));
  EXPECT_EQ((*bare)->decode(std::vector<Token>{6, 5}, true), " aa");
}

TEST(TokenizerGguf, KnowsThePreTokenizersByName) {
  const auto file = [](const std::string& name) {
    return GgufBuilder()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", name)
        .texts("tokenizer.ggml.tokens", {"1", "2", "12", "<s>"})
        .numbers<std::int32_t>("tokenizer.ggml.token_type", 5, {1, 1, 1, 3})
        .number("tokenizer.ggml.bos_token_id", 3)
        .number("tokenizer.ggml.eos_token_id", 0xFFFFFFFF)
        .texts("tokenizer.ggml.merges", {"1 2"});
  };
  for (const char* name : {"deepseek-llm", "deepseek-v3", "joyai-llm", "default", "gpt-2"}) {
    const auto tokenizer = make_tokenizer(*spec_of(file(name)));
    EXPECT_THAT((*tokenizer)->encode("12", true), ElementsAre(2)) << name;
    EXPECT_EQ((*tokenizer)->eos(), std::nullopt);
  }
  for (const char* name : {"deepseek-coder", "deepseek-r1-qwen", "qwen2", "smollm"}) {
    const auto tokenizer = make_tokenizer(*spec_of(file(name)));
    EXPECT_THAT((*tokenizer)->encode("12", true), ElementsAre(0, 1)) << name;
  }
  for (const char* name : {"llama-bpe", "llama3", "llama-v3", "llama-v3-tools"}) {
    const auto tokenizer = make_tokenizer(*spec_of(file(name)));
    EXPECT_THAT((*tokenizer)->encode("12", true), ElementsAre(3, 2)) << name;
  }
  EXPECT_THAT(error_of(file("tekken")), HasSubstr("pre-tokenizer 'tekken'"));
}

TEST(TokenizerGguf, RefusesFilesThatAreWrongInOnePlace) {
  EXPECT_EQ(error_of(score_file()), "");
  EXPECT_THAT(error_of(GgufBuilder()), HasSubstr("no tokenizer"));
  EXPECT_THAT(error_of(GgufBuilder().text("tokenizer.ggml.model", "bert")), HasSubstr("'bert'"));
  EXPECT_THAT(error_of(GgufBuilder().text("tokenizer.ggml.model", "gpt2")), HasSubstr("tokens"));
  EXPECT_THAT(error_of(score_file().number("tokenizer.ggml.bos_token_id", 8)),
              HasSubstr("bos_token_id"));
  GgufBuilder file;
  file.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", {"<unk>", "a"});
  EXPECT_THAT(error_of(file), HasSubstr("scores"));
  file.numbers<float>("tokenizer.ggml.scores", 6, {0, NAN});
  EXPECT_THAT(error_of(file), HasSubstr("token 1"));
  file.numbers<std::int32_t>("tokenizer.ggml.token_type", 5, {1});
  EXPECT_THAT(error_of(file), HasSubstr("token types"));
  GgufBuilder merges;
  merges.text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", {"a", "b"});
  EXPECT_THAT(error_of(merges), HasSubstr("merges"));
  EXPECT_THAT(error_of(GgufBuilder(merges).texts("tokenizer.ggml.merges", {"ab"})),
              HasSubstr("'ab'"));
  EXPECT_THAT(error_of(GgufBuilder(merges).texts("tokenizer.ggml.merges", {"a b"})),
              HasSubstr("merge 0"));
}

}  // namespace
}  // namespace kun
