// Parsed JSON of a request, read-only. Parsing is where hostile bodies are stopped: depth, memory,
// invalid UTF-8 and numbers that are not finite. When a key appears twice the last one counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace boost::json {
class value;
}

namespace kun {

// A value inside a JsonDocument, which must outlive it. Cheap to copy.
class JsonView {
 public:
  enum class Kind { kNull, kBool, kInteger, kNumber, kString, kArray, kObject };

  explicit JsonView(const boost::json::value& value) : value_(&value) {}

  Kind kind() const;
  bool is(Kind kind_wanted) const { return kind() == kind_wanted; }

  // Each requires the kind it names; number() takes kInteger too.
  bool boolean() const;
  std::int64_t integer() const;
  double number() const;
  std::string_view string() const;

  // Of an array or object.
  std::size_t size() const;
  JsonView at(std::size_t index) const;
  std::string_view key(std::size_t index) const;  // objects only
  std::optional<std::size_t> index_of(std::string_view key) const;
  std::optional<JsonView> find(std::string_view key) const;

  // Appends this value as JSON text.
  void print(std::string& text) const;

 private:
  const boost::json::value* value_;
};

struct JsonLimits {
  int depth_max = 32;
  std::size_t memory_bytes_max = 192U << 20U;
};

class JsonDocument {
 public:
  // kInvalidArgument says what is wrong and where.
  static Result<JsonDocument> parse(std::string_view text, const JsonLimits& limits);

  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();

  JsonView root() const;

 private:
  struct Impl;
  explicit JsonDocument(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kun
