// Chat templates against recorded renderings of Jinja2, the normalization of messages, and
// templates that try to take the process down.
#include "text/chat_template.h"

#include <gtest/gtest.h>
#include <kun_bridge.h>
#include <simdjson.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace kun {
namespace {

namespace fs = std::filesystem;

// 2026-01-02 03:04:05 UTC, the time of the recorded renderings.
constexpr std::int64_t kRecordedNow = 1767323045;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

kun_bridge_view view(std::string_view text) {
  return {.data = text.data(), .size = text.size()};
}

std::string take(kun_bridge_string string) {
  std::string text = string.size == 0 ? "" : std::string(string.data, string.size);
  kun_bridge_string_free(string);
  return text;
}

// Renders without normalization and at a given time, which ChatTemplate does not offer.
class RawTemplate {
 public:
  RawTemplate(const std::string& source, const std::string& bos, const std::string& eos) {
    kun_bridge_string error = {};
    status_ = kun_template_compile(view(source), view(bos), view(eos), {1'000'000, 1U << 20U},
                                   &handle_, &error);
    error_ = take(error);
  }
  ~RawTemplate() { kun_template_free(handle_); }
  RawTemplate(const RawTemplate&) = delete;
  RawTemplate& operator=(const RawTemplate&) = delete;

  bool compiled() const { return status_ == KUN_BRIDGE_OK; }
  const std::string& error() const { return error_; }

  bool render(const ChatTemplateInput& input, std::string& text) const {
    const kun_template_input raw = {.messages = view(input.messages),
                                    .tools = view(input.tools),
                                    .extra = view(input.extra),
                                    .now = kRecordedNow,
                                    .add_generation_prompt = input.add_generation_prompt ? 1 : 0,
                                    .normalize = 0};
    kun_bridge_string output = {};
    const kun_bridge_status status = kun_template_render(handle_, &raw, &output);
    text = take(output);
    EXPECT_NE(status, KUN_BRIDGE_PANICKED) << text;
    return status == KUN_BRIDGE_OK;
  }

 private:
  kun_template* handle_ = nullptr;
  kun_bridge_status status_ = KUN_BRIDGE_OK;
  std::string error_;
};

struct Case {
  std::string name, messages, tools, extra;
  bool add_generation_prompt = true;

