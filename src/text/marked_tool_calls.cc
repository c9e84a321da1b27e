// The tool calls of DeepSeek V3 and R1 (fenced) and of V3.1:
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{}\n```
//   <｜tool▁call▁end｜><｜tool▁calls▁end｜>
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{}<｜tool▁call▁end｜>...
// Models leave out closing marks at the end of their output, which does no harm here.
#include <optional>
#include <utility>

#include "text/json_arguments.h"
#include "text/marker_watch.h"
#include "text/tool_call_parser.h"

namespace kun {
namespace {

constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>";
constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kSpace = " \n\r\t";
constexpr std::size_t kRawBytesMax = 4096;

class MarkedCallParser : public ToolCallParser {
 public:
  explicit MarkedCallParser(bool fenced) : fenced_(fenced), watch_({kCallsBegin}, kSpace) {}

  void feed(char byte, AnswerPiece& piece) override {
    if (state_ == State::kText) return text(byte, piece);
    if (state_ == State::kArguments) return arguments(byte, piece);
    raw_ += byte;
    switch (state_) {
      case State::kBetween: return between(byte, piece);
      case State::kKind: return kind(byte, piece);
      case State::kAfterKind: return after_kind(byte, piece);
      case State::kName: return name(byte, piece);
      case State::kAfterName: return after_name(byte, piece);
      case State::kBody: return body(byte, piece);
      case State::kAfter: return after(byte, piece);
      default: return;
    }
  }

  void finish(AnswerPiece& piece) override {
    const bool call_complete = state_ == State::kAfter;
    const bool between_calls = state_ == State::kBetween && calls_in_block_ > 0;
    if (state_ == State::kText) {
      const std::string held = watch_.take_held();
      // White space behind calls is layout.
      if (!after_block_ || held.find_first_not_of(kSpace) != std::string::npos) {
        piece.content += held;
      }
    } else if (!call_complete && !between_calls) {
      piece.content += raw_;
    }
  }

 private:
  enum class State : std::uint8_t {
    kText,
    kBetween,    // before a call or the end of the block
    kKind,       // "function"; fenced only
    kAfterKind,  // the separator
    kName,
    kAfterName,  // the separator, or the fence
    kBody,       // before the arguments
    kArguments,
    kAfter,  // closing marks
  };

  void go(State state, std::vector<std::string_view> words = {}) {
    state_ = state;
    words_.emplace(std::move(words));
  }

  void text(char byte, AnswerPiece& piece) {
    const std::size_t size = piece.content.size();
    if (watch_.feed(byte, piece.content) == 0) {
      raw_ = watch_.take_held();
      calls_in_block_ = 0;
      expect_call();
    }
    if (piece.content.size() > size) after_block_ = false;
  }

  void expect_call() { go(State::kBetween, {kCallBegin, kCallsEnd}); }

  // What was taken for a call is text. Its last byte may begin the next mark.
  void give_up(AnswerPiece& piece) {
    const char last = raw_.back();
    raw_.pop_back();
    piece.content += std::exchange(raw_, {});
    after_block_ = false;
    go(State::kText);
    text(last, piece);
  }

  void between(char byte, AnswerPiece& piece) {
    const int word = words_->feed(byte);
    if (word == WordExpectation::kFailed) return give_up(piece);
    if (word == 0) {
      name_.clear();
      go(fenced_ ? State::kKind : State::kName);
    }
    if (word != 1) return;
    if (calls_in_block_ == 0) return give_up(piece);  // a block of nothing
    raw_.clear();
    after_block_ = true;
    go(State::kText);
  }

  void kind(char byte, AnswerPiece& piece) {
    if (is_tool_name_byte(byte)) {
      if (raw_.size() > kRawBytesMax) give_up(piece);
      return;
    }
    go(State::kAfterKind, {kSeparator});
    after_kind(byte, piece);
  }

  void after_kind(char byte, AnswerPiece& piece) {
    const int word = words_->feed(byte);
    if (word == WordExpectation::kFailed) return give_up(piece);
    if (word == 0) go(State::kName);
  }

  void name(char byte, AnswerPiece& piece) {
    if (is_tool_name_byte(byte)) {
      name_ += byte;
      if (name_.size() > kNameBytesMax) give_up(piece);
      return;
    }
    if (name_.empty()) return give_up(piece);
    go(State::kAfterName, {fenced_ ? std::string_view("```json") : kSeparator});
    after_name(byte, piece);
  }

  void after_name(char byte, AnswerPiece& piece) {
    const int word = words_->feed(byte);
    if (word == WordExpectation::kFailed) return give_up(piece);
    if (word == 0) go(State::kBody);
  }

  void body(char byte, AnswerPiece& piece) {
    if (kSpace.find(byte) != std::string_view::npos) return;
    if (byte != '{') return give_up(piece);
    begin_call(piece, std::exchange(name_, {}));
    ++calls_in_block_;
    raw_.clear();
    json_ = JsonArguments();
    go(State::kArguments);
    arguments(byte, piece);
  }

  void arguments(char byte, AnswerPiece& piece) {
    std::string json;
    const JsonCursor::Verdict verdict = json_.feed(byte, json);
    if (verdict == JsonCursor::Verdict::kBad) {
      break_call();
      go(State::kText);
      return text(byte, piece);
    }
    add_arguments(piece, json);
    if (verdict == JsonCursor::Verdict::kMore) return;
    end_call();
    expect_end();
  }

  void expect_end() { go(State::kAfter, {kCallEnd, kCallsEnd, "```"}); }

  void after(char byte, AnswerPiece& piece) {
    const int word = words_->feed(byte);
    if (word == WordExpectation::kFailed) return give_up(piece);
    if (word == WordExpectation::kMore) return;
    raw_.clear();
    if (word == 2) return expect_end();
    if (word == 0) return expect_call();
    after_block_ = true;
    go(State::kText);
  }

  const bool fenced_;
  State state_ = State::kText;
  MarkerWatch watch_;
  std::optional<WordExpectation> words_;
  std::string raw_;  // since the block, or the call before, ended
  std::string name_;
  JsonArguments json_;
  int calls_in_block_ = 0;
  bool after_block_ = false;  // nothing but white space since
};

}  // namespace

std::unique_ptr<ToolCallParser> make_marked_call_parser(bool fenced) {
  return std::make_unique<MarkedCallParser>(fenced);
}

}  // namespace kun
