// The tool calls of DeepSeek V3.2 (block "function_calls") and V4 (block "tool_calls"):
//   <｜DSML｜tool_calls>
//   <｜DSML｜invoke name="NAME">
//   <｜DSML｜parameter name="KEY" string="true|false">VALUE</｜DSML｜parameter>
//   </｜DSML｜invoke>
//   </｜DSML｜tool_calls>
// Strings stand as they are and flow on, other values are JSON. The arguments that clients see are
// one JSON object, its members in the order in which they were written.
#include <optional>
#include <utility>

#include "text/json_cursor.h"
#include "text/marker_watch.h"
#include "text/tool_call_parser.h"

namespace kun {
namespace {

constexpr std::string_view kSpace = " \n\r\t";
constexpr std::string_view kParameterEnd = "</｜DSML｜parameter>";

class DsmlCallParser : public ToolCallParser {
 public:
  DsmlCallParser() : watch_({"<｜DSML｜tool_calls>", "<｜DSML｜function_calls>"}, kSpace) {}

  void feed(char byte, AnswerPiece& piece) override {
    switch (state_) {
      case State::kText: return text(byte, piece);
      case State::kString: return string_value(byte, piece);
      case State::kJson: return json_value(byte, piece);
      default: break;
    }
    raw_ += byte;
    switch (state_) {
      case State::kBetween: return between(byte, piece);
      case State::kName: return name(byte, piece);
      case State::kAfterName: return after_name(byte, piece);
      case State::kInside: return inside(byte, piece);
      case State::kKey: return key(byte, piece);
      case State::kAfterKey: return after_key(byte, piece);
      default: return;
    }
  }

  void finish(AnswerPiece& piece) override {
    const bool between_calls = state_ == State::kBetween && calls_in_block_ > 0;
    if (state_ == State::kText) {
      const std::string held = watch_.take_held();
      if (!after_block_ || held.find_first_not_of(kSpace) != std::string::npos) {
        piece.content += held;
      }
    } else if (announced_) {
      // The closing marks are missing: between two parameters the call is whole all the same.
      if (state_ == State::kInside) close_call(piece);
    } else if (!between_calls) {
      piece.content += raw_;
    }
  }

 private:
  enum class State : std::uint8_t {
    kText,
    kBetween,
    kName,
    kAfterName,
    kInside,  // of a call, between parameters
    kKey,
    kAfterKey,
    kString,
    kJson,
  };

  void go(State state, std::vector<std::string_view> words = {}) {
    state_ = state;
    words_.emplace(std::move(words));
  }

  void text(char byte, AnswerPiece& piece) {
    const std::size_t size = piece.content.size();
    if (watch_.feed(byte, piece.content) >= 0) {
      raw_ = watch_.take_held();
      calls_in_block_ = 0;
      expect_call();
    }
    if (piece.content.size() > size) after_block_ = false;
  }

  void expect_call() {
    go(State::kBetween,
       {"<｜DSML｜invoke name=\"", "</｜DSML｜tool_calls>", "</｜DSML｜function_calls>"});
  }

  void expect_parameter() {
    go(State::kInside, {"<｜DSML｜parameter name=\"", "</｜DSML｜invoke>"});
  }

  // What was taken for a call is text. Its last byte may begin the next mark.
  void give_up(AnswerPiece& piece) {
    if (std::exchange(announced_, false)) break_call();
    const char last = raw_.back();
    raw_.pop_back();
    piece.content += std::exchange(raw_, {});
    after_block_ = false;
    go(State::kText);
    text(last, piece);
  }

  void between(char byte, AnswerPiece& piece) {
    const int word = words_->feed(byte);
    if (word == WordExpectation::kMore) return;
    if (word == 0) {
      name_.clear();
      return go(State::kName);
    }
    if (word == WordExpectation::kFailed || calls_in_block_ == 0) return give_up(piece);
    raw_.clear();
    after_block_ = true;
    go(State::kText);
  }

  void name(char byte, AnswerPiece& piece) {
    if (is_tool_name_byte(byte)) {
      name_ += byte;
      if (name_.size() > kNameBytesMax) give_up(piece);
      return;
    }
    if (name_.empty()) return give_up(piece);
    go(State::kAfterName, {"\">"});
    after_name(byte, piece);
  }

  void after_name(char byte, AnswerPiece& piece) {
    const int word = words_->feed(byte);
    if (word == WordExpectation::kFailed) return give_up(piece);
    if (word == 0) expect_parameter();
  }

  void inside(char byte, AnswerPiece& piece) {
    const int word = words_->feed(byte);
    if (word == WordExpectation::kFailed) return give_up(piece);
    if (word == WordExpectation::kMore) return;
    if (!std::exchange(announced_, true)) {
      begin_call(piece, std::exchange(name_, {}));
      add_arguments(piece, "{");
      first_parameter_ = true;
      ++calls_in_block_;
    }
    raw_.clear();
    if (word == 1) {
      close_call(piece);
      return expect_call();
    }
    key_.clear();
    go(State::kKey);
  }

  void close_call(AnswerPiece& piece) {
    add_arguments(piece, "}");
    end_call();
    announced_ = false;
  }

  void key(char byte, AnswerPiece& piece) {
    if (byte != '"') {
      key_ += byte;
      if (byte == '<' || byte == '\n' || key_.size() > kNameBytesMax) give_up(piece);
      return;
    }
    go(State::kAfterKey, {"string=\"true\">", "string=\"false\">", ">"});
  }

  void after_key(char byte, AnswerPiece& piece) {
    const int word = words_->feed(byte);
    if (word == WordExpectation::kFailed) return give_up(piece);
    if (word == WordExpectation::kMore) return;
    raw_.clear();
    std::string json = std::exchange(first_parameter_, false) ? "\"" : ", \"";
    append_json_escaped(json, key_);
    json += word == 0 ? "\": \"" : "\": ";
    add_arguments(piece, json);
    value_.clear();
    end_watch_ = MarkerWatch({kParameterEnd});
    go(word == 0 ? State::kString : State::kJson);
  }

  void string_value(char byte, AnswerPiece& piece) {
    std::string value;
    const bool ended = end_watch_.feed(byte, value) == 0;
    std::string json;
    append_json_escaped(json, value);
    if (ended) json += '"';
    add_arguments(piece, json);
    if (ended) expect_parameter();
  }

  void json_value(char byte, AnswerPiece& piece) {
    if (end_watch_.feed(byte, value_) != 0) return;
    std::string json;
    if (is_json_value(value_)) {
      json = value_;
    } else {  // the model forgot to say that it is a string
      json = "\"";
      append_json_escaped(json, value_);
      json += '"';
    }
    add_arguments(piece, json);
    expect_parameter();
  }

  State state_ = State::kText;
  MarkerWatch watch_;
  MarkerWatch end_watch_{{kParameterEnd}};
  std::optional<WordExpectation> words_;
  std::string raw_;
  std::string name_;
  std::string key_;
  std::string value_;
  bool announced_ = false;  // a call is under way and the client knows
  bool first_parameter_ = true;
  int calls_in_block_ = 0;
  bool after_block_ = false;
};

}  // namespace

std::unique_ptr<ToolCallParser> make_dsml_call_parser() {
  return std::make_unique<DsmlCallParser>();
}

}  // namespace kun
