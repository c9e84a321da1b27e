// Copies simdjson's document into our own values, down to a fixed depth.
#include "runtime/json_tree.h"

#include <fmt/format.h>
#include <simdjson.h>

namespace kun {

class JsonTreeBuilder {
 public:
  static bool build(const simdjson::dom::element& element, int depth, JsonTree& tree);

 private:
  static constexpr int kDepthMax = 48;

  static void build_scalar(const simdjson::dom::element& element, JsonTree& tree);
};

void JsonTreeBuilder::build_scalar(const simdjson::dom::element& element, JsonTree& tree) {
  std::string_view text;
  bool flag = false;
  if (element.get(text) == simdjson::SUCCESS) {
    tree.kind_ = JsonTree::Kind::kText;
    tree.text_ = text;
  } else if (element.get(flag) == simdjson::SUCCESS) {
    tree.kind_ = JsonTree::Kind::kBool;
    tree.integer_ = flag ? 1 : 0;
  } else if (element.get(tree.integer_) == simdjson::SUCCESS) {
    tree.kind_ = JsonTree::Kind::kInt;
    tree.number_ = static_cast<double>(tree.integer_);
  } else if (element.get(tree.number_) == simdjson::SUCCESS) {
    tree.kind_ = JsonTree::Kind::kFloat;
  }
}

bool JsonTreeBuilder::build(const simdjson::dom::element& element, int depth, JsonTree& tree) {
  if (depth > kDepthMax) return false;
  simdjson::dom::array array;
  simdjson::dom::object object;
  if (element.get(array) == simdjson::SUCCESS) {
    tree.kind_ = JsonTree::Kind::kArray;
    for (const simdjson::dom::element& value : array) {
      if (!build(value, depth + 1, tree.values_.emplace_back())) return false;
    }
  } else if (element.get(object) == simdjson::SUCCESS) {
    tree.kind_ = JsonTree::Kind::kObject;
    for (const auto& [name, value] : object) {
      tree.names_.emplace_back(name);
      if (!build(value, depth + 1, tree.values_.emplace_back())) return false;
    }
  } else {
    build_scalar(element, tree);
  }
  return true;
}

Result<JsonTree> JsonTree::parse(std::string_view json) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  const simdjson::error_code error = parser.parse(json.data(), json.size()).get(root);
  if (error != simdjson::SUCCESS) {
    return data_loss(fmt::format("not valid JSON: {}", simdjson::error_message(error)));
  }
  JsonTree tree;
  if (!JsonTreeBuilder::build(root, 0, tree)) return data_loss("JSON nested too deeply");
  return tree;
}

JsonTree JsonTree::object() {
  JsonTree tree;
  tree.kind_ = Kind::kObject;
  return tree;
}

void JsonTree::add(std::string name, JsonTree value) {
  CHECK(is_object());
  names_.push_back(std::move(name));
  values_.push_back(std::move(value));
}

const JsonTree* JsonTree::find(std::string_view key) const {
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (names_[i] == key) return values_[i].kind_ == Kind::kNull ? nullptr : &values_[i];
  }
  return nullptr;
}

std::optional<std::string_view> JsonTree::text() const {
  return kind_ == Kind::kText ? std::optional<std::string_view>(text_) : std::nullopt;
}

std::optional<std::int64_t> JsonTree::integer() const {
  return kind_ == Kind::kInt ? std::optional(integer_) : std::nullopt;
}

std::optional<double> JsonTree::number() const {
  const bool is_number = kind_ == Kind::kInt || kind_ == Kind::kFloat;
  return is_number ? std::optional(number_) : std::nullopt;
}

std::optional<std::string_view> JsonTree::find_text(std::string_view key) const {
  const JsonTree* value = find(key);
  return value == nullptr ? std::nullopt : value->text();
}

std::optional<bool> JsonTree::find_bool(std::string_view key) const {
  const JsonTree* value = find(key);
  if (value == nullptr || value->kind_ != Kind::kBool) return std::nullopt;
  return value->integer_ != 0;
}

std::optional<std::int64_t> JsonTree::find_int(std::string_view key) const {
  const JsonTree* value = find(key);
  return value == nullptr ? std::nullopt : value->integer();
}

const std::vector<JsonTree>* JsonTree::find_array(std::string_view key) const {
  const JsonTree* value = find(key);
  return value == nullptr || value->kind_ != Kind::kArray ? nullptr : &value->values_;
}

}  // namespace kun
