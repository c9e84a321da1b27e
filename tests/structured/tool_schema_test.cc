// The tool schemas of the Berkeley Function Calling Leaderboard, as they are and with Python's type
// names turned into JSON Schema's: each compiles, in every syntax of calls, or is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "server/json_view.h"
#include "server/tool_grammar.h"
#include "text/byte_tokenizer.h"
#include "text/grammar.h"

namespace kun {
namespace {

const std::string kFolder = KUN_SHARED_DATA "/tool-calls/";

// The leaderboard writes types as Python names them.
std::string with_json_types(std::string text) {
  const std::pair<std::string_view, std::string_view> kTypes[] = {
      {R"("type":"dict")", R"("type":"object")"},  {R"("type":"float")", R"("type":"number")"},
      {R"("type":"tuple")", R"("type":"array")"},  {R"("type":"list")", R"("type":"array")"},
      {R"("type":"bool")", R"("type":"boolean")"}, {R"("type":"any")", R"("title":"any")"},
      {R"("type":"Dict")", R"("type":"object")"},  {R"("type":"String")", R"("type":"string")"},
  };
  for (const auto& [from, to] : kTypes) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
      text.replace(at, from.size(), to);
    }
  }
  return text;
}

std::vector<ToolSchema> read_tools() {
  std::vector<ToolSchema> tools;
  for (const std::string name : {"irrelevance", "live_simple", "multiple", "parallel",
                                 "parallel_multiple", "simple_python"}) {
    std::ifstream in(kFolder + "BFCL_v4_" + name + ".jsonl");
    for (std::string line; std::getline(in, line);) {
      const auto json = JsonDocument::parse(line, {});
      if (!json) continue;
      const auto functions = json->root().find("function");
      for (std::size_t i = 0; functions && i < functions->size(); ++i) {
        ToolSchema& tool = tools.emplace_back();
        tool.name = functions->at(i).find("name")->string();
        functions->at(i).find("parameters")->print(tool.parameters);
      }
    }
  }
  return tools;
}

TEST(ToolSchemas, CompileInEverySyntaxOrAreRefusedWithAReason) {
  std::vector<ToolSchema> tools = read_tools();
  if (tools.empty()) GTEST_SKIP() << kFolder << " is not there";
  EXPECT_EQ(tools.size(), 2175U);
  const auto tokenizer = make_byte_tokenizer();
  const auto vocabulary = GrammarVocabulary::create(*tokenizer);
  ASSERT_TRUE(vocabulary);
  std::map<std::string, int> reasons;
  int compiled = 0;
  int refused = 0;
  const auto attempt = [&](const ToolSchema& tool, ToolCallFormat format, OtherAnswer other) {
    ToolChoice choice;
    choice.other = other;
    const auto source = grammar_for_tools({&tool, 1}, choice, format, *tokenizer);
    const Status status = !source ? source.error() : [&] {
      const auto grammar = (*vocabulary)->compile(*source);
      return grammar ? Status() : grammar.error();
    }();
    if (status.ok()) {
      ++compiled;
      return true;
    }
    ++refused;
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << tool.parameters;
    EXPECT_GT(status.message().size(), 15U);
    ++reasons[status.message().substr(0, 90)];
    return false;
  };
  constexpr ToolCallFormat kFormats[] = {ToolCallFormat::kHermes,      ToolCallFormat::kDeepSeekV3,
                                         ToolCallFormat::kDeepSeekV31, ToolCallFormat::kDeepSeekV32,
                                         ToolCallFormat::kDeepSeekV4,  ToolCallFormat::kLlama3Json};
  std::size_t i = 0;
  for (ToolSchema& tool : tools) {
    attempt(tool, ToolCallFormat::kHermes, OtherAnswer::kNone);  // as it is
    tool.parameters = with_json_types(std::move(tool.parameters));
    // Every syntax, and in each both calls that are forced and calls of strict tools.
    const bool forced = i / std::size(kFormats) % 2 == 0;
    attempt(tool, kFormats[i++ % std::size(kFormats)],
            forced ? OtherAnswer::kNone : OtherAnswer::kText);
  }
  fmt::print("{} compiled, {} refused\n", compiled, refused);
  for (const auto& [reason, count] : reasons) fmt::print("{:5}  {}\n", count, reason);
  EXPECT_GE(compiled, 2000);  // nearly all that are JSON Schema
}

}  // namespace
}  // namespace kun
