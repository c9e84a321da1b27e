// The answers of /v1/responses: OpenAI's output items, whole or as its numbered events; and the
// store that keeps them.
#pragma once

#include <string>

#include "server/answer_writer.h"
#include "server/response_store.h"

namespace kun {

class ResponsesWriter : public AnswerWriter {
 public:
  struct Options {
    std::string echoed;    // members of the response that repeat the request, JSON without braces
    std::string messages;  // JSON array: the conversation before the answer
    std::string owner;
    ResponseStore* store = nullptr;  // null: the answer is not kept
  };

  explicit ResponsesWriter(Options options) : options_(std::move(options)) {}

  std::string_view id_prefix() const override { return "resp_"; }
  std::string open_stream(std::span<const ChoicePart> choices,
                          const CompletionUsage& usage) override;
  std::string piece(const ChoicePart& part, const CompletionUsage& usage) override;
  std::string close_stream(const CompletionUsage& usage) override;
  std::string stream_error(const ApiError& error) override;
  std::string whole(std::span<const ChoicePart> choices, const CompletionUsage& usage) override;

 private:
  enum class Item { kNone, kReasoning, kMessage, kCall };

  std::string id() const;
  std::string item_id(Item item, int index) const;
  std::string event(std::string_view type, const JsonWriter& members);
  std::string response(std::string_view status, const CompletionUsage* usage) const;
  std::string response_event(std::string_view type, std::string_view status,
                             const CompletionUsage* usage);
  std::string open_item(Item item, const ToolCallPiece* call);
  std::string close_item(bool complete);
  std::string add_text(std::string_view text);
  void write_item(JsonWriter& json, bool ended, bool complete) const;
  void write_part(JsonWriter& json, std::string_view text) const;
  void keep(const std::string& response) const;

  const Options options_;
  int sequence_ = 0;
  Item item_ = Item::kNone;  // under way
  int item_index_ = -1;
  ToolCallPiece call_;
  std::string text_;    // of the item under way
  std::string output_;  // items that have ended, JSON
  std::string said_;    // for the conversation
  std::string thought_;
  std::string calls_;  // tool_calls, JSON
  bool cut_ = false;   // at max_output_tokens
};

}  // namespace kun
