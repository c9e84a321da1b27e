// The answers of /v1/messages: Anthropic's content blocks, whole or as its named events.
#pragma once

#include "server/answer_writer.h"

namespace kun {

class MessagesWriter : public AnswerWriter {
 public:
  std::string_view id_prefix() const override { return "msg_"; }
  std::string open_stream(std::span<const ChoicePart> choices,
                          const CompletionUsage& usage) override;
  std::string piece(const ChoicePart& part, const CompletionUsage& usage) override;
  std::string close_stream(const CompletionUsage& usage) override;
  std::string stream_error(const ApiError& error) override;
  std::string whole(std::span<const ChoicePart> choices, const CompletionUsage& usage) override;

 private:
  enum class Block { kNone, kThinking, kText, kCall };

  std::string open_block(Block block, const ToolCallPiece* call);
  std::string close_block();
  std::string delta(std::string_view type, std::string_view name, std::string_view text) const;

  Block block_ = Block::kNone;  // under way
  int block_index_ = -1;
  int call_index_ = -1;
};

}  // namespace kun
