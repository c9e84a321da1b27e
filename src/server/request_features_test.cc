// What reaches the engine of beam searches and of budgets for thoughts, what is refused beforehand,
// and what happens when the server itself fails.
#include "server/server_fixture.h"
#include "server/text_pool.h"

namespace kun {
namespace {

namespace json = boost::json;

std::string chat(std::string_view extra) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + std::string(extra) + "}";
}

class FeatureTest : public ServerFixture {
 protected:
  GenerateRequest sent(std::string_view path, std::string_view body) {
    const ClientResponse response = post(path, body);
    EXPECT_EQ(response.status, 200) << body << response.body;
    return generator_.last();
  }
  GenerateRequest sent(std::string_view extra) { return sent("/v1/chat/completions", chat(extra)); }

  std::string refused(std::string_view path, std::string_view body) {
    const ClientResponse response = post(path, body);
    EXPECT_EQ(response.status, 400) << body << response.body;
    return response.body;
  }
};

TEST_F(FeatureTest, ABeamSearchHasAsManyBeamsAsBestOf) {
  start();
  const GenerateRequest plain = sent(R"("n":2)");
  EXPECT_EQ(plain.beams.width, 0);
  const GenerateRequest request =
      sent(R"("use_beam_search":true,"n":2,"best_of":5,"length_penalty":0.5,
              "early_stopping":"never","temperature":0,"top_p":1,"top_k":-1,"max_tokens":3)");
  EXPECT_EQ(request.beams.width, 5);
  EXPECT_EQ(request.choice_count, 2);
  EXPECT_EQ(request.beams.length_penalty, 0.5);
  EXPECT_EQ(request.beams.early_stopping, EarlyStopping::kNever);
  EXPECT_EQ(request.watch, nullptr);
  const GenerateRequest other = sent("/v1/completions",
                                     R"({"prompt":"x","use_beam_search":true,"n":3,
                                         "early_stopping":true})");
  EXPECT_EQ(other.beams.width, 3);
  EXPECT_EQ(other.beams.length_penalty, 1.0);
  EXPECT_EQ(other.beams.early_stopping, EarlyStopping::kWhenEnough);
}

TEST_F(FeatureTest, NamesOfOtherServersAreReadOrRefused) {
  start();
  for (const std::string_view path : {"/v1/completions", "/v1/chat/completions"}) {
    const std::string head = path == "/v1/completions"
                                 ? R"({"prompt":"hi",)"
                                 : R"({"messages":[{"role":"user","content":"hi"}],)";
    const ClientResponse response =
        post(path, head + R"("n_predict":3,"rid":"mine","stop":"Hel","no_stop_trim":true,
                             "cache_prompt":true,"id_slot":-1,"typical_p":1,"mirostat":0,
                             "ttft_timeout_ms":9000,"ttlt_slo_ms":60000})");
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_TRUE(response.json().at("id").as_string().ends_with("-mine"));
    // As `content` or `text`, and not only as `stop_reason`.
    EXPECT_NE(response.body.find("t\":\"Hel\""), std::string::npos) << response.body;
    const GenerateRequest request = generator_.last();
    EXPECT_EQ(request.output_count_max, 3);
    EXPECT_GT(request.deadlines.first_token, 0);
    EXPECT_LE(request.deadlines.first_token, 9'000'000);
    EXPECT_GT(request.deadlines.total, 9'000'000);
    // The usual name comes first.
    EXPECT_EQ(sent(path, head + R"("n_predict":3,"max_tokens":2})").output_count_max, 2);
    for (const std::string_view field :
         {R"("typical_p":0.9)", R"("mirostat":2)", R"("no_repeat_ngram_size":3)",
          R"("beam_width":4)", R"("dry_multiplier":0.8)", R"("rid":"a b")", R"("n_predict":-1)"}) {
      const std::string body = head + std::string(field) + "}";
      const std::string name(field.substr(1, field.find(':') - 2));
      EXPECT_NE(refused(path, body).find("\"param\":\"" + name), std::string::npos) << body;
    }
  }
}

TEST_F(FeatureTest, AWebSearchIsAskedForWithoutOptionsToo) {
  start();
  const std::string error = refused("/v1/chat/completions", chat(R"("web_search_options":{})"));
  EXPECT_NE(error.find("\"param\":\"web_search_options\""), std::string::npos) << error;
}

TEST_F(FeatureTest, StopStringsEndHypotheses) {
  start();
  const GenerateRequest request =
      sent(R"("use_beam_search":true,"n":2,"stop":["lo w","!"],"min_tokens":3)");
  ASSERT_NE(request.watch, nullptr);
  const auto first = request.watch->clone();
  for (const char c : std::string("hello ")) EXPECT_FALSE(first->take(c));
  const auto second = first->clone();
  EXPECT_TRUE(first->take('w'));
  EXPECT_FALSE(second->take('x'));
  EXPECT_TRUE(second->take('!'));
  const auto early = request.watch->clone();
  for (const char c : std::string("!!!")) EXPECT_FALSE(early->take(c)) << "below min_tokens";
  EXPECT_TRUE(early->take('!'));
}

