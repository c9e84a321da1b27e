// A small JSON document as plain data: for the parts of tokenizer files that are read once, by
// name, in any order. Vocabularies do not go through here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kun {

class JsonTree {
 public:
  enum class Kind : std::uint8_t { kNull, kBool, kInt, kFloat, kText, kArray, kObject };

  // kDataLoss says what is wrong with `json`; it does not name a file.
  static Result<JsonTree> parse(std::string_view json);

  Kind kind() const { return kind_; }
  bool is_object() const { return kind_ == Kind::kObject; }

  // The member `key` of an object; nullptr when it is absent or null, or this is no object.
  const JsonTree* find(std::string_view key) const;

  // The same by kind; empty when it is of another one.
  std::optional<std::string_view> find_text(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::int64_t> find_int(std::string_view key) const;
  const std::vector<JsonTree>* find_array(std::string_view key) const;

  // This value itself.
  std::optional<std::string_view> text() const;
  std::optional<std::int64_t> integer() const;
  std::optional<double> number() const;
  // The values of an array or an object, and the names of an object's; empty for other kinds.
  const std::vector<JsonTree>& values() const { return values_; }
  const std::vector<std::string>& names() const { return names_; }

  // Adds a member to an object.
  void add(std::string name, JsonTree value);
  static JsonTree object();

 private:
  friend class JsonTreeBuilder;

  Kind kind_ = Kind::kNull;
  std::int64_t integer_ = 0;  // and bool
  double number_ = 0;
  std::string text_;
  std::vector<JsonTree> values_;
  std::vector<std::string> names_;
};

}  // namespace kun
