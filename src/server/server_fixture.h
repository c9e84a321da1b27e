// Test support: a server in front of a scripted generator and a byte tokenizer.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "server/server.h"
#include "server/test_client.h"
#include "server/test_generator.h"
#include "text/byte_tokenizer.h"

namespace kun {

// Renders to what it was given, so that a test can look at it.
class EchoTemplate : public ChatTemplate {
 public:
  Result<std::string> render(const ChatTemplateInput& input) const override {
    if (input.messages.find("raise") != std::string_view::npos) {
      return invalid_argument("the template says no");
    }
    std::string text(input.messages);
    if (!input.tools.empty()) text += "|tools:" + std::string(input.tools);
    if (!input.extra.empty()) text += "|extra:" + std::string(input.extra);
    if (!input.add_generation_prompt) text += "|no prompt";
    return text + ending;
  }
  std::string_view source() const override { return ""; }

  std::string ending;  // of every prompt
};

class ServerFixture : public ::testing::Test {
 protected:
  ServerFixture() : tokenizer_(make_byte_tokenizer()) {
    options_.host = "127.0.0.1";
    options_.port = 0;
  }

  void start(bool with_model = true) {
    auto server = Server::start(options_);
    ASSERT_TRUE(server) << server.error().message();
    server_ = *std::move(server);
    if (with_model) set_model();
  }

  void set_model() {
    ServedModel model;
    model.names = {"tiny", "org/tiny"};
    model.generator = &generator_;
    model.tokenizer = tokenizer_.get();
    model.chat_template = &template_;
    model.context_length = context_length_;
    model.end_tokens = {kByteTokenizerEnd};
    model.created = 1234567890;
    model.cache_config = {{"block_size", "16"}};
    model.syntax = syntax_;
    server_->set_model(std::move(model));
  }

  ClientResponse post(std::string_view path, std::string_view body, std::string_view headers = {}) {
    TestClient client(server_->port());
    return client.request("POST", path, body, headers);
  }
  ClientResponse get(std::string_view path, std::string_view headers = {}) {
    TestClient client(server_->port());
    return client.request("GET", path, {}, headers);
  }

  template <class Condition>
  static bool eventually(const Condition& condition, int timeout_ms = 5000) {
    for (int i = 0; i < timeout_ms; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  ServerOptions options_;
  int context_length_ = 4096;
  AnswerSyntax syntax_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  EchoTemplate template_;
  ScriptedGenerator generator_;  // outlives the server
  std::unique_ptr<Server> server_;
};

}  // namespace kun
