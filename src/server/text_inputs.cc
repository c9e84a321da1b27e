// One walk for all of these fields. Ids are checked here, because they come from outside and name
// rows of tables further on.
#include "server/text_inputs.h"

#include <fmt/format.h>

#include <utility>

namespace kun {
namespace {

using Kind = JsonView::Kind;

class TextInputReader {
 public:
  TextInputReader(FieldReader& reader, std::string_view name, int vocabulary_size)
      : reader_(reader), name_(name), vocabulary_size_(vocabulary_size) {}

  std::vector<TextInput> read(JsonView value, int count_max) {
    if (value.is(Kind::kString)) {
      inputs_.push_back({value.string(), {}});
    } else if (value.is(Kind::kArray) && value.size() > 0) {
      read_array(value, static_cast<std::size_t>(count_max));
    } else {
      fail(
          "must be a string, an array of strings, an array of token ids or an array of such "
          "arrays, and not empty");
    }
    return std::move(inputs_);
  }

 private:
  void fail(std::string_view what) { reader_.fail(name_, fmt::format("{} {}", name_, what)); }

  void read_array(JsonView array, std::size_t count_max) {
    if (as_integer(array.at(0))) return add_ids(array);
    if (array.size() > count_max) {
      return fail(fmt::format("has {} elements, at most {} are accepted", array.size(), count_max));
    }
    for (std::size_t i = 0; i < array.size() && !reader_.failed(); ++i) {
      const JsonView element = array.at(i);
      if (element.is(Kind::kString)) {
        inputs_.push_back({element.string(), {}});
      } else if (element.is(Kind::kArray)) {
        add_ids(element);
      } else {
        fail(fmt::format("has an element {} that is neither a string nor token ids", i));
      }
    }
  }

  void add_ids(JsonView ids) {
    TextInput input;
    input.ids.reserve(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto id = as_integer(ids.at(i));
      if (!id || *id < 0 || *id >= vocabulary_size_) {
        return fail(fmt::format("has an element that is no token id between 0 and {}",
                                vocabulary_size_ - 1));
      }
      input.ids.push_back(static_cast<Token>(*id));
    }
    inputs_.push_back(std::move(input));
  }

  FieldReader& reader_;
  const std::string_view name_;
  const int vocabulary_size_;
  std::vector<TextInput> inputs_;
};

}  // namespace

std::vector<TextInput> read_text_inputs(FieldReader& reader, std::string_view name, JsonView value,
                                        int count_max, int vocabulary_size) {
  return TextInputReader(reader, name, vocabulary_size).read(value, count_max);
}

}  // namespace kun
