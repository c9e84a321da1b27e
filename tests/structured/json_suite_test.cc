// The official test suite of JSON Schema, draft 2020-12, against grammars: a schema is compiled, or
// refused with a reason; a valid value can be said, an invalid one cannot. Measured beside what
// llguidance itself publishes for the same tests (tests/data/json-schema/README.md).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "server/json_view.h"
#include "text/byte_tokenizer.h"
#include "text/grammar.h"
#include "text/lark_text.h"
#include "text/test_grammar.h"

namespace kun {
namespace {

namespace fs = std::filesystem;
using Kind = JsonView::Kind;

const fs::path kData = KUN_TEST_DATA "/json-schema";

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

JsonDocument parse_file(const fs::path& path) {
  auto parsed = JsonDocument::parse(read_file(path), {.depth_max = 64});
  CHECK(parsed.has_value());
  return *std::move(parsed);
}

// As most programs write it: floats with a point, the shortest digits, no exponent if avoidable.
void print(JsonView value, std::string& text) {
  switch (value.kind()) {
    case Kind::kNumber: {
      const double number = value.number();
      std::string digits = fmt::format("{}", number);
      if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
      text += digits;
      return;
    }
    case Kind::kArray:
      text += '[';
      for (std::size_t i = 0; i < value.size(); ++i) {
        if (i > 0) text += ',';
        print(value.at(i), text);
      }
      text += ']';
      return;
    case Kind::kObject: {
      text += '{';
      for (std::size_t i = 0; i < value.size(); ++i) {
        if (i > 0) text += ',';
        text += lark_string(value.key(i)) + ':';
        print(value.at(i), text);
      }
      text += '}';
      return;
    }
    default: value.print(text);
  }
}

struct Counts {
  int pass = 0;
  int refused = 0;         // the schema, with a reason
  int false_positive = 0;  // an invalid value can be said: a schema that is half enforced
  int false_negative = 0;  // a valid value cannot
};

class Suite {
 public:
  Suite()
      : tokenizer_(make_byte_tokenizer()),
        expected_(parse_file(kData / "llguidance_expected.json")) {
    auto made = GrammarVocabulary::create(*tokenizer_);
    CHECK(made.has_value());
    vocabulary_ = *std::move(made);
  }

  void run(const std::string& topic) {
    const JsonDocument file = parse_file(kData / "suite" / (topic + ".json"));
    for (std::size_t g = 0; g < file.root().size(); ++g) run_group(topic, file.root().at(g));
  }

  const Counts& counts() const { return counts_; }
  const Counts& theirs() const { return theirs_; }
  const Counts& others() const { return others_; }  // of tests younger than their record
  const std::vector<std::string>& worse() const { return worse_; }
  const std::vector<std::string>& half_enforced() const { return half_enforced_; }

 private:
  void run_group(const std::string& topic, JsonView group) {
    std::string schema;
    group.find("schema")->print(schema);
    const auto grammar = vocabulary_->compile(json_source(schema));
    if (!grammar) {
      EXPECT_EQ(grammar.error().code(), StatusCode::kInvalidArgument) << schema;
      EXPECT_GT(grammar.error().message().size(), 15U) << schema;
    }
    const JsonView tests = *group.find("tests");
    const std::string description(group.find("description")->string());
    for (std::size_t t = 0; t < tests.size(); ++t) {
      const JsonView test = tests.at(t);
      const std::string name(test.find("description")->string());
      const std::string outcome = outcome_of(grammar ? grammar->get() : nullptr, test);
      const std::string theirs = expectation(topic, description, name);
      count(theirs == "absent" ? others_ : counts_, outcome);
      if (theirs != "absent") count(theirs_, theirs);
      const std::string where = topic + " | " + description + " | " + name;
      if (outcome == "false_positive") half_enforced_.push_back(where);
      if (theirs == "pass" && outcome != "pass") worse_.push_back(where + ": " + outcome);
    }
  }

  std::string outcome_of(const Grammar* grammar, JsonView test) {
    if (grammar == nullptr) return "refused";
    std::string text;
    print(*test.find("data"), text);
    const bool said = matches(*grammar, *tokenizer_, text);
    if (said == test.find("valid")->boolean()) return "pass";
    return said ? "false_positive" : "false_negative";
  }

  std::string expectation(const std::string& topic, const std::string& group,
                          const std::string& test) const {
    auto at = expected_.root().find("draft2020-12");
    for (const std::string& key : {topic, group, test}) {
      if (at) at = at->find(key);
    }
    return at ? std::string(at->string()) : "absent";
  }

  static void count(Counts& counts, const std::string& outcome) {
    if (outcome == "pass") {
      ++counts.pass;
    } else if (outcome == "false_positive") {
      ++counts.false_positive;
    } else if (outcome == "false_negative") {
      ++counts.false_negative;
    } else {
      ++counts.refused;
    }
  }

  std::unique_ptr<const Tokenizer> tokenizer_;
  JsonDocument expected_;
  std::unique_ptr<const GrammarVocabulary> vocabulary_;
  Counts counts_;
  Counts theirs_;
  Counts others_;
  std::vector<std::string> worse_;
  std::vector<std::string> half_enforced_;
};

TEST(JsonSchemaSuite, IsNoWorseThanLlguidancesOwnRecordAndHalfEnforcesNoKeyword) {
  Suite suite;
  std::set<std::string> topics;
  for (const auto& entry : fs::recursive_directory_iterator(kData / "suite")) {
    if (entry.path().extension() != ".json") continue;
    topics.insert(fs::relative(entry.path(), kData / "suite").replace_extension().string());
  }
  ASSERT_GT(topics.size(), 60U);
  for (const std::string& topic : topics) suite.run(topic);

  const auto show = [](std::string_view who, const Counts& counts) {
    fmt::print("{:12} {} pass, {} schema refused, {} false positive, {} false negative\n", who,
               counts.pass, counts.refused, counts.false_positive, counts.false_negative);
  };
  show("Kun:", suite.counts());
  show("llguidance:", suite.theirs());
  show("Kun, others:", suite.others());
  for (const std::string& where : suite.worse()) fmt::print("worse: {}\n", where);
  for (const std::string& where : suite.half_enforced()) fmt::print("half enforced: {}\n", where);

  EXPECT_GE(suite.counts().pass, suite.theirs().pass);
  // What formats mean beyond their own documents (Unicode's tables for host names, say) is not
  // enforced to the last; every other keyword is.
  for (const std::string& where : suite.half_enforced()) {
    EXPECT_TRUE(where.starts_with("optional/format/")) << where;
  }
  EXPECT_LT(suite.counts().false_positive, suite.theirs().false_positive);
}

}  // namespace
}  // namespace kun
