// A chat template and the messages it renders, both from strangers: the input is the template up
// to the first NUL byte, and a JSON array of messages after it. Whatever they are, they end in a
// text or an error, within the steps given.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  const std::string_view messages = end == std::string_view::npos ? "[]" : input.substr(end + 1);
  const auto compiled = kun::ChatTemplate::compile(std::string(input.substr(0, end)), "<s>", "</s>",
                                                   {.steps_max = 50'000});
  if (!compiled) return 0;
  const auto text = (*compiled)->render({.messages = messages, .tools = {}, .extra = {}});
  if (text.has_value() && text->size() > 50'000U * 64U) __builtin_trap();
  return 0;
}