TEST_F(FeatureTest, ThoughtsMayHaveABudget) {
  syntax_.reasoning = ReasoningSyntax::kDeepSeekV3;
  template_.ending = "<think>";
  start();
  const auto limit = [&](std::string_view extra) { return sent(extra).sampling.thinking; };
  EXPECT_EQ(limit(R"("max_tokens":5)").token_count_max, -1);
  const ThinkingLimit open = limit(R"("thinking_token_budget":20)");
  EXPECT_EQ(open.token_count_max, 20);
  EXPECT_TRUE(open.open);
  EXPECT_EQ(open.close, tokenizer_->encode("</think>", false));
  EXPECT_EQ(limit(R"("thinking":{"type":"enabled","budget_tokens":7})").token_count_max, 7);
  const auto both =
      limit(R"("thinking":{"type":"enabled","budget_tokens":7},"thinking_token_budget":0)");
  EXPECT_EQ(both.token_count_max, 0);
  template_.ending = "</think>";
  EXPECT_EQ(limit(R"("thinking_token_budget":20)").token_count_max, -1) << "nothing to limit";
  template_.ending = "";
  const ThinkingLimit undecided = limit(R"("thinking_token_budget":20)");
  EXPECT_FALSE(undecided.open);
  EXPECT_EQ(undecided.begin, tokenizer_->encode("<think>", false));
  const GenerateRequest text =
      sent("/v1/completions", R"({"prompt":"a<think>\n","thinking_token_budget":3})");
  EXPECT_TRUE(text.sampling.thinking.open);
}

TEST_F(FeatureTest, AnthropicsBudgetIsTheSame) {
  syntax_.reasoning = ReasoningSyntax::kDeepSeekR1;
  start();
  const std::string body = R"({"max_tokens":50,"thinking":{"type":"enabled","budget_tokens":1024},)"
                           R"("messages":[{"role":"user","content":"hi"}]})";
  const ThinkingLimit limit = sent("/v1/messages", body).sampling.thinking;
  EXPECT_EQ(limit.token_count_max, 1024);
  EXPECT_TRUE(limit.open) << "this family thinks unasked";
}

TEST_F(FeatureTest, AToolThatFailedSaysSo) {
  start();
  const auto result = [&](std::string_view is_error) {
    sent("/v1/messages",
         R"({"max_tokens":5,"messages":[{"role":"user","content":[{"type":"tool_result",)"
         R"("tool_use_id":"1",)" +
             std::string(is_error) + R"("content":"no such city"}]}]})");
    return generator_.last_prompt();
  };
  EXPECT_NE(result(R"("is_error":true,)").find(R"("Error: no such city")"), std::string::npos);
  EXPECT_NE(result(R"("is_error":false,)").find(R"("no such city")"), std::string::npos);
  EXPECT_NE(result("").find(R"("no such city")"), std::string::npos);
}

TEST_F(FeatureTest, HintsOfResponsesAreCheckedAndTheRestRefused) {
  start();
  const auto body = [](std::string_view extra) {
    return R"({"input":"hi","max_output_tokens":3,)" + std::string(extra) + "}";
  };
  for (const std::string_view fine :
       {R"("reasoning":{"effort":"low","summary":"auto"})", R"("text":{"verbosity":"low"})",
        R"("include":["reasoning.encrypted_content"])", R"("include":[])"}) {
    EXPECT_EQ(post("/v1/responses", body(fine)).status, 200) << fine;
  }
  for (const std::string_view wrong :
       {R"("reasoning":{"summary":"long"})", R"("text":{"verbosity":"loud"})",
        R"("include":["message.output_text.logprobs"])", R"("include":["x"])",
        R"("context_management":[{"type":"compaction"}])", R"("moderation":{"model":"x"})"}) {
    refused("/v1/responses", body(wrong));
  }
}

