// The prompts of DeepSeek V3.2 and V4, whose checkpoints come without a Jinja template: their
// formats are programs, published as Python files beside the weights. An encoder is a ChatTemplate
// like any other; of the variables it looks at thinking (or enable_thinking), reasoning_effort and
// drop_thinking.
#pragma once

#include <memory>

#include "text/chat_template.h"

namespace kun {

std::unique_ptr<const ChatTemplate> make_deepseek_v32_encoder();
std::unique_ptr<const ChatTemplate> make_deepseek_v4_encoder();

}  // namespace kun
