// Which company's habits an answer follows. The path of a request decides.
#pragma once

#include <cstdint>
#include <string_view>

namespace kun {

enum class Dialect : std::uint8_t {
  kOpenAi,     // /v1/..., and what vLLM and others add to it
  kDeepSeek,   // the same routes without /v1, and /beta
  kAnthropic,  // /v1/messages
};

// `path` without the prefix of a proxy.
constexpr Dialect dialect_of(std::string_view path) {
  if (path == "/v1/messages" || path.starts_with("/v1/messages/")) return Dialect::kAnthropic;
  for (const std::string_view own :
       {"/chat/completions", "/completions", "/beta/", "/models", "/user/balance"}) {
    if (path.starts_with(own)) return Dialect::kDeepSeek;
  }
  return Dialect::kOpenAi;
}

}  // namespace kun