TEST_F(FeatureTest, StrictToolsAndFormatsBesideToolsAreEnforced) {
  syntax_.tools = ToolSyntax::kHermes;
  start();
  const std::string path = "/v1/chat/completions";
  const auto body = [](std::string_view strict, std::string_view more) {
    return chat(R"("max_tokens":2,"tools":[{"type":"function","function":{"name":"f","strict":)" +
                std::string(strict) +
                R"(,"parameters":{"type":"object","properties":{"a":{"type":"integer"}},)"
                R"("required":["a"],"additionalProperties":false}}}])" +
                std::string(more));
  };
  const auto takes = [&](const GenerateRequest& request, std::string_view text) {
    if (request.constraint == nullptr) return true;
    const auto state = request.constraint->clone();
    std::vector<std::uint32_t> bits((static_cast<std::size_t>(tokenizer_->vocabulary_size()) + 31) /
                                    32);
    for (const Token token : tokenizer_->encode(text, false)) {
      if (!state->fill_mask(bits).ok()) return false;
      const auto id = static_cast<std::size_t>(token);
      if (((bits[id / 32] >> (id % 32)) & 1U) == 0) return false;
      if (!state->advance(token).ok()) return false;
    }
    return state->ending() != TokenConstraint::Ending::kNotYet;
  };
  const std::string good =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const std::string bad = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1}}\n</tool_call>";
  const std::string format =
      R"(,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":)"
      R"({"type":"object","properties":{"x":{"type":"boolean"}},"required":["x"]}}})";
  EXPECT_EQ(sent(path, body("false", "")).constraint, nullptr);
  const GenerateRequest strict = sent(path, body("true", ""));
  ASSERT_NE(strict.constraint, nullptr);
  EXPECT_TRUE(takes(strict, "I call. " + good));
  EXPECT_TRUE(takes(strict, "No call."));
  EXPECT_FALSE(takes(strict, "I call. " + bad));
  const GenerateRequest both = sent(path, body("false", format));
  ASSERT_NE(both.constraint, nullptr);
  EXPECT_TRUE(takes(both, good));
  EXPECT_TRUE(takes(both, bad)) << "this tool is not strict";
  EXPECT_TRUE(takes(both, R"({"x": true})"));
  EXPECT_FALSE(takes(both, "No call."));
  const GenerateRequest none = sent(path, body("true", format + R"(,"tool_choice":"none")"));
  EXPECT_FALSE(takes(none, good));
  EXPECT_TRUE(takes(none, R"({"x": true})"));
}

TEST_F(FeatureTest, BytesThatAreNoRequestAreAnsweredInTheDialectOfTheirPath) {
  options_.limits.body_bytes_max = 100;
  start();
  const auto answer = [&](std::string_view path) {
    TestClient client(server_->port());
    EXPECT_TRUE(client.send("POST " + std::string(path) +
                            " HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"));
    const ClientResponse response = client.read_response();
    EXPECT_EQ(response.status, 413) << response.body;
    return response.json();
  };
  const json::value anthropic = answer("/v1/messages");
  EXPECT_EQ(anthropic.at("type"), "error");
  EXPECT_EQ(anthropic.at("error").at("type"), "request_too_large");
  EXPECT_EQ(answer("/chat/completions").at("error").at("type"), "invalid_request_error");
  EXPECT_EQ(answer("/v1/chat/completions").at("error").at("type"), "RequestTooLargeError");
}

TEST_F(FeatureTest, AnswersTooLargeForMemoryAreRefusedBeforehand) {
  options_.limits.answer_bytes_max = 20'000;
  start();
  const std::string prompt(100, 'x');
  const auto body = [&](std::string_view extra) {
    return R"({"prompt":")" + prompt + R"(",)" + std::string(extra) + "}";
  };
  const std::string path = "/v1/completions";
  EXPECT_NE(refused(path, body(R"("prompt_logprobs":5)")).find("prompt_logprobs"),
            std::string::npos);
  EXPECT_NE(refused(path, body(R"("max_tokens":400,"logprobs":2)")).find("max_tokens"),
            std::string::npos);
  EXPECT_EQ(post(path, body(R"("max_tokens":400,"logprobs":2,"stream":true)")).status, 200);
  EXPECT_EQ(sent(path, body(R"("prompt_logprobs":0)")).output_count_max, 16);
  const GenerateRequest open = sent(R"("logprobs":true,"top_logprobs":4)");
  EXPECT_LT(open.output_count_max, 50) << "as many as fit";
  EXPECT_GT(open.output_count_max, 20);
}

class ThrowingTemplate : public ChatTemplate {
 public:
  Result<std::string> render(const ChatTemplateInput&) const override { throw std::bad_alloc(); }
  std::string_view source() const override { return ""; }
};

TEST_F(FeatureTest, AFailureOfTheServerIsAnsweredAndEndsNothingElse) {
  const ThrowingTemplate broken;
  start(false);
  ServedModel model;
  model.names = {"tiny"};
  model.generator = &generator_;
  model.tokenizer = tokenizer_.get();
  model.chat_template = &broken;
  server_->set_model(std::move(model));
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("n":1)")).status, 500);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x"})").status, 200);
}

TEST(TextPoolTest, SurvivesWorkThatThrows) {
  TextPool pool(1, 4);
  std::atomic<bool> done = false;
  ASSERT_TRUE(pool.try_submit([] { throw std::bad_alloc(); }));
  ASSERT_TRUE(pool.try_submit([&] { done = true; }));
  pool.stop();
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace kun
