// Chat templates are rendered by minijinja, behind the C interface of bridge/. This file only
// moves strings across and turns the bridge's verdicts into Status; what Jinja means, what a
// template may spend and how messages are normalized is decided, and tested, there.
#include "text/chat_template.h"

#include <kun_bridge.h>

#include <ctime>
#include <memory>
#include <string>
#include <utility>

namespace kun {
namespace {

kun_bridge_view view(std::string_view text) {
  return {.data = text.data(), .size = text.size()};
}

// Takes over and frees a string of the bridge.
std::string take(kun_bridge_string string) {
  std::string text = string.size == 0 ? std::string() : std::string(string.data, string.size);
  kun_bridge_string_free(string);
  return text;
}

// `text` says what happened, as the bridge put it.
Status to_status(kun_bridge_status status, const char* what, const std::string& text) {
  std::string message = std::string(what) + ": " + text;
  switch (status) {
    case KUN_BRIDGE_OK: return {};
    case KUN_BRIDGE_REFUSED:
    case KUN_BRIDGE_EXHAUSTED: return invalid_argument(std::move(message));
    case KUN_BRIDGE_PANICKED: break;
  }
  return internal_error(std::move(message));
}

struct FreeTemplate {
  void operator()(kun_template* handle) const { kun_template_free(handle); }
};
using TemplateHandle = std::unique_ptr<kun_template, FreeTemplate>;

class JinjaChatTemplate final : public ChatTemplate {
 public:
  JinjaChatTemplate(std::string source, TemplateHandle handle)
      : source_(std::move(source)), handle_(std::move(handle)) {}

  Result<std::string> render(const ChatTemplateInput& input) const override {
    const kun_template_input bridge_input = {
        .messages = view(input.messages),
        .tools = view(input.tools),
        .extra = view(input.extra),
        .now = static_cast<std::int64_t>(std::time(nullptr)),
        .add_generation_prompt = input.add_generation_prompt ? 1 : 0,
        .normalize = 1,
    };
    kun_bridge_string output = {};
    const kun_bridge_status status = kun_template_render(handle_.get(), &bridge_input, &output);
    std::string text = take(output);
    if (status != KUN_BRIDGE_OK) {
      return to_status(status, "the chat template cannot render this conversation", text);
    }
    return text;
  }

  std::string_view source() const override { return source_; }

 private:
  std::string source_;
  TemplateHandle handle_;
};

}  // namespace

Result<std::unique_ptr<const ChatTemplate>> ChatTemplate::compile(std::string source,
                                                                  std::string bos_token,
                                                                  std::string eos_token,
                                                                  ChatTemplateLimits limits) {
  const kun_template_limits bridge_limits = {.steps_max = limits.steps_max,
                                             .output_bytes_max = limits.output_bytes_max};
  kun_template* handle = nullptr;
  kun_bridge_string error = {};
  const kun_bridge_status status = kun_template_compile(
      view(source), view(bos_token), view(eos_token), bridge_limits, &handle, &error);
  const std::string text = take(error);
  if (status != KUN_BRIDGE_OK) {
    return to_status(status, "the chat template does not compile", text);
  }
  return std::unique_ptr<const ChatTemplate>(
      std::make_unique<JinjaChatTemplate>(std::move(source), TemplateHandle(handle)));
}

}  // namespace kun
