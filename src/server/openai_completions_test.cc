// Completions over real sockets, with a generator that plays scripts.
#include "server/server_fixture.h"

namespace kun {
namespace {

namespace json = boost::json;

using CompletionsTest = ServerFixture;

TEST_F(CompletionsTest, AnswersInOpenAisShapeWithSixteenTokensByDefault) {
  generator_.play("The quick brown fox jumps");
  start();
  const ClientResponse response = post("/v1/completions", R"({"model":"tiny","prompt":"Go: "})");
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value answer = response.json();
  EXPECT_TRUE(answer.at("id").as_string().starts_with("cmpl-"));
  EXPECT_EQ(answer.at("object"), "text_completion");
  EXPECT_EQ(answer.at("choices").at(0).at("text"), "The quick brown ");
  EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_TRUE(answer.at("choices").at(0).at("logprobs").is_null());
  EXPECT_EQ(answer.at("usage").at("prompt_tokens"), 4);
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 16);
  EXPECT_EQ(generator_.last_prompt(), "Go: ");
}

TEST_F(CompletionsTest, KnowsTheNewerNameOfMaxTokens) {
  start();
  const auto count = [&](std::string_view fields) {
    const ClientResponse response =
        post("/v1/completions", R"({"prompt":"x",)" + std::string(fields) + "}");
    EXPECT_EQ(response.status, 200) << response.body;
    return generator_.last().output_count_max;
  };
  EXPECT_EQ(count(R"("max_completion_tokens":2)"), 2);
  EXPECT_EQ(count(R"("max_completion_tokens":2,"max_tokens":3)"), 2);
  const ClientResponse long_answer =
      post("/v1/completions", R"({"prompt":"x","max_completion_tokens":100000})");
  EXPECT_EQ(long_answer.status, 400);
  EXPECT_EQ(long_answer.json().at("error").at("param"), "max_completion_tokens");
}

TEST_F(CompletionsTest, TakesPromptsInAllFourForms) {
  generator_.play([](const GenerateRequest& request) {
    Script script;
    script.text.clear();
    for (const Token token : request.prompt) script.text += static_cast<char>(token);
    return script;
  });
  start();
  const auto texts = [&](std::string_view prompt) {
    const ClientResponse response =
        post("/v1/completions", R"({"prompt":)" + std::string(prompt) + "}");
    std::vector<std::string> found;
    const json::value answer = response.json();
    if (response.status != 200) return found;
    for (const json::value& choice : answer.at("choices").as_array()) {
      EXPECT_EQ(choice.at("index").as_int64(), static_cast<std::int64_t>(found.size()));
      found.emplace_back(choice.at("text").as_string());
    }
    return found;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts(R"("ab")"), Texts({"ab"}));
  EXPECT_EQ(texts(R"(["ab","cd","ef"])"), Texts({"ab", "cd", "ef"}));
  EXPECT_EQ(texts("[65,66]"), Texts({"AB"}));
  EXPECT_EQ(texts("[[65],[66,67]]"), Texts({"A", "BC"}));
  EXPECT_EQ(texts("[257]"), Texts());
  EXPECT_EQ(texts("[[]]"), Texts());
  EXPECT_EQ(texts("[]"), Texts());
  EXPECT_EQ(texts(R"("")"), Texts());
  EXPECT_EQ(texts("[null]"), Texts());
}

TEST_F(CompletionsTest, StreamsChoicesOfAllPrompts) {
  start();
  const ClientResponse response =
      post("/v1/completions", R"({"prompt":["a","b"],"n":2,"stream":true,"echo":true})");
  std::vector<std::string> texts(4);
  std::vector<std::string> events = sse_data(response.body);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  for (const std::string& event : events) {
    const json::value chunk = json::parse(event);
    const json::value& choice = chunk.at("choices").at(0);
    texts[static_cast<std::size_t>(choice.at("index").as_int64())] += choice.at("text").as_string();
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"aHello", "aHello", "bHello", "bHello"}));
}

TEST_F(CompletionsTest, ShowsLogprobsInColumns) {
  generator_.play("h\xC3\xA9y");
  start();
  const json::value answer =
      post("/v1/completions", R"({"prompt":"x","logprobs":2,"max_tokens":4})").json();
  const json::value& logprobs = answer.at("choices").at(0).at("logprobs");
  EXPECT_EQ(logprobs.at("tokens").at(0), "h");
  EXPECT_EQ(logprobs.at("tokens").at(3), "y");
  EXPECT_EQ(logprobs.at("token_logprobs").at(0), -0.5);
  EXPECT_EQ(logprobs.at("top_logprobs").at(0).at("h"), -0.5);
  EXPECT_EQ(logprobs.at("top_logprobs").at(0).at("i"), -1.5);
  EXPECT_EQ(logprobs.at("text_offset"), (json::array{0, 1, 2, 3}));
}

TEST_F(CompletionsTest, RefusesWhatItCannotDo) {
  start();
  for (const auto& [fields, param] : std::vector<std::pair<std::string, std::string>>{
           {R"("suffix":"x")", "suffix"},
           {R"("logprobs":21)", "logprobs"},
           {R"("logprobs":true)", "logprobs"},
           {R"("max_tokens":-1)", "max_tokens"},
           {R"("response_format":{"type":"x"})", "response_format"}}) {
    const ClientResponse response = post("/v1/completions", R"({"prompt":"x",)" + fields + "}");
    EXPECT_EQ(response.status, 400) << fields;
    EXPECT_EQ(response.json().at("error").at("param"), param.c_str()) << response.body;
  }
  EXPECT_EQ(post("/v1/completions", "{}").json().at("error").at("param"), "prompt");
  std::string many = R"({"prompt":[)";
  for (int i = 0; i < 257; ++i) many += R"("a",)";
  many.back() = ']';
  EXPECT_EQ(post("/v1/completions", many + "}").status, 400);
}

TEST_F(CompletionsTest, TokenizesAndDetokenizes) {
  start();
  const json::value tokens =
      post("/tokenize", R"({"prompt":"hi","return_token_strs":true})").json();
  EXPECT_EQ(tokens.at("tokens"), (json::array{104, 105}));
  EXPECT_EQ(tokens.at("count"), 2);
  EXPECT_EQ(tokens.at("max_model_len"), 4096);
  EXPECT_EQ(tokens.at("token_strs").as_array().size(), 2U);
  EXPECT_EQ(post("/tokenize", R"({"messages":[{"role":"user","content":"a"}]})").json().at("count"),
            31);
  EXPECT_EQ(post("/tokenize", "{}").status, 400);
  EXPECT_EQ(post("/detokenize", R"({"tokens":[104,105]})").json().at("prompt"), "hi");
  EXPECT_EQ(post("/detokenize", R"({"tokens":[999]})").status, 400);
  EXPECT_EQ(post("/detokenize", "{}").status, 400);
}

}  // namespace
}  // namespace kun
