// /v1/embeddings and /v1/score over a generator that tells each prompt by its first token and size.
#include <cmath>

#include "server/server_fixture.h"

namespace kun {
namespace {

namespace json = boost::json;

class EmbeddingsTest : public ServerFixture {
 protected:
  void SetUp() override {
    context_length_ = 64;
    start();
  }

  // The same model, with vectors of another width.
  void serve_width(int hidden_size) {
    ServedModel model;
    model.names = {"tiny"};
    model.generator = &generator_;
    model.tokenizer = tokenizer_.get();
    model.context_length = 64;
    model.hidden_size = hidden_size;
    server_->set_model(std::move(model));
  }

  static std::vector<float> numbers(const json::value& array) {
    std::vector<float> values;
    for (const json::value& value : array.as_array()) values.push_back(value.to_number<float>());
    return values;
  }

  std::string refusal(std::string_view body, std::string_view path = "/v1/embeddings") {
    const ClientResponse response = post(path, body);
    EXPECT_EQ(response.status, 400) << body << response.body;
    return std::string(response.json().at("error").at("message").as_string());
  }
};

TEST_F(EmbeddingsTest, AreInOpenAisShape) {
  const ClientResponse response =
      post("/v1/embeddings", R"({"model":"tiny","input":["ab","c"],"normalize":false})");
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value answer = response.json();
  EXPECT_EQ(answer.at("object"), "list");
  EXPECT_EQ(answer.at("model"), "tiny");
  EXPECT_TRUE(answer.at("id").as_string().starts_with("embd-"));
  const json::array& data = answer.at("data").as_array();
  ASSERT_EQ(data.size(), 2U);
  EXPECT_EQ(data[1].at("object"), "embedding");
  EXPECT_EQ(data[1].at("index"), 1);
  EXPECT_EQ(numbers(data[0].at("embedding")), (std::vector<float>{'a', 2.0F, 0.0F}));
  EXPECT_EQ(numbers(data[1].at("embedding")), (std::vector<float>{'c', 1.0F, 0.0F}));
  EXPECT_EQ(answer.at("usage").at("prompt_tokens"), 3);
  EXPECT_EQ(answer.at("usage").at("total_tokens"), 3);
}

TEST_F(EmbeddingsTest, TakeEveryFormOfInput) {
  const std::vector<float> expected = {'a', 2.0F, 0.0F};
  for (const std::string_view input :
       {R"("ab")", R"(["ab"])", "[97,98]", "[[97,98]]", R"(["ab",[97,98]])"}) {
    const ClientResponse response =
        post("/v1/embeddings", R"({"normalize":false,"input":)" + std::string(input) + "}");
    ASSERT_EQ(response.status, 200) << response.body;
    const json::value answer = response.json();
    for (const json::value& one : answer.at("data").as_array()) {
      EXPECT_EQ(numbers(one.at("embedding")), expected) << input;
    }
  }
  template_.ending = "!";
  const ClientResponse chat =
      post("/v1/embeddings", R"({"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(chat.status, 200) << chat.body;
  EXPECT_EQ(generator_.last_prompt(), R"([{"role":"user","content":"x"}]|no prompt!)");
}

TEST_F(EmbeddingsTest, AreUnitVectorsOfTheDimensionsAskedFor) {
  const auto embed = [&](std::string_view fields) {
    const ClientResponse response =
        post("/v1/embeddings", R"({"input":[3,0,0,0])" + std::string(fields) + "}");
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json().at("data").at(0).at("embedding");
  };
  EXPECT_EQ(numbers(embed("")), (std::vector<float>{0.6F, 0.8F, 0.0F}));
  EXPECT_EQ(numbers(embed(R"(,"dimensions":1)")), std::vector<float>{1.0F});
  EXPECT_EQ(numbers(embed(R"(,"use_activation":false)")), (std::vector<float>{3.0F, 4.0F, 0.0F}));
  EXPECT_EQ(numbers(embed(R"(,"pooling":"mean","normalize":false)")),
            (std::vector<float>{3.0F, 4.0F, 1.0F}));
  // 0.6 is 9a 99 19 3f, 0.8 is cd cc 4c 3f.
  EXPECT_EQ(embed(R"(,"encoding_format":"base64")"), "mpkZP83MTD8AAAAA");
  EXPECT_EQ(embed(R"(,"encoding_format":"base64","dimensions":1)"), "AACAPw==");
  EXPECT_EQ(embed(R"(,"encoding_format":"base64","dimensions":2)"), "mpkZP83MTD8=");
}

TEST_F(EmbeddingsTest, AreOfAsMuchOfTheInputAsWasAskedFor) {
  const auto sent = [&](std::string_view fields) {
    const ClientResponse response =
        post("/v1/embeddings", R"({"input":")" + std::string(60, 'x') + std::string(40, 'y') +
                                   R"(")" + std::string(fields) + "}");
    return response.status == 200 ? generator_.last_prompt() : response.body;
  };
  EXPECT_EQ(sent(R"(,"truncate_prompt_tokens":3)"), "yyy");
  EXPECT_EQ(sent(R"(,"truncate_prompt_tokens":3,"truncation_side":"right")"), "xxx");
  EXPECT_EQ(sent(R"(,"truncate_prompt_tokens":-1)"), std::string(24, 'x') + std::string(40, 'y'));
  EXPECT_NE(sent("").find("maximum context length is 64 tokens"), std::string::npos);
}

TEST_F(EmbeddingsTest, OfManyInputsKeepTheirOrder) {
  std::string inputs;
  for (int i = 0; i < 300; ++i)
    inputs += std::string(i > 0 ? "," : "") + "[" + std::to_string(i % 250) + "]";
  const ClientResponse response =
      post("/v1/embeddings", R"({"normalize":false,"input":[)" + inputs + "]}");
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value answer = response.json();
  ASSERT_EQ(answer.at("data").as_array().size(), 300U);
  for (std::size_t i = 0; i < 300; ++i) {
    const json::value& one = answer.at("data").at(i);
    EXPECT_EQ(numbers(one.at("embedding"))[0], static_cast<float>(i % 250));
  }
}

TEST_F(EmbeddingsTest, WhatIsWrongIsSaid) {
  EXPECT_EQ(refusal("{}"), "either input or messages is needed");
  EXPECT_EQ(refusal(R"({"input":""})"), "input must not be empty");
  EXPECT_NE(refusal(R"({"input":[]})").find("not empty"), std::string::npos);
  EXPECT_NE(refusal(R"({"input":["a",true]})").find("element 1"), std::string::npos);
  EXPECT_NE(refusal(R"({"input":[999999]})").find("no token id"), std::string::npos);
  EXPECT_NE(refusal(R"({"input":"a","encoding_format":"int8"})").find("encoding_format"),
            std::string::npos);
  EXPECT_NE(refusal(R"({"input":"a","dimensions":0})").find("dimensions"), std::string::npos);
  EXPECT_NE(refusal(R"({"input":"a","endianness":"big"})").find("endianness"), std::string::npos);
  EXPECT_EQ(post("/v1/embeddings", R"({"input":"a","model":"other"})").status, 404);
  Script full;
  full.refusal = resource_exhausted("the line is full");
  generator_.play(full);
  EXPECT_EQ(post("/v1/embeddings", R"({"input":["a","b"]})").status, 429);
}

TEST_F(EmbeddingsTest, KeepDeadlinesOrAreRefusedAsAnswersAre) {
  constexpr std::string_view kFields =
      R"(,"ttft_slo_ms":5000,"tpot_slo_ms":80,"timeout_ms":60000})";
  for (const auto& [path, body] : {std::pair{"/v1/embeddings", R"({"input":["a","b"])"},
                                   std::pair{"/v1/score", R"({"text_1":"a","text_2":["b","c"])"}}) {
    EXPECT_EQ(post(path, body + std::string(kFields)).status, 200) << path;
    const Deadlines deadlines = generator_.last().deadlines;
    EXPECT_LE(deadlines.first_token, 5'000'000) << path;
    EXPECT_GT(deadlines.first_token, 0) << path;
    EXPECT_LE(deadlines.total, 60'000'000) << path;
    EXPECT_GT(deadlines.total, 0) << path;
    EXPECT_EQ(deadlines.per_token, 0) << path;
    EXPECT_EQ(post(path, body + std::string(R"(,"timeout_ms":-1})")).status, 400) << path;
    EXPECT_EQ(post(path, body + std::string("}")).status, 200) << path;
    EXPECT_FALSE(generator_.last().deadlines.any()) << path;

    Script script;
    script.refusal = unavailable("it would be late");
    script.why = {kCodeDeadlineUnreachable, 2'345'678};
    generator_.play(script);
    const ClientResponse late = post(path, body + std::string(kFields));
    EXPECT_EQ(late.status, 503) << path;
    EXPECT_EQ(late.json().at("error").at("code"), "deadline_unreachable");
    EXPECT_EQ(late.header("retry-after-ms"), "2346");
    script = Script();
    script.timeout_after = 0;
    generator_.play(script);
    const ClientResponse over = post(path, body + std::string(kFields));
    EXPECT_EQ(over.status, 504) << path;
    EXPECT_EQ(over.json().at("error").at("code"), "timeout");
    generator_.play(Script());
  }
}

TEST_F(EmbeddingsTest, HoldMemoryUntilTheyAreAnswered) {
  options_.memory = std::make_shared<MemoryLedger>();
  options_.memory->set_limits(1U << 20U, 0);
  start(false);
  serve_width(1000);
  Script silent;
  silent.endless = true;
  generator_.play(silent);
  TestClient first(server_->port());
  first.send_request("POST", "/v1/embeddings", R"({"input":[[1],[2],[3],[4],[5],[6],
      [7],[8],[9],[10],[11],[12],[13],[14],[15],[16]]})");
  ASSERT_TRUE(eventually([&] { return generator_.running_count() == 16; }));
  const std::size_t held = options_.memory->held(MemoryUse::kRequests);
  EXPECT_GT(held, 16U * 1000U * (sizeof(float) + 14U));
  // A score shows no vectors, and needs less for as many.
  const std::string texts = R"(["b","c","d","e","f","g","h","i","j","k","l","m","n","o","p"]})";
  const ClientResponse refused = post("/v1/embeddings", R"({"input":)" + texts);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json().at("error").at("code"), "memory_exhausted");
  EXPECT_NE(refused.header("retry-after"), "");
  EXPECT_EQ(options_.memory->held(MemoryUse::kRequests), held);
  generator_.play(Script());
  EXPECT_EQ(
      post("/v1/score", R"({"text_1":"a","text_2":["b","c","d","e","f","g","h","i"]})").status,
      200);
  std::string many = R"({"text_1":"a","text_2":["b")";
  for (int i = 0; i < 80; ++i) many += ",\"b\"";
  const ClientResponse never = post("/v1/score", many + "]}");
  EXPECT_EQ(never.status, 413);
  EXPECT_EQ(never.json().at("error").at("code"), "memory_exhausted");
  first.close();
  EXPECT_TRUE(eventually([&] { return options_.memory->held(MemoryUse::kRequests) == 0; }));
}

