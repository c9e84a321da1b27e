// Looks for markers ("</think>", "<tool_call>") in text that arrives byte by byte. What may turn
// out to be the beginning of a marker is held back, and so is, if asked for, the white space before
// one, which belongs to the syntax and not to the text.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kun {

// Not thread-safe.
class MarkerWatch {
 public:
  // No marker may be the beginning of another one. `held_space`: the characters to hold back.
  explicit MarkerWatch(std::vector<std::string_view> markers, std::string_view held_space = {})
      : markers_(std::move(markers)), held_space_(held_space) {}

  // Appends to `text` what is no part of a marker. Returns the index of the marker that `byte`
  // completes, else -1; take_held() is that marker then, with the space before it.
  int feed(char byte, std::string& text);

  // What is held back, which is forgotten.
  std::string take_held();

 private:
  std::vector<std::string_view> markers_;  // of static storage
  std::string_view held_space_;
  std::string space_;
  std::string match_;  // a beginning of some marker
};

// Expects one of several words, white space before it allowed.
class WordExpectation {
 public:
  explicit WordExpectation(std::vector<std::string_view> words) : words_(std::move(words)) {}

  static constexpr int kMore = -1;
  static constexpr int kFailed = -2;
  // The index of the word that `byte` completes, or kMore, or kFailed.
  int feed(char byte);

 private:
  std::vector<std::string_view> words_;  // of static storage
  std::string seen_;
};

}  // namespace kun
