#include "text/answer_parser.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include "text/json_cursor.h"

namespace kun {
namespace {

struct Answer {
  std::string reasoning;
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool calls_tools = false;

  bool operator==(const Answer&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Answer& answer) {
  out << "reasoning [" << answer.reasoning << "] content [" << answer.content << "]";
  for (const auto& [name, arguments] : answer.calls) out << " " << name << "(" << arguments << ")";
  return out << (answer.calls_tools ? " calls" : " no calls");
}

void add(Answer& answer, const AnswerPiece& piece) {
  answer.reasoning += piece.reasoning;
  answer.content += piece.content;
  for (const ToolCallPiece& call : piece.calls) {
    if (!call.name.empty()) answer.calls.emplace_back(call.name, "");
    EXPECT_EQ(call.index + 1, static_cast<int>(answer.calls.size()));
    answer.calls.back().second += call.arguments;
  }
}

// `ends`: where each portion ends.
Answer parse(const AnswerParserOptions& options, std::string_view text,
             const std::vector<std::size_t>& ends) {
  AnswerParser parser(options);
  Answer answer;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    add(answer, parser.feed(text.substr(begin, end - begin)));
    begin = end;
  }
  add(answer, parser.feed(text.substr(begin)));
  add(answer, parser.finish());
  answer.calls_tools = parser.calls_tools();
  return answer;
}

AnswerParserOptions with(ToolSyntax tools, ReasoningSyntax reasoning = ReasoningSyntax::kNone,
                         ReasoningStart start = ReasoningStart::kUndecided) {
  AnswerParserOptions options;
  options.syntax = {reasoning, tools};
  options.start = start;
  options.tool_names = {"get_weather", "f"};
  return options;
}

Answer parse(const AnswerParserOptions& options, std::string_view text) {
  return parse(options, text, {});
}

Answer said(std::string content) {
  return {"", std::move(content), {}, false};
}

constexpr std::string_view kV3 =
    "I look.\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    "```json\n{\"city\": \"上海\"}\n```<｜tool▁call▁end｜>\n"
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": [1, {\"b\": \"}\"}]}\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
constexpr std::string_view kV31 =
    "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
    "{\"city\": \"上海\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
    "{\"a\": [1, {\"b\": \"}\"}]}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
constexpr std::string_view kHermes =
    "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"上海\"}}\n"
    "</tool_call>\n<tool_call>\n{\"arguments\": {\"a\": [1, {\"b\": \"}\"}]}, \"id\": 7, "
    "\"name\": \"f\"}\n</tool_call>\n";
constexpr std::string_view kLlama =
    "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"上海\"}}; "
    "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": [1, {\"b\": \"}\"}]}}";
constexpr std::string_view kV32 =
    "I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n"
    "<｜DSML｜parameter name=\"city\" string=\"true\">上海 \"x\"\n</b></｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"days\" string=\"false\">[1, 2]</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n"
    "</｜DSML｜function_calls>";

std::string as_v4(std::string text) {
  for (std::size_t at = 0; (at = text.find("function_calls", at)) != std::string::npos;) {
    text.replace(at, 14, "tool_calls");
  }
  return text;
}

const Answer kTwoCalls = {
    "",
    "I look.",
    {{"get_weather", "{\"city\": \"上海\"}"}, {"f", "{\"a\": [1, {\"b\": \"}\"}]}"}},
    true};
const Answer kTwoDsmlCalls = {
    "",
    "I look.",
    {{"get_weather", "{\"city\": \"上海 \\\"x\\\"\\n</b>\", \"days\": [1, 2]}"}, {"f", "{}"}},
    true};

TEST(AnswerParser, ReadsTheCallsOfEverySyntax) {
  EXPECT_EQ(parse(with(ToolSyntax::kDeepSeekV3), kV3), kTwoCalls);
  EXPECT_EQ(parse(with(ToolSyntax::kDeepSeekV31), kV31), kTwoCalls);
  EXPECT_EQ(parse(with(ToolSyntax::kHermes), kHermes), kTwoCalls);
  Answer llama = kTwoCalls;
  llama.content.clear();
  EXPECT_EQ(parse(with(ToolSyntax::kLlama3Json), kLlama), llama);
  EXPECT_EQ(parse(with(ToolSyntax::kDeepSeekV32), kV32), kTwoDsmlCalls);
  EXPECT_EQ(parse(with(ToolSyntax::kDeepSeekV4), as_v4(std::string(kV32))), kTwoDsmlCalls);
}

struct Recorded {
  AnswerParserOptions options;
  std::string text;
};

std::vector<Recorded> recorded() {
  std::vector<Recorded> all;
  const auto add_text = [&](const AnswerParserOptions& options, std::string text) {
    all.push_back({options, std::move(text)});
  };
  const auto r1 = ReasoningSyntax::kDeepSeekR1;
  const auto v3 = ReasoningSyntax::kDeepSeekV3;
  add_text(with(ToolSyntax::kDeepSeekV3, r1), "<think>\nHm, <th</think>\n\n" + std::string(kV3));
  add_text(with(ToolSyntax::kDeepSeekV31, v3, ReasoningStart::kOpen),
           "Hm.</think>" + std::string(kV31));
  add_text(with(ToolSyntax::kHermes, ReasoningSyntax::kQwen3),
           "<think>\n\n</think>\n\n" + std::string(kHermes) + "Done <tool_call> then <too");
  add_text(with(ToolSyntax::kLlama3Json), " \n" + std::string(kLlama) + " and text");
  add_text(with(ToolSyntax::kDeepSeekV32, v3, ReasoningStart::kOpen),
           "a</thin</think>" + std::string(kV32) + "\n\n");
  add_text(with(ToolSyntax::kDeepSeekV4), as_v4(std::string(kV32)) + " tail");
  add_text(with(ToolSyntax::kHermes), "x <tool_call>{\"name\": \"f\", \"arguments\": [1,2");
  add_text(with(ToolSyntax::kHermes), "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1x}}");
  add_text(with(ToolSyntax::kDeepSeekV31),
           "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁calls▁begin｜>x <｜tool");
  add_text(with(ToolSyntax::kLlama3Json), "{\"name\": \"Bob\", \"parameters\": {\"a\": 1}}");
  return all;
}

TEST(AnswerParser, GivesTheSameAnswerHoweverTheTextIsCut) {
  std::mt19937 random(7);
  for (const Recorded& record : recorded()) {
    const Answer whole = parse(record.options, record.text);
    const std::size_t size = record.text.size();
    std::vector<std::size_t> every_byte;
    for (std::size_t i = 1; i < size; ++i) every_byte.push_back(i);
    EXPECT_EQ(parse(record.options, record.text, every_byte), whole);
    for (std::size_t i = 0; i <= size; ++i) {
      ASSERT_EQ(parse(record.options, record.text, {i}), whole) << "cut at " << i;
    }
    for (std::size_t round = 0; round < 300; ++round) {
      std::vector<std::size_t> ends;
      auto step = std::uniform_int_distribution<std::size_t>(1, 1 + round % 40);
      for (std::size_t at = step(random); at < size; at += step(random)) ends.push_back(at);
      ASSERT_EQ(parse(record.options, record.text, ends), whole) << "round " << round;
    }
  }
}

// A truncated text loses its end and nothing else: what was sent before stays true.
TEST(AnswerParser, EveryBeginningOfATextGivesABeginningOfItsCalls) {
  for (const Recorded& record : recorded()) {
    const Answer whole = parse(record.options, record.text);
    for (std::size_t size = 0; size < record.text.size(); ++size) {
      const Answer part = parse(record.options, std::string_view(record.text).substr(0, size));
      ASSERT_LE(part.calls.size(), whole.calls.size());
      for (std::size_t i = 0; i < part.calls.size(); ++i) {
        EXPECT_EQ(part.calls[i].first, whole.calls[i].first);
        if (part.calls_tools) {
          EXPECT_TRUE(is_json_value(part.calls[i].second)) << part.calls[i].second;
        } else {
          EXPECT_TRUE(whole.calls[i].second.starts_with(part.calls[i].second));
        }
      }
    }
  }
}

TEST(AnswerParser, TreatsAMarkWithoutACallAsText) {
  for (const std::string text :
       {"<｜tool▁calls▁begin｜>", "a\n<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>[1,2"}) {
    EXPECT_EQ(parse(with(ToolSyntax::kDeepSeekV31), text), said(text));
  }
  for (const std::string text : {"<tool_call>", "<tool_call>\n{\"name\": \"f\"", "a <tool_call> b",
                                 "<tool_call>{\"name\": \"f\", \"arguments\": [1,2]}</tool_call>",
                                 "<tool_call>{\"arguments\": {}}</tool_call>"}) {
    EXPECT_EQ(parse(with(ToolSyntax::kHermes), text), said(text));
  }
  for (const std::string text :
       {"<｜DSML｜tool_calls>", "<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n", "<｜DSML｜tool_calls> hello"}) {
    EXPECT_EQ(parse(with(ToolSyntax::kDeepSeekV4), text), said(text));
  }
  const std::string json = "{\"name\": \"Bob\", \"parameters\": {\"age\": 7}}";
  EXPECT_EQ(parse(with(ToolSyntax::kLlama3Json), json), said(json)) << "no tool is called Bob";
}

TEST(AnswerParser, ForgivesMissingMarksAtTheEnd) {
  const std::string v31 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}";
  const Answer call = {"", "", {{"f", "{}"}}, true};
  EXPECT_EQ(parse(with(ToolSyntax::kDeepSeekV31), v31), call);
  EXPECT_EQ(parse(with(ToolSyntax::kDeepSeekV31), v31 + "<｜tool▁call▁end｜>"), call);
  EXPECT_EQ(parse(with(ToolSyntax::kHermes), "<tool_call>{\"name\":\"f\",\"arguments\":{}}"), call);
  const std::string dsml =
      "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" "
      "string=\"false\">1</｜DSML｜parameter>";
  EXPECT_EQ(parse(with(ToolSyntax::kDeepSeekV4), dsml),
            (Answer{"", "", {{"f", "{\"a\": 1}"}}, true}));
}

TEST(AnswerParser, NeverCallsAnswersWithBrokenArgumentsToolCalls) {
  const Answer broken =
      parse(with(ToolSyntax::kDeepSeekV31),
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1x}");
  EXPECT_FALSE(broken.calls_tools);
  EXPECT_EQ(broken.content, "x}");
  const Answer cut =
      parse(with(ToolSyntax::kHermes), "<tool_call>{\"name\":\"f\",\"arguments\":{\"a");
  EXPECT_FALSE(cut.calls_tools);
  // The marks of V3.2 in the hands of the parser of V3.1 are text.
  EXPECT_EQ(parse(with(ToolSyntax::kDeepSeekV31), kV32), said(std::string(kV32)));
}

TEST(AnswerParser, RepairsWhatModelsWriteIntoStrings) {
  const Answer raw_line_end =
      parse(with(ToolSyntax::kHermes),
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"1\n2\t\"}}</tool_call>");
  EXPECT_EQ(raw_line_end, (Answer{"", "", {{"f", "{\"a\":\"1\\n2\\t\"}"}}, true}));
  // V4's way of saying that a value is no string, around a string.
  const Answer unquoted = parse(
      with(ToolSyntax::kDeepSeekV4),
      "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" "
      "string=\"false\">New \"York\"</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>");
  EXPECT_EQ(unquoted, (Answer{"", "", {{"f", "{\"a\": \"New \\\"York\\\"\"}"}}, true}));
}

TEST(AnswerParser, StreamsArgumentsAsTheyAreWritten) {
  const std::string long_text(2000, 'x');
  std::map<ToolSyntax, std::string> texts = {
      {ToolSyntax::kDeepSeekV31,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": \""},
      {ToolSyntax::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \""},
      {ToolSyntax::kLlama3Json, "{\"name\": \"f\", \"parameters\": {\"a\": \""},
      {ToolSyntax::kDeepSeekV4,
       "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" "
       "string=\"true\">"}};
  for (const auto& [syntax, begin] : texts) {
    AnswerParser parser(with(syntax));
    EXPECT_EQ(parser.feed(begin).calls.size(), 1U);
    for (const char byte : long_text) {
      const AnswerPiece piece = parser.feed({&byte, 1});
      ASSERT_EQ(piece.calls.size(), 1U);
      ASSERT_EQ(piece.calls[0].arguments, "x");
    }
  }
}

TEST(AnswerParser, StopsAfterTheCallsThatWereAllowed) {
  AnswerParserOptions options = with(ToolSyntax::kHermes);
  options.calls_max = 1;
  AnswerParser parser(options);
  Answer answer;
  add(answer, parser.feed(kHermes));
  EXPECT_TRUE(parser.over());
  add(answer, parser.finish());
  EXPECT_EQ(answer.calls.size(), 1U);
}

struct Thought {
  ReasoningSyntax syntax;
  ReasoningStart start;
  std::string text;
  std::string reasoning;
  std::string content;
};

TEST(AnswerParser, PartsThoughtsFromWhatIsSaid) {
  const auto r1 = ReasoningSyntax::kDeepSeekR1;
  const auto v3 = ReasoningSyntax::kDeepSeekV3;
  const auto qwen = ReasoningSyntax::kQwen3;
  const auto open = ReasoningStart::kOpen;
  const auto closed = ReasoningStart::kClosed;
  const auto undecided = ReasoningStart::kUndecided;
  const std::vector<Thought> cases = {
      {r1, open, "I think…</think>Answer", "I think…", "Answer"},
      {r1, undecided, "I think…</think>Answer", "I think…", "Answer"},
      {r1, undecided, "<think>\nI think…\n</think>\n\nAnswer\n", "I think…", "Answer\n"},
      {r1, open, "</think>\n\nhi", "", "hi"},
      {r1, open, "no end", "no end", ""},
      {r1, open, "a</th", "a</th", ""},
      {r1, closed, "{\"a\":1}", "", "{\"a\":1}"},
      {v3, closed, "plain", "", "plain"},
      {v3, undecided, "plain <think>x</think>", "", "plain <think>x</think>"},
      {v3, open, "\na\n</think>\nb", "\na\n", "\nb"},
      {qwen, undecided, "<think>\n\n</think>\n\nhi", "", "hi"},
      {qwen, undecided, "\n <thing", "", "\n <thing"},
      {qwen, closed, "\n\nhi", "", "hi"},
      {qwen, open, "a\n\nb\n</think>\nc", "a\n\nb", "c"},
      {ReasoningSyntax::kNone, undecided, "<think>a</think>b", "", "<think>a</think>b"},
  };
  for (const Thought& thought : cases) {
    const Answer expected = {thought.reasoning, thought.content, {}, false};
    EXPECT_EQ(parse(with(ToolSyntax::kNone, thought.syntax, thought.start), thought.text), expected)
        << thought.text;
    std::vector<std::size_t> ends;
    for (std::size_t i = 1; i < thought.text.size(); ++i) ends.push_back(i);
    EXPECT_EQ(parse(with(ToolSyntax::kNone, thought.syntax, thought.start), thought.text, ends),
              expected);
  }
}

TEST(AnswerParser, NeverLeaksAPieceOfAMark) {
  AnswerParser parser(with(ToolSyntax::kNone, ReasoningSyntax::kDeepSeekR1));
  EXPECT_TRUE(parser.in_reasoning());
  for (const std::string_view piece : {"</", "thi", "nk", ">"}) {
    EXPECT_TRUE(parser.feed(piece).empty());
  }
  EXPECT_FALSE(parser.in_reasoning());
  EXPECT_EQ(parser.feed("x").content, "x");
}

TEST(AnswerParser, TakesTimeThatGrowsWithTheTextOnly) {
  const auto repeat = [](std::string_view text) {
    std::string all;
    while (all.size() < 100'000) all += text;
    return all;
  };
  const std::vector<std::pair<ToolSyntax, std::string>> hostile = {
      {ToolSyntax::kHermes, repeat("<tool_call>")},
      {ToolSyntax::kHermes, repeat("<tool_call>{\"")},
      {ToolSyntax::kHermes, repeat("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":")},
      {ToolSyntax::kHermes, "<tool_call>{\"arguments\":{\"a\":\"" + repeat("a")},
      {ToolSyntax::kHermes, "<tool_call>" + repeat(" ")},
      {ToolSyntax::kDeepSeekV31, repeat("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>")},
      {ToolSyntax::kDeepSeekV3, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>" + repeat("f")},
      {ToolSyntax::kDeepSeekV4, repeat("<｜DSML｜tool_calls><｜DSML｜invoke name=\"")},
      {ToolSyntax::kDeepSeekV4, repeat("\n")},
      {ToolSyntax::kLlama3Json, "{\"a\":" + repeat("[")},
  };
  for (const auto& [syntax, text] : hostile) {
    const auto begin = std::chrono::steady_clock::now();
    AnswerParser parser(with(syntax));
    for (const char byte : text) parser.feed({&byte, 1});
    parser.finish();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.count(), 2.0) << text.substr(0, 40);  // linear: some 20 ms
  }
}

TEST(AnswerSyntax, IsToldByTheTemplatesOfReleasedModels) {
  struct Case {
    std::string_view name;
    ReasoningSyntax reasoning;
    ToolSyntax tools;
  };
  for (const Case& each :
       {Case{"DeepSeek-R1-Distill-Llama-8B", ReasoningSyntax::kDeepSeekR1, ToolSyntax::kDeepSeekV3},
        Case{"deepseek-v3", ReasoningSyntax::kNone, ToolSyntax::kDeepSeekV3},
        Case{"DeepSeek-V3.1", ReasoningSyntax::kDeepSeekV3, ToolSyntax::kDeepSeekV31},
        Case{"DeepSeek-V3.2", ReasoningSyntax::kDeepSeekV3, ToolSyntax::kDeepSeekV32},
        Case{"DeepSeek-V4-Flash-0731", ReasoningSyntax::kDeepSeekV3, ToolSyntax::kDeepSeekV4},
        Case{"Qwen2.5-7B-Instruct", ReasoningSyntax::kNone, ToolSyntax::kHermes},
        Case{"qwen3", ReasoningSyntax::kQwen3, ToolSyntax::kHermes},
        Case{"Qwen3-Coder", ReasoningSyntax::kNone, ToolSyntax::kNone},
        Case{"SmolLM3-3B", ReasoningSyntax::kQwen3, ToolSyntax::kNone}}) {
    std::ifstream file(std::string(KUN_TEST_DATA) + "/chat/templates/" + std::string(each.name) +
                       ".jinja");
    ASSERT_TRUE(file) << each.name;
    const AnswerSyntax syntax =
        detect_answer_syntax(std::string(std::istreambuf_iterator<char>(file), {}));
    EXPECT_EQ(syntax.reasoning, each.reasoning) << each.name;
    EXPECT_EQ(syntax.tools, each.tools) << each.name;
  }
  // As Llama 3.1 tells its tools, and GLM 4.6 its calls.
  EXPECT_EQ(detect_answer_syntax("'<|start_header_id|>' {{- '\"parameters\": ' }}").tools,
            ToolSyntax::kLlama3Json);
  EXPECT_EQ(detect_answer_syntax("<tool_call>{{ name }}\n<arg_key>").tools, ToolSyntax::kNone);
}

TEST(AnswerSyntax, KnowsVllmsNames) {
  for (const std::string_view name : tool_syntax_names()) EXPECT_TRUE(parse_tool_syntax(name));
  for (const std::string_view name : reasoning_syntax_names()) {
    EXPECT_TRUE(parse_reasoning_syntax(name));
  }
  EXPECT_FALSE(parse_tool_syntax("pythonic"));
  EXPECT_FALSE(parse_reasoning_syntax(""));
}

TEST(AnswerSyntax, SeesHowAPromptLeavesTheMatterOfThinking) {
  EXPECT_EQ(reasoning_start("<｜Assistant｜><think>\n"), ReasoningStart::kOpen);
  EXPECT_EQ(reasoning_start("<think>\n\n</think>\n\n"), ReasoningStart::kClosed);
  EXPECT_EQ(reasoning_start("<｜Assistant｜>"), ReasoningStart::kUndecided);
  EXPECT_EQ(reasoning_start(""), ReasoningStart::kUndecided);
}

}  // namespace
}  // namespace kun