  ChatTemplateInput input() const { return {messages, tools, extra, add_generation_prompt}; }
};

std::string text_of(simdjson::dom::element element) {
  return element.is_null() ? std::string() : std::string(simdjson::minify(element));
}

std::vector<Case> load_cases(const fs::path& path) {
  simdjson::dom::parser parser;
  const std::string text = read_file(path);
  std::vector<Case> cases;
  for (simdjson::dom::element item : parser.parse(text)["cases"].get_array()) {
    cases.push_back({.name = std::string(item["name"].get_string().value()),
                     .messages = text_of(item["messages"].value()),
                     .tools = text_of(item["tools"].value()),
                     .extra = text_of(item["kwargs"].value()),
                     .add_generation_prompt = item["add_generation_prompt"].get_bool().value()});
  }
  return cases;
}

const Case& find_case(const std::vector<Case>& cases, std::string_view name) {
  for (const Case& item : cases) {
    if (item.name == name) return item;
  }
  ADD_FAILURE() << name;
  return cases.front();
}

// Where Jinja2 fails and we do not, on purpose: `map` gives a generator there, which json.dumps
// refuses, and a list here. The template was written for llama.cpp, which prints the list too.
bool may_succeed(std::string_view file, std::string_view error) {
  return file == "llama.cpp__llama-cpp-deepseek-r1.jinja.json" &&
         error == "TypeError: Object of type generator is not JSON serializable";
}

struct Tally {
  int equal = 0, failed_alike = 0, excused = 0;
};

void compare_renders(const fs::path& file, const fs::path& root, const std::vector<Case>& cases,
                     Tally& tally) {
  simdjson::dom::parser parser;
  const std::string text = read_file(file);
  const simdjson::dom::element record = parser.parse(text).value();
  const auto field = [&](const char* name) {
    return std::string(record[name].get_string().value());
  };
  const RawTemplate compiled(read_file(root / field("template")), field("bos_token"),
                             field("eos_token"));
  ASSERT_TRUE(compiled.compiled()) << file << ": " << compiled.error();
  for (const Case& item : cases) {
    SCOPED_TRACE(file.filename().string() + " " + item.name);
    const simdjson::dom::element expected = record["renders"][item.name].value();
    std::string output;
    const bool rendered = compiled.render(item.input(), output);
    std::string_view out, error;
    if (expected["out"].get(out) == simdjson::SUCCESS) {
      EXPECT_TRUE(rendered) << output;
      EXPECT_EQ(output, out);
      ++tally.equal;
    } else if (expected["error"].get(error) == simdjson::SUCCESS) {
      const bool excused = rendered && may_succeed(file.filename().string(), error);
      EXPECT_TRUE(!rendered || excused) << error << " but: " << output;
      ++(excused ? tally.excused : tally.failed_alike);
    }
  }
}

Tally compare_folder(const fs::path& renders, const fs::path& root, const fs::path& cases_file) {
  setenv("TZ", "UTC", 1);
  tzset();
  const std::vector<Case> cases = load_cases(cases_file);
  Tally tally;
  for (const auto& entry : fs::directory_iterator(renders)) {
    if (entry.path().extension() == ".json" && entry.path() != cases_file) {
      compare_renders(entry.path(), root, cases, tally);
    }
  }
  return tally;
}

TEST(ChatTemplate, RendersAsJinja2DidForTheTemplatesKeptHere) {
  const fs::path folder = fs::path(KUN_TEST_DATA) / "chat";
  const Tally tally = compare_folder(folder / "renders", folder, folder / "cases.json");
  EXPECT_EQ(tally.equal + tally.failed_alike, 9 * 32);
  EXPECT_EQ(tally.excused, 0);
}

TEST(ChatTemplate, RendersAsJinja2DidForAllRecordedTemplates) {
  const fs::path folder = KUN_SHARED_DATA;
  const fs::path renders = folder / "chat-renders";
  if (!fs::exists(renders)) GTEST_SKIP() << "no recorded renderings at " << renders;
  const Tally tally = compare_folder(renders, folder, renders / "cases.json");
  EXPECT_EQ(tally.equal, 993);
  EXPECT_EQ(tally.failed_alike, 191 - 18);
  EXPECT_EQ(tally.excused, 18);
}

std::unique_ptr<const ChatTemplate> compile(std::string source, ChatTemplateLimits limits = {}) {
  auto compiled = ChatTemplate::compile(std::move(source), "<bos>", "<eos>", limits);
  EXPECT_TRUE(compiled.has_value()) << (compiled ? "" : compiled.error().message());
  return compiled ? *std::move(compiled) : nullptr;
}

std::string render(const std::string& source, std::string_view messages = "[]") {
  const auto compiled = compile(source);
  if (compiled == nullptr) return "<does not compile>";
  auto text = compiled->render({.messages = messages, .tools = {}, .extra = {}});
  return text ? *text : "error: " + text.error().message();
}

TEST(ChatTemplate, TojsonWritesWhatJsonDumpsWrites) {
  const std::string message =
      R"([{"b":1,"a":[1.0,2.5,1e16,1e-5,-0.0,100,true,null,"é\"\\\n\u0001/<>&'"],"e":[],"o":{}}])";
  EXPECT_EQ(render("{{ messages[0]|tojson }}", message),
            R"({"b": 1, "a": [1.0, 2.5, 1e+16, 1e-05, -0.0, 100, true, null, )"
            R"("é\"\\\n\u0001/<>&'"], "e": [], "o": {}, "content": ""})");
  EXPECT_EQ(render("{{ {'b': [1, {}], 'a': ('x',), 1: none}|tojson(indent=2) }}"),
            "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": [\n    \"x\"\n  ],\n  \"1\": null\n}");
  EXPECT_EQ(render("{{ {'b': 'é😀', 'a': 1}|tojson(ensure_ascii=true, sort_keys=true, "
                   "separators=(',', ':')) }}"),
            R"({"a":1,"b":"\u00e9\ud83d\ude00"})");
  EXPECT_EQ(render("{{ missing|tojson }}").substr(0, 6), "error:");
}

