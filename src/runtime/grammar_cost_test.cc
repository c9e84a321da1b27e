// What masks cost with a vocabulary of 128k, DeepSeek V3's, over answers as models give them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>

#include "runtime/tokenizer_file.h"
#include "text/grammar.h"
#include "text/test_grammar.h"
#include "text/tokenizer.h"

namespace kun {
namespace {

const std::string kTokenizer = KUN_SHARED_DATA "/tokenizers/deepseek-v3.tokenizer.json.gz";

std::string unpack(const std::string& path) {
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

class Stopwatch {
 public:
  double lap_us() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::micro>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void show(std::string_view what, std::vector<double> values) {
  std::ranges::sort(values);
  fmt::print("{:28} mean {:7.1f} us, median {:7.1f} us, 99% {:7.1f} us, max {:7.1f} us, {} times\n",
             what, mean(values), values[values.size() / 2], values[values.size() * 99 / 100],
             values.back(), values.size());
}

struct Case {
  std::string_view name, schema, text;
};

constexpr std::array kCases = {
    Case{"any object", R"({"type":"object"})",
         R"({"title": "A day at the sea", "tags": ["sun", "wind", "中文字符"], "count": 17,
             "nested": {"deep": [1.5, null, true, {"x": "a longer text with several words"}]}})"},
    Case{"a person",
         R"({"type":"object","properties":{"name":{"type":"string","maxLength":40},
             "age":{"type":"integer","minimum":0,"maximum":150},"email":{"type":"string",
             "format":"email"},"born":{"type":"string","format":"date"},"tags":{"type":"array",
             "items":{"enum":["a","b","c"]},"maxItems":5}},"required":["name","age","email","born"],
             "additionalProperties":false})",
         R"({"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "born": "1815-12-10",
             "tags": ["a", "c"]})"},
};

TEST(GrammarCost, IsSmallBesideAStepWithAVocabularyOf128k) {
  const std::string json = unpack(kTokenizer);
  if (json.empty()) GTEST_SKIP() << kTokenizer << " is not there";
  auto spec = parse_tokenizer(json);
  ASSERT_TRUE(spec) << spec.error().message();
  const auto tokenizer = make_tokenizer(*std::move(spec));
  ASSERT_TRUE(tokenizer) << tokenizer.error().message();
  Stopwatch watch;
  const auto vocabulary = GrammarVocabulary::create(**tokenizer);
  ASSERT_TRUE(vocabulary) << vocabulary.error().message();
  const int size = (*tokenizer)->vocabulary_size();
  fmt::print("{} tokens prepared in {:.0f} ms\n", size, watch.lap_us() / 1e3);
  for (const Case& each : kCases) {
    watch.lap_us();
    const auto grammar = (*vocabulary)->compile(json_source(std::string(each.schema)));
    ASSERT_TRUE(grammar) << grammar.error().message();
    fmt::print("{}: compiled in {:.1f} ms, {} KB\n", each.name, watch.lap_us() / 1e3,
               (*grammar)->bytes() >> 10U);
    std::vector<double> masks;
    std::vector<double> advances;
    std::vector<std::uint32_t> bits((static_cast<std::size_t>(size) + 31) / 32);
    const std::vector<Token> tokens = (*tokenizer)->encode(each.text, false);
    for (int round = 0; round < 20; ++round) {
      const auto state = (*grammar)->begin();
      for (const Token token : tokens) {
        watch.lap_us();
        ASSERT_TRUE(state->fill_mask(bits).ok());
        masks.push_back(watch.lap_us());
        ASSERT_TRUE(allows(bits, token)) << (*tokenizer)->piece(token);
        watch.lap_us();
        ASSERT_TRUE(state->advance(token).ok());
        advances.push_back(watch.lap_us());
      }
      EXPECT_NE(state->ending(), TokenConstraint::Ending::kNotYet);
    }
    fmt::print("{:28} {:.1f} us\n", "  first mask", masks.front());
    show("  mask, beside the forward", masks);
    show("  advance", advances);
    // A step of a model with such a vocabulary takes 10 ms and more on any machine it fits.
    EXPECT_LT(mean(masks), 2'000.0);
    EXPECT_LT(mean(advances), 500.0);
  }
}

}  // namespace
}  // namespace kun
