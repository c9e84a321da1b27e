#include "server/json_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <new>
#include <utility>

namespace kun {
namespace {

namespace json = boost::json;

// Hands out memory up to a bound: [0,0,0,...] is twelve times larger parsed than as text.
class BoundedMemory : public json::memory_resource {
 public:
  explicit BoundedMemory(std::size_t bytes_max) : bytes_left_(bytes_max) {}

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (bytes > bytes_left_) throw std::bad_alloc();
    bytes_left_ -= bytes;
    return ::operator new(bytes, std::align_val_t(alignment));
  }

  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    bytes_left_ += bytes;
    ::operator delete(memory, std::align_val_t(alignment));
  }

  bool do_is_equal(const json::memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::size_t bytes_left_;
};

bool all_finite(const json::value& value) {
  if (const double* number = value.if_double()) return std::isfinite(*number);
  if (const json::array* array = value.if_array()) return std::ranges::all_of(*array, all_finite);
  if (const json::object* object = value.if_object()) {
    return std::ranges::all_of(*object,
                               [](const auto& member) { return all_finite(member.value()); });
  }
  return true;
}

}  // namespace

struct JsonDocument::Impl {
  explicit Impl(std::size_t bytes_max) : memory(bytes_max), arena(4096, &memory), value(&arena) {}

  BoundedMemory memory;
  json::monotonic_resource arena;
  json::value value;
};

JsonDocument::JsonDocument(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

Result<JsonDocument> JsonDocument::parse(std::string_view text, const JsonLimits& limits) {
  auto impl = std::make_unique<Impl>(limits.memory_bytes_max);
  json::parse_options options;
  options.max_depth = static_cast<std::size_t>(limits.depth_max);
  try {
    boost::system::error_code error;
    // Values lie on the parser's stack until their array or object is complete.
    json::parser parser(&impl->memory, options);
    parser.reset(&impl->arena);
    const std::size_t count = parser.write_some(text.data(), text.size(), error);
    if (!error && count < text.size()) error = json::make_error_code(json::error::extra_data);
    if (error == json::error::too_deep) {
      return invalid_argument(
          fmt::format("the JSON is nested deeper than {} levels", limits.depth_max));
    }
    if (error) {
      return invalid_argument(fmt::format("the request body is not valid JSON: {} near byte {}",
                                          error.message(), count));
    }
    impl->value = parser.release();
  } catch (const std::bad_alloc&) {
    return invalid_argument("the JSON has too many values");
  } catch (const std::exception& exception) {
    return invalid_argument(fmt::format("the JSON cannot be read: {}", exception.what()));
  }
  if (!all_finite(impl->value)) return invalid_argument("the JSON has a number out of range");
  return JsonDocument(std::move(impl));
}

JsonView JsonDocument::root() const {
  return JsonView(impl_->value);
}

JsonView::Kind JsonView::kind() const {
  switch (value_->kind()) {
    case json::kind::null: return Kind::kNull;
    case json::kind::bool_: return Kind::kBool;
    case json::kind::int64: return Kind::kInteger;
    case json::kind::uint64: return Kind::kNumber;  // beyond int64: no field wants that many
    case json::kind::double_: return Kind::kNumber;
    case json::kind::string: return Kind::kString;
    case json::kind::array: return Kind::kArray;
    case json::kind::object: return Kind::kObject;
  }
  return Kind::kNull;
}

bool JsonView::boolean() const {
  return *value_->if_bool();
}

std::int64_t JsonView::integer() const {
  return *value_->if_int64();
}

double JsonView::number() const {
  if (const auto* integer = value_->if_int64()) return static_cast<double>(*integer);
  if (const auto* integer = value_->if_uint64()) return static_cast<double>(*integer);
  return *value_->if_double();
}

std::string_view JsonView::string() const {
  const json::string& string = *value_->if_string();
  return {string.data(), string.size()};
}

std::size_t JsonView::size() const {
  if (const json::array* array = value_->if_array()) return array->size();
  return value_->if_object()->size();
}

JsonView JsonView::at(std::size_t index) const {
  if (const json::array* array = value_->if_array()) return JsonView((*array)[index]);
  return JsonView((value_->if_object()->begin() + static_cast<std::ptrdiff_t>(index))->value());
}

std::string_view JsonView::key(std::size_t index) const {
  const auto key = (value_->if_object()->begin() + static_cast<std::ptrdiff_t>(index))->key();
  return {key.data(), key.size()};
}

std::optional<std::size_t> JsonView::index_of(std::string_view key) const {
  const json::object& object = *value_->if_object();
  const auto member = object.find(json::string_view(key.data(), key.size()));
  if (member == object.end()) return std::nullopt;
  return static_cast<std::size_t>(member - object.begin());
}

std::optional<JsonView> JsonView::find(std::string_view key) const {
  const auto index = index_of(key);
  if (!index) return std::nullopt;
  return at(*index);
}

void JsonView::print(std::string& text) const {
  json::serializer serializer;
  serializer.reset(value_);
  char piece[4096];
  while (!serializer.done()) {
    const auto read = serializer.read(piece, sizeof(piece));
    text.append(read.data(), read.size());
  }
}

}  // namespace kun