TEST(ChatTemplate, HasWhatTemplatesExpectOfPython) {
  EXPECT_EQ(render("{{ 'a b  c'.split() }}{{ 'a,b,c'.split(',', 1)[-1] }}"), "['a', 'b', 'c']b,c");
  EXPECT_EQ(render("{{ 'a,b,c'.rsplit(',', maxsplit=1)[0] }}"), "a,b");
  EXPECT_EQ(render("{{ ' \\x1c x\\u00a0'.strip() }}|{{ 'xxaxx'.strip('x') }}"), "x|a");
  EXPECT_EQ(render("{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.removeprefix('a') }}"), "Truebc");
  EXPECT_EQ(render("{{ {'items': 1}.items()|list }}{{ {'a': 1}.get('b', 2) }}"), "[('items', 1)]2");
  EXPECT_EQ(render("{{ [1, 2, 3, 4][::-1] }}{{ 'héllo'[1:-1] }}{{ (1, 2, 3)[:2] }}"),
            "[4, 3, 2, 1]éll(1, 2)");
  EXPECT_EQ(render("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
                   "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
            "02");
  EXPECT_EQ(render("{{ strftime_now('%Y') | length }}"), "4");
  EXPECT_EQ(render("{{ '[1, {\"a\": 2.0}]'|from_json }}"), "[1, {'a': 2.0}]");
  EXPECT_EQ(render("a{%- generation %} b {% endgeneration -%} c"), "a b c");
  EXPECT_EQ(render("{{ none is iterable }}{{ 'x' is sequence }}{{ missing }}"), "FalseTrue");
}

TEST(ChatTemplate, QuotesWhatTheTemplateSaidAndWhere) {
  EXPECT_EQ(render("a\n{{ raise_exception('No system role!') }}"),
            "error: the chat template cannot render this conversation: No system role! (line 2)");
  EXPECT_NE(render("{{ missing.field }}").find("undefined"), std::string::npos);
  const auto broken = ChatTemplate::compile("\n{% if %}", "", "");
  ASSERT_FALSE(broken.has_value());
  EXPECT_EQ(broken.error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(broken.error().message().find("(line 2)"), std::string::npos)
      << broken.error().message();
}

TEST(ChatTemplate, RefusesInputThatIsNotWhatItShouldBe) {
  const auto compiled = compile("{{ messages }}");
  const auto refuses = [&](std::string_view messages, std::string_view tools,
                           std::string_view extra) {
    const auto text = compiled->render({messages, tools, extra, true});
    return !text.has_value() && text.error().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refuses("[]", "[]", "{}"));
  EXPECT_TRUE(refuses("", "", ""));
  EXPECT_TRUE(refuses("{}", "", ""));
  EXPECT_TRUE(refuses("[1]", "", ""));
  EXPECT_TRUE(refuses("[]]", "", ""));
  EXPECT_TRUE(refuses("[]", "{}", ""));
  EXPECT_TRUE(refuses("[]", "", "[]"));
  EXPECT_TRUE(refuses("[]", "", R"({"messages": []})"));
  EXPECT_TRUE(refuses("[]", "", R"({"\u0000guard": 1})"));
  EXPECT_TRUE(refuses("[{\"role\": \"\xff\"}]", "", ""));
  EXPECT_TRUE(refuses(R"([{"role": "\ud800"}])", "", ""));
  EXPECT_TRUE(refuses(R"([{"n": 1e400}])", "", ""));
  EXPECT_TRUE(refuses(R"([{"role": "user", "content": [{"type": "image_url"}]}])", "", ""));
  EXPECT_TRUE(refuses(R"([{"role": "assistant", "tool_calls": {}}])", "", ""));
  EXPECT_TRUE(refuses(R"([{"role": "assistant", "tool_calls": [7]}])", "", ""));
  EXPECT_TRUE(refuses(std::string(100'000, '['), "", ""));
}

std::unique_ptr<const ChatTemplate> compile_kept(const std::string& name) {
  return compile(read_file(fs::path(KUN_TEST_DATA) / "chat/templates" / (name + ".jinja")));
}

class Normalization : public testing::TestWithParam<const char*> {
 protected:
  const std::unique_ptr<const ChatTemplate> template_ = compile_kept(GetParam());
  const std::vector<Case> cases_ = load_cases(fs::path(KUN_TEST_DATA) / "chat/cases.json");

  std::string rendering(std::string_view case_name) const {
    const auto text = template_->render(find_case(cases_, case_name).input());
    EXPECT_TRUE(text.has_value()) << case_name << ": " << text.error().message();
    return text ? *text : "";
  }
};

TEST_P(Normalization, JoinsTheTextPartsOfAMessage) {
  const auto whole =
      template_->render({.messages = R"([{"role": "user", "content": "part one part two"}])",
                         .tools = {},
                         .extra = {}});
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(rendering("content_parts"), *whole);
}

// Whether a client sends arguments as text or object, and null or "" beside them, is the client's
// habit: the model must see the same call.
TEST_P(Normalization, RendersEveryFormOfAToolCallAlike) {
  for (const char* name : {"tool_call_result", "tool_two_calls", "tool_then_answer"}) {
    const std::string reference = rendering(std::string(name) + "_dict_none");
    EXPECT_NE(reference.find(name == std::string("tool_two_calls") ? "Paris" : "北京"),
              std::string::npos);
    EXPECT_EQ(rendering(std::string(name) + "_str_none"), reference);
    EXPECT_EQ(rendering(std::string(name) + "_dict_empty"), reference);
    EXPECT_EQ(rendering(std::string(name) + "_str_empty"), reference);
  }
}

INSTANTIATE_TEST_SUITE_P(Templates, Normalization,
                         testing::Values("deepseek-v3", "DeepSeek-V3.1", "DeepSeek-V3.2",
                                         "DeepSeek-V4-Flash-0731", "DeepSeek-R1-Distill-Llama-8B",
                                         "qwen3", "Qwen3-Coder"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

TEST(ChatTemplate, RefusesArgumentsThatAreNoObjectOnlyWhereTheTemplateNeedsOne) {
  constexpr std::string_view kMessages =
      R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": null, "tool_calls":
      [{"type": "function", "function": {"name": "f", "arguments": "{\"unfinished"}}]}])";
  const ChatTemplateInput input = {.messages = kMessages, .tools = {}, .extra = {}};
  EXPECT_FALSE(compile_kept("Qwen3-Coder")->render(input).has_value());
  EXPECT_TRUE(compile_kept("deepseek-v3")->render(input).has_value());
}

TEST(ChatTemplate, GivesTemplatesTheReasoningOfNewerClients) {
  EXPECT_EQ(render("{{ messages[0].reasoning_content }}",
                   R"([{"role": "assistant", "content": "x", "reasoning": "because"}])"),
            "because");
}

TEST(ChatTemplate, RendersFromManyThreadsAtOnce) {
  const auto compiled = compile(
      "{% set ns = namespace(n=0) %}{% for m in messages %}"
      "{% set ns.n = ns.n + m.n %}{% endfor %}{{ ns.n }}");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        const auto text =
            compiled->render({.messages = R"([{"n": 20}, {"n": 22}])", .tools = {}, .extra = {}});
        EXPECT_TRUE(text.has_value() && *text == "42");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ChatTemplate, RendersALongConversation) {
  std::string messages = "[";
  for (int i = 0; i < 2000; ++i) {
    messages += R"({"role":"user","content":")" + std::string(4000, 'q') + R"("},)";
    messages += R"({"role":"assistant","content":")" + std::string(4000, 'a') + R"("},)";
  }
  messages += R"({"role":"user","content":"last"}])";
  for (const char* name : {"DeepSeek-V3.1", "DeepSeek-V4-Flash-0731", "qwen3", "Qwen3-Coder"}) {
    const auto text = compile_kept(name)->render({.messages = messages, .tools = {}, .extra = {}});
    ASSERT_TRUE(text.has_value()) << name << ": " << text.error().message();
    EXPECT_GT(text->size(), 16'000'000U) << name;
  }
}

std::string repeat(std::string_view text, int count) {
  std::string result;
  for (int i = 0; i < count; ++i) result += text;
  return result;
}

// Each must end in an error, soon and in little memory, and leave the process alone.
std::map<std::string, std::string> hostile_templates() {
  const std::string grow =
      "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(300) %}"
      "{% for j in range(300) %}";
  const std::string end = "{% endfor %}{% endfor %}";
  return {
      {"nested loops", repeat("{% for i in range(100000) %}", 4) + repeat("{% endfor %}", 4)},
      {"a long range", "{{ range(10**9)|list|length }}"},
      {"a repeated string", "{{ 'x' * 1000000000 }}"},
      {"strings repeated in a loop",
       "{% for i in range(9999) %}{% set x = 'x' * 50000000 %}{% endfor %}"},
      {"a repeated list", "{% set x = [1] * 90000000 %}{{ x == x[0:] }}"},
      {"a folded comparison", "{{ [[1] * 90000] * 90000 == 90000 * [90000 * [1]] }}"},
      {"doubling",
       "{% set ns = namespace(a='xx') %}{% for i in range(99) %}"
       "{% set ns.a = ns.a ~ ns.a %}{% endfor %}"},
      {"doubling by set blocks",
       "{% set ns = namespace(a='xx') %}{% for i in range(99) %}"
       "{% set b %}{{ ns.a }}{{ ns.a }}{% endset %}{% set ns.a = b %}{% endfor %}"},
      {"a replacement", "{% set x = 'x' * 1000000 %}{{ x.replace('x', x)|length }}"},
      {"a replacement filter", "{% set x = 'x' * 1000000 %}{{ x|replace('', x)|length }}"},
      {"a wide format", "{{ '{:1000000000}'.format(1) }}"},
      {"a wide old format", "{{ '%1000000000d'|format(1) }}"},
      {"many fields", "{% set x = 'x' * 1000000 %}{{ ('{0}' * 99999).format(x)|length }}"},
      {"a long join", "{% set x = 'x' * 1000000 %}{{ x.join(['a'] * 99999)|length }}"},
      {"a long indent", "{{ ('\\n' * 99999)|indent(99999)|length }}"},
      {"a batch", "{{ [1]|batch(1000000000, 'x')|list|length }}"},
      {"a tree of lists", grow + "{% set ns.a = [ns.a, ns.a] %}" + end + "{{ ns.a }}"},
      {"equal trees", grow + "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}" + end +
                          "{{ ns.a == ns.b }}"},
      {"a tree of tuples as key",
       "{% set ns = namespace(a=(1,)) %}{% for i in range(99) %}"
       "{% set ns.a = (ns.a, ns.a) %}{% endfor %}{{ {ns.a: 1} }}"},
      {"a tree without a loop", "{% set x = [1] %}" + repeat("{% set x = [x, x] %}", 99)},
      {"a deep list", grow + "{% set ns.a = [ns.a] %}" + end},
      {"a deep dict", grow + "{% set ns.a = dict(x=ns.a) %}" + end},
      {"a deep batch", grow + "{% set ns.a = ns.a|batch(1) %}" + end},
      {"deep items", grow + "{% set ns.a = {'x': ns.a}.items() %}" + end},
      {"a namespace in itself", "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns }}"},
      {"a macro that calls itself", "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}"},
      {"a macro given itself", "{% macro m(f) %}{{ f(f) }}{% endmacro %}{{ m(m) }}"},
      {"a recursive loop", "{% for x in [[]] recursive %}{{ loop([x]) }}{% endfor %}"},
      {"deep parentheses", "{{ " + repeat("(", 9999) + "1" + repeat(")", 9999) + " }}"},
      {"many nots", "{{ " + repeat("not ", 99999) + "1 }}"},
      {"a long sum", "{{ 1" + repeat("+1", 99999) + " }}"},
      {"a chain of filters", "{{ 'x'" + repeat("|upper", 99999) + " }}"},
      {"a chain of attributes", "{{ x" + repeat(".a", 99999) + " }}"},
      {"many elifs", "{% if 0 %}" + repeat("{% elif 0 %}", 99999) + "{% endif %}"},
      {"deep ifs", repeat("{% if 1 %}", 9999) + repeat("{% endif %}", 9999)},
      {"long equal strings",
       "{% set x = 'x' * 20000000 %}{% set y = 'x' * 20000000 %}"
       "{% for i in range(99999) %}{{ 1 if x == y }}{% endfor %}"},
      {"long keys",
       "{% set x = 'x' * 20000000 %}{% set d = {} %}"
       "{% for i in range(99999) %}{{ d[x] }}{{ d.get(x) }}{% endfor %}"},
      {"long searches",
       "{% set x = 'x' * 20000000 %}"
       "{% for i in range(99999) %}{{ 1 if x.find('y') == 1 }}{% endfor %}"},
      {"characters far in",
       "{% set x = 'é' * 9000000 %}"
       "{% for i in range(99999) %}{{ x[8999999] }}{{ x[8999990:8999991] }}{% endfor %}"},
      {"sorting trees",
       "{% set x = ['x' * 1000000] * 50 %}"
       "{% for i in range(99999) %}{% set y = x|sort %}{% endfor %}"},
      {"output without end", "{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}"},
      {"deep JSON", "{{ ('[' * 99999)|from_json }}"},
  };
}

long peak_memory_kib() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(ChatTemplate, SurvivesHostileTemplates) {
  const long before = peak_memory_kib();
  for (const auto& [name, source] : hostile_templates()) {
    SCOPED_TRACE(name);
    const auto start = std::chrono::steady_clock::now();
    auto compiled = ChatTemplate::compile(source, "", "", {.steps_max = 400'000});
    if (compiled.has_value()) {
      const auto text = (*compiled)->render({.messages = "[]", .tools = {}, .extra = {}});
      ASSERT_FALSE(text.has_value()) << text->substr(0, 100);
      EXPECT_EQ(text.error().code(), StatusCode::kInvalidArgument) << text.error().message();
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_LT(seconds.count(), 20.0);
  }
  // The steps pay for 25 MB; a constant string of 50 MB and a few copies may be alive. Sanitizers
  // keep what was freed for a while.
  if (std::getenv("KUN_SANITIZED") == nullptr) {
    EXPECT_LT(peak_memory_kib() - before, 300 << 10);
  }
}

TEST(ChatTemplate, StopsAtItsOwnLimits) {
  const std::string source = "{% for i in range(1000) %}0123456789{% endfor %}";
  EXPECT_EQ(compile(source)->render({.messages = "[]", .tools = {}, .extra = {}})->size(), 10'000U);
  const auto few_steps =
      compile(source, {.steps_max = 1000})->render({.messages = "[]", .tools = {}, .extra = {}});
  ASSERT_FALSE(few_steps.has_value());
  EXPECT_NE(few_steps.error().message().find("1000 steps"), std::string::npos);
  const auto few_bytes = compile(source, {.output_bytes_max = 9'999})
                             ->render({.messages = "[]", .tools = {}, .extra = {}});
  ASSERT_FALSE(few_bytes.has_value());
  EXPECT_NE(few_bytes.error().message().find("9999 bytes"), std::string::npos);
}

}  // namespace
}  // namespace kun