TEST_F(EmbeddingsTest, AreCancelledWhenTheClientGoes) {
  Script silent;
  silent.endless = true;
  generator_.play(silent);
  {
    TestClient client(server_->port());
    const std::string body = R"({"input":["a","b","c"]})";
    ASSERT_TRUE(client.send("POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                            std::to_string(body.size()) + "\r\n\r\n" + body));
    ASSERT_TRUE(eventually([&] { return generator_.running_count() == 3; }));
  }
  EXPECT_TRUE(eventually([&] { return generator_.running_count() == 0; }));
}

TEST_F(EmbeddingsTest, LargeAnswersAreRefusedBeforehand) {
  options_.limits.answer_bytes_max = 1000;
  start(false);
  serve_width(30);
  EXPECT_EQ(post("/v1/embeddings", R"({"input":["a","b"]})").status, 200);
  EXPECT_NE(refusal(R"({"input":["a","b","c"]})").find("fewer inputs"), std::string::npos);
  EXPECT_EQ(post("/v1/embeddings", R"({"input":["a","b","c"],"dimensions":2})").status, 200);
  EXPECT_EQ(post("/v1/embeddings", R"({"input":"a","dimensions":31})").status, 400);
}

TEST_F(EmbeddingsTest, ScoresAreCosines) {
  const auto scores = [&](std::string_view body) {
    std::vector<float> values;
    const ClientResponse response = post("/v1/score", body);
    EXPECT_EQ(response.status, 200) << response.body;
    if (response.status != 200) return values;
    const json::value answer = response.json();
    EXPECT_TRUE(answer.at("id").as_string().starts_with("score-"));
    for (const json::value& one : answer.at("data").as_array()) {
      EXPECT_EQ(one.at("object"), "score");
      EXPECT_EQ(one.at("index"), static_cast<std::int64_t>(values.size()));
      values.push_back(one.at("score").to_number<float>());
    }
    return values;
  };
  // The vectors are (4, 1), (3, 2) and (0, 1).
  const auto cosine = [](float a, float b, float c, float d) {
    return (a * c + b * d) / std::sqrt((a * a + b * b) * (c * c + d * d));
  };
  const std::vector<float> one_to_many = scores(R"({"text_1":[4],"text_2":[[3,0],[0],[4]]})");
  ASSERT_EQ(one_to_many.size(), 3U);
  EXPECT_FLOAT_EQ(one_to_many[0], cosine(4, 1, 3, 2));
  EXPECT_FLOAT_EQ(one_to_many[1], cosine(4, 1, 0, 1));
  EXPECT_FLOAT_EQ(one_to_many[2], 1.0F);
  const auto pairs = scores(R"({"queries":[[4],[0]],"documents":[[3,0],[0]]})");
  ASSERT_EQ(pairs.size(), 2U);
  EXPECT_FLOAT_EQ(pairs[0], one_to_many[0]);
  EXPECT_FLOAT_EQ(pairs[1], 1.0F);
  EXPECT_EQ(scores(R"({"text_1":"a","text_2":"a"})"), std::vector<float>{1.0F});
}

TEST_F(EmbeddingsTest, ScoresNeedTextsThatFitTogether) {
  const auto refused = [&](std::string_view body) { return refusal(body, "/score"); };
  EXPECT_NE(refused(R"({"text_1":["a","b"],"text_2":["a"]})").find("2 texts"), std::string::npos);
  EXPECT_NE(refused(R"({"text_1":["a","b"],"text_2":["a","b","c"]})").find("2 texts"),
            std::string::npos);
  EXPECT_EQ(refused(R"({"text_2":"a"})"), "either text_1 or queries is needed");
  EXPECT_EQ(refused(R"({"text_1":"a"})"), "one of text_2, documents and items is needed");
  EXPECT_EQ(refused(R"({"text_1":"a","text_2":""})"), "text_2 must not be empty");
}

}  // namespace
}  // namespace kun
