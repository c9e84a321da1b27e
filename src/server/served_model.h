// What the server knows of the model it serves.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/generator.h"
#include "text/answer_syntax.h"
#include "text/chat_template.h"
#include "text/constrain_after.h"
#include "text/grammar_compiler.h"
#include "text/tokenizer.h"

namespace kun {

// For fields a request leaves out; usually from the model's generation_config.json.
struct SamplingDefaults {
  float temperature = 1.0F;
  float top_p = 1.0F;
  int top_k = 0;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
};

struct ServedModel {
  std::vector<std::string> names;  // clients may use any; the first is the one shown
  std::string root;                // where it was loaded from, for /v1/models
  // Collaborators: must outlive the server.
  Generator* generator = nullptr;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // null: chat is refused
  std::string bos_token;                        // for templates that arrive in a request
  std::string eos_token;
  int context_length = 4096;
  int hidden_size = 0;  // numbers of an embedding; 0: not known beforehand
  SamplingDefaults defaults;
  AnswerSyntax syntax;  // of thoughts and tool calls
  std::vector<Token> end_tokens;
  std::int64_t created = 0;                     // Unix seconds
  std::shared_ptr<GrammarCompiler> grammars;    // null: the server makes its own
  std::shared_ptr<const EndMark> thoughts_end;  // "</think>"; null: the server makes its own
  // Labels of vllm:cache_config_info.
  std::vector<std::pair<std::string, std::string>> cache_config;

  bool is_named(std::string_view name) const {
    for (const std::string& own : names) {
      if (own == name) return true;
    }
    return false;
  }
};

}  // namespace kun
