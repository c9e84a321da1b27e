#include "server/request_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kun {

using Kind = JsonView::Kind;

FieldReader::FieldReader(JsonView object, std::string prefix, std::vector<FieldNote>* notes)
    : object_(object), prefix_(std::move(prefix)), notes_(notes), known_(object.size(), false) {}

void FieldReader::note(FieldNote note) {
  if (notes_ == nullptr) return;
  for (const FieldNote& known : *notes_) {
    if (known.name == note.name) return;
  }
  notes_->push_back(std::move(note));
}

std::optional<std::int64_t> as_integer(JsonView value) {
  if (value.is(Kind::kInteger)) return value.integer();
  if (!value.is(Kind::kNumber)) return std::nullopt;
  const double number = value.number();
  // 2^53: beyond it doubles are no longer exact integers.
  if (number != std::trunc(number) || std::abs(number) > 9007199254740992.0) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

std::optional<JsonView> FieldReader::take(std::string_view name) {
  const auto index = object_.index_of(name);
  if (!index) return std::nullopt;
  known_[*index] = true;
  const JsonView value = object_.at(*index);
  if (failed() || value.is(Kind::kNull)) return std::nullopt;
  return value;
}

std::optional<JsonView> FieldReader::take(std::string_view name, Kind kind, std::string_view what) {
  const auto value = take(name);
  if (value && !value->is(kind)) {
    fail(name, fmt::format("{}{} must be {}", prefix_, name, what));
    return std::nullopt;
  }
  return value;
}

std::optional<std::int64_t> FieldReader::integer(std::string_view name, std::int64_t min,
                                                 std::int64_t max) {
  note({std::string(name), "integer", static_cast<double>(min), static_cast<double>(max)});
  const auto value = take(name);
  if (!value) return std::nullopt;
  const auto integer = as_integer(*value);
  if (!integer) {
    fail(name, fmt::format("{}{} must be an integer", prefix_, name));
  } else if (*integer < min || *integer > max) {
    fail(name,
         fmt::format("{}{} must be between {} and {}, got {}", prefix_, name, min, max, *integer));
    return std::nullopt;
  }
  return integer;
}

std::optional<double> FieldReader::number_in(std::string_view name, double min, double max,
                                             bool open) {
  note({std::string(name), "number", min, max});
  const auto value = take(name);
  if (!value) return std::nullopt;
  if (!value->is(Kind::kInteger) && !value->is(Kind::kNumber)) {
    fail(name, fmt::format("{}{} must be a number", prefix_, name));
    return std::nullopt;
  }
  const double number = value->number();
  if (number > max || number < min || (open && number == min)) {
    fail(name, fmt::format("{}{} must be {} {} and at most {}, got {}", prefix_, name,
                           open ? "above" : "at least", min, max, number));
    return std::nullopt;
  }
  return number;
}

std::optional<double> FieldReader::number(std::string_view name, double min, double max) {
  return number_in(name, min, max, false);
}

std::optional<double> FieldReader::number_above(std::string_view name, double min, double max) {
  return number_in(name, min, max, true);
}

std::optional<bool> FieldReader::boolean(std::string_view name) {
  note({std::string(name), "boolean", {}, {}});
  const auto value = take(name, Kind::kBool, "true or false");
  if (!value) return std::nullopt;
  return value->boolean();
}

std::optional<std::string_view> FieldReader::string(std::string_view name, std::size_t bytes_max) {
  note({std::string(name), "string", {}, {}});
  const auto value = take(name, Kind::kString, "a string");
  if (!value) return std::nullopt;
  if (value->string().size() > bytes_max) {
    fail(name, fmt::format("{}{} is longer than {} bytes", prefix_, name, bytes_max));
    return std::nullopt;
  }
  return value->string();
}

std::optional<std::string_view> FieldReader::word(std::string_view name,
                                                  std::initializer_list<std::string_view> values) {
  const auto given = string(name, 256);
  if (!given || std::ranges::find(values, *given) != values.end()) return given;
  fail(name, fmt::format("{}{} must be one of {}", prefix_, name, fmt::join(values, ", ")));
  return std::nullopt;
}

std::optional<JsonView> FieldReader::array(std::string_view name, std::size_t size_max) {
  note({std::string(name), "array", {}, {}});
  const auto value = take(name, Kind::kArray, "an array");
  if (value && value->size() > size_max) {
    fail(name, fmt::format("{}{} has {} elements, at most {} are accepted", prefix_, name,
                           value->size(), size_max));
    return std::nullopt;
  }
  return value;
}

std::optional<JsonView> FieldReader::object(std::string_view name) {
  note({std::string(name), "object", {}, {}});
  return take(name, Kind::kObject, "an object");
}

std::optional<JsonView> FieldReader::any(std::string_view name) {
  note({std::string(name), "", {}, {}});
  return take(name);
}

std::vector<Token> FieldReader::tokens(std::string_view name, std::size_t size_max,
                                       int vocabulary_size) {
  std::vector<Token> tokens;
  const auto ids = array(name, size_max);
  for (std::size_t i = 0; ids && i < ids->size(); ++i) {
    const auto id = as_integer(ids->at(i));
    if (!id || *id < 0 || *id >= vocabulary_size) {
      fail(name, fmt::format("{}{}[{}] must be a token id between 0 and {}", prefix_, name, i,
                             vocabulary_size - 1));
      return {};
    }
    tokens.push_back(static_cast<Token>(*id));
  }
  return tokens;
}

void FieldReader::refuse(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    note({std::string(name), "", {}, {}, FieldNote::Use::kRefused});
    const auto value = take(name);
    if (!value) continue;
    const Kind kind = value->kind();
    const bool harmless =
        (kind == Kind::kBool && !value->boolean()) ||
        ((kind == Kind::kInteger || kind == Kind::kNumber) && value->number() == 0.0) ||
        (kind == Kind::kString && value->string().empty()) ||
        ((kind == Kind::kArray || kind == Kind::kObject) && value->size() == 0);
    if (!harmless) {
      fail(name, fmt::format("{}{} is not supported by this server", prefix_, name));
    }
  }
}

void FieldReader::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    note({std::string(name), "", {}, {}, FieldNote::Use::kIgnored});
    static_cast<void>(take(name));
  }
}

void FieldReader::fail(std::string_view name, std::string message) {
  if (!error_) error_ = bad_field(prefix_ + std::string(name), std::move(message));
}

void FieldReader::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

std::vector<std::string_view> FieldReader::unknown() const {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < known_.size(); ++i) {
    if (!known_[i]) names.push_back(object_.key(i));
  }
  return names;
}

}  // namespace kun
