// The format of DeepSeek V3.2, as its published encoder and that encoder's test vectors have it.
#include "text/deepseek_encoder.h"
#include "text/encoder_messages.h"

namespace kun {
namespace {

// The text the model was trained with; {} is the list of functions.
constexpr std::string_view kTools =
    "## Tools\n"
    "\n"
    "You have access to a set of tools you can use to answer the user's question.\n"
    "You can invoke functions by writing a \"<｜DSML｜function_calls>\" block like the "
    "following as part of your reply to the user:\n"
    "<｜DSML｜function_calls>\n"
    "<｜DSML｜invoke name=\"$FUNCTION_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" "
    "string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$FUNCTION_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜function_calls>\n"
    "\n"
    "String and scalar parameters should be specified as is without any escaping or quotes, "
    "while lists and objects should use JSON format. The \"string\" attribute should be set "
    "to \"true\" for string type parameters and \"false\" for other types (numbers, "
    "booleans, arrays, objects).\n"
    "\n"
    "If the thinking_mode is enabled, then after function results you should strongly "
    "consider outputting a thinking block. Here is an example:\n"
    "\n"
    "<｜DSML｜function_calls>\n"
    "...\n"
    "</｜DSML｜function_calls>\n"
    "\n"
    "<function_results>\n"
    "...\n"
    "</function_results>\n"
    "\n"
    "<think>...thinking about results</think>\n"
    "\n"
    "Here are the functions available in JSONSchema format:\n"
    "<functions>\n"
    "{}\n"
    "</functions>\n";

class V32Rendering {
 public:
  static constexpr std::string_view kSource =
      "<｜Assistant｜><think></think><｜DSML｜function_calls>";

  V32Rendering(const EncoderInput& input, bool add_generation_prompt)
      : input_(input), last_user_(input.last_user()), opens_(add_generation_prompt) {}

  Result<std::string> render() {
    text_ = kBegin;
    const bool drops =
        input_.thinking && input_.drop_thinking.value_or(input_.messages.back().role == "user");
    for (std::size_t i = 0; i < input_.messages.size(); ++i) {
      const EncoderMessage& message = input_.messages[i];
      const bool old = static_cast<int>(i) < last_user_;
      if (drops && old && message.role == "developer") continue;
      RETURN_IF_ERROR(add(message, static_cast<int>(i)));
    }
    return std::move(text_);
  }

 private:
  Status add(const EncoderMessage& message, int index) {
    const bool last = index + 1 == static_cast<int>(input_.messages.size());
    if (message.role == "system") {
      text_ += message.content + encoder_appendix(message, kTools);
    } else if (message.role == "developer") {
      if (message.content.empty()) return invalid_argument("a developer message has no content");
      text_ += kUser;
      text_ +=
          encoder_appendix(message, kTools) + "\n\n# The user's message is: " + message.content;
      if (!last || opens_) open_answer(index);
    } else if (message.role == "user") {
      text_ += kUser;
      text_ += message.content;
      if (!last || opens_) open_answer(index);
    } else if (message.role == "tool") {
      return add_result(message, index);
    } else if (message.role == "assistant") {
      add_answer(message, index);
    } else {
      return unknown_role(message.role);
    }
    return {};
  }

  void open_answer(int index) {
    text_ += kAssistant;
    text_ += mark(index == last_user_);
  }

  std::string_view mark(bool now) const { return input_.thinking && now ? "<think>" : "</think>"; }

  Status add_result(const EncoderMessage& message, int index) {
    int call = index - 1;  // the message that made the calls
    while (call >= 0 && input_.messages[static_cast<std::size_t>(call)].role == "tool") --call;
    if (call < 0 || input_.messages[static_cast<std::size_t>(call)].role != "assistant") {
      return invalid_argument("a tool message does not follow the calls that it answers");
    }
    const auto calls =
        static_cast<int>(input_.messages[static_cast<std::size_t>(call)].calls.size());
    const int number = index - call;  // from 1 on
    if (number > calls) return invalid_argument("there are more tool messages than calls");
    if (number == 1) text_ += "\n\n<function_results>";
    text_ += "\n<result>" + message.content + "</result>";
    if (number < calls) return {};
    text_ += "\n</function_results>";
    const bool last = index + 1 == static_cast<int>(input_.messages.size());
    if (last && !opens_) return {};
    text_ += "\n\n";
    text_ += mark(index >= last_user_);
    return {};
  }

  void add_answer(const EncoderMessage& message, int index) {
    if (input_.thinking && index > last_user_) text_ += message.reasoning + "</think>";
    text_ += message.content;
    if (!message.calls.empty()) text_ += "\n\n" + dsml_calls(message, "function_calls");
    text_ += kEnd;
  }

  const EncoderInput& input_;
  const int last_user_;
  const bool opens_;
  std::string text_;
};

}  // namespace

std::unique_ptr<const ChatTemplate> make_deepseek_v32_encoder() {
  return std::make_unique<DeepSeekEncoder<V32Rendering>>();
}

}  // namespace kun
