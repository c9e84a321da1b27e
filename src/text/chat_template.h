// A model's Jinja chat template. Const once compiled; may be used from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kun {

// What bounds a rendering, since templates come with checkpoints and checkpoints come from anyone.
// A step is one instruction or 64 bytes of data made, so steps bound memory too. A conversation of
// 100 KB takes about 30,000.
struct ChatTemplateLimits {
  std::uint64_t steps_max = 4'000'000;
  std::size_t output_bytes_max = 64U << 20U;
};

struct ChatTemplateInput {
  std::string_view messages;  // JSON array, as the client sent it
  std::string_view tools;     // JSON array, or empty
  std::string_view extra;     // JSON object of further variables (chat_template_kwargs), or empty
  bool add_generation_prompt = true;
};

class ChatTemplate {
 public:
  // Fails with the template's own error, its line included.
  static Result<std::unique_ptr<const ChatTemplate>> compile(std::string source,
                                                             std::string bos_token,
                                                             std::string eos_token,
                                                             ChatTemplateLimits limits = {});
  virtual ~ChatTemplate() = default;

  // kInvalidArgument quotes what the template said (raise_exception, a missing field, a limit).
  virtual Result<std::string> render(const ChatTemplateInput& input) const = 0;

  virtual std::string_view source() const = 0;
};

}  // namespace kun
