// The mark is looked for with the automaton of Knuth, Morris and Pratt, byte by byte: its state is
// how much of the mark the text ends with. Tokens that would complete the mark and go on with
// something else are known for each state beforehand, and are the only ones that are never
// possible.
#include "text/constrain_after.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace kun {

class EndMark {
 public:
  EndMark(std::string text, const Tokenizer& tokenizer)
      : text_(std::move(text)), tokenizer_(tokenizer), retreat_(text_.size(), 0) {
    CHECK(!text_.empty());
    for (std::size_t i = 1; i < text_.size(); ++i) retreat_[i] = step(retreat_[i - 1], text_[i]);
    excluded_.resize(text_.size());
    for (Token id = 0; id < tokenizer.vocabulary_size(); ++id) {
      if (tokenizer.bytes(id, false).find(text_.back()) == std::string_view::npos) continue;
      for (std::size_t state = 0; state < text_.size(); ++state) {
        bool blank = true;
        const bool complete = read(id, state, blank).second;
        if (complete && !blank) excluded_[state].push_back(id);
      }
    }
  }

  // The state after a token, and whether the mark is complete with it.
  std::pair<std::size_t, bool> read(Token id, std::size_t state) const {
    bool blank = true;
    return read(id, state, blank);
  }

  const std::vector<Token>& excluded(std::size_t state) const { return excluded_[state]; }

 private:
  // As above; `blank`: nothing but white space follows the mark.
  std::pair<std::size_t, bool> read(Token id, std::size_t state, bool& blank) const {
    const std::string_view bytes = tokenizer_.bytes(id, false);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      state = step(state, bytes[i]);
      if (state < text_.size()) continue;
      blank = bytes.find_first_not_of(" \t\r\n", i + 1) == std::string_view::npos;
      return {0, true};
    }
    return {state, false};
  }

  std::size_t step(std::size_t state, char byte) const {
    while (state > 0 && text_[state] != byte) state = retreat_[state - 1];
    return text_[state] == byte ? state + 1 : 0;
  }

  const std::string text_;
  const Tokenizer& tokenizer_;
  std::vector<std::size_t> retreat_;          // [i]: length of the border of text_[0, i]
  std::vector<std::vector<Token>> excluded_;  // [state]
};

namespace {

class ConstrainAfter final : public TokenConstraint {
 public:
  ConstrainAfter(std::shared_ptr<const EndMark> mark, std::unique_ptr<TokenConstraint> rest)
      : mark_(std::move(mark)), rest_(std::move(rest)) {}

  Status fill_mask(std::span<std::uint32_t> bits) override {
    if (marked_) return rest_->fill_mask(bits);
    std::ranges::fill(bits, ~std::uint32_t{0});
    for (const Token token : mark_->excluded(states_.empty() ? 0 : states_.back())) {
      const auto index = static_cast<std::size_t>(token);
      if (index / 32 < bits.size()) bits[index / 32] &= ~(std::uint32_t{1} << (index % 32));
    }
    return {};
  }

  Status advance(Token token) override {
    if (marked_) {
      RETURN_IF_ERROR(rest_->advance(token));
      ++rest_count_;
      return {};
    }
    const auto [state, complete] = mark_->read(token, states_.empty() ? 0 : states_.back());
    states_.push_back(static_cast<std::uint8_t>(state));
    marked_ = complete;
    return {};
  }

  Status rollback(int count) override {
    const int rest = std::min(count, rest_count_);
    if (count < 0 || static_cast<std::size_t>(count - rest) > states_.size()) {
      return internal_error("more tokens were taken back than there were");
    }
    if (rest > 0) RETURN_IF_ERROR(rest_->rollback(rest));
    rest_count_ -= rest;
    if (count > rest) {
      states_.resize(states_.size() - static_cast<std::size_t>(count - rest));
      marked_ = false;
    }
    return {};
  }

  Ending ending() override { return marked_ ? rest_->ending() : Ending::kNotYet; }

  std::unique_ptr<TokenConstraint> clone() const override {
    auto copy = std::make_unique<ConstrainAfter>(mark_, rest_->clone());
    copy->states_ = states_;
    copy->marked_ = marked_;
    copy->rest_count_ = rest_count_;
    return copy;
  }

 private:
  std::shared_ptr<const EndMark> mark_;
  std::unique_ptr<TokenConstraint> rest_;
  std::vector<std::uint8_t> states_;  // after each token up to the mark
  bool marked_ = false;
  int rest_count_ = 0;  // tokens that rest_ took in
};

}  // namespace

std::shared_ptr<const EndMark> make_end_mark(std::string mark, const Tokenizer& tokenizer) {
  CHECK(mark.size() < 256);
  return std::make_shared<const EndMark>(std::move(mark), tokenizer);
}

std::unique_ptr<TokenConstraint> constrain_after(std::shared_ptr<const EndMark> mark,
                                                 std::unique_ptr<TokenConstraint> rest) {
  CHECK(mark != nullptr && rest != nullptr);
  return std::make_unique<ConstrainAfter>(std::move(mark), std::move(rest));
}

}  // namespace kun
