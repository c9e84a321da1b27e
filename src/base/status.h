// Status and Result<T>: how a function reports a failure its caller can act on.
//
// Result mirrors the part of C++23's std::expected that we use, so it can become an alias for it
// the day the compiler floor allows. Nothing in src/ throws; third-party exceptions are caught in
// the .cc file that calls the third party.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace kun {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller's fault; HTTP 400
  kNotFound,           // HTTP 404
  kResourceExhausted,  // a limit was reached, try later; HTTP 429
  kUnavailable,        // not now: loading, draining, dead; HTTP 503
  kUnimplemented,      // understood, and not supported; HTTP 501
  kDataLoss,           // a file is damaged or not what it claims to be
  kCancelled,          // somebody let go of it
  kInternal,           // our fault; HTTP 500
};

// The stable spelling of a code, for messages that scripts read: "invalid_argument".
std::string_view code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }

  // One sentence: what happened, to what, and what to do next. No trailing full stop.
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status invalid_argument(std::string m) {
  return {StatusCode::kInvalidArgument, std::move(m)};
}
inline Status not_found(std::string m) {
  return {StatusCode::kNotFound, std::move(m)};
}
inline Status resource_exhausted(std::string m) {
  return {StatusCode::kResourceExhausted, std::move(m)};
}
inline Status unavailable(std::string m) {
  return {StatusCode::kUnavailable, std::move(m)};
}
inline Status unimplemented(std::string m) {
  return {StatusCode::kUnimplemented, std::move(m)};
}
inline Status data_loss(std::string m) {
  return {StatusCode::kDataLoss, std::move(m)};
}
inline Status cancelled(std::string m) {
  return {StatusCode::kCancelled, std::move(m)};
}
inline Status internal_error(std::string m) {
  return {StatusCode::kInternal, std::move(m)};
}

// A T, or the Status that explains why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status error) : state_(std::in_place_index<1>, std::move(error)) {
    CHECK(!std::get<1>(state_).ok());
  }

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  // Requires: has_value().
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(value()); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Requires: !has_value().
  const Status& error() const {
    CHECK(!has_value());
    return std::get<1>(state_);
  }

 private:
  T& value() {
    CHECK(has_value());
    return std::get<0>(state_);
  }
  const T& value() const {
    CHECK(has_value());
    return std::get<0>(state_);
  }

  std::variant<T, Status> state_;
};

}  // namespace kun

#define RETURN_IF_ERROR(expression)                                      \
  do {                                                                   \
    if (::kun::Status status_or_ok = (expression); !status_or_ok.ok()) { \
      return status_or_ok;                                               \
    }                                                                    \
  } while (false)

#define KUN_CONCAT_INNER(a, b) a##b
#define KUN_CONCAT(a, b) KUN_CONCAT_INNER(a, b)

// ASSIGN_OR_RETURN(auto file, open(path)): declares or assigns on success, returns the error else.
#define ASSIGN_OR_RETURN(target, expression) \
  ASSIGN_OR_RETURN_AS(KUN_CONCAT(result_, __LINE__), target, expression)
#define ASSIGN_OR_RETURN_AS(result, target, expression) \
  auto result = (expression);                           \
  if (!result.has_value()) return result.error();       \
  target = *std::move(result)
