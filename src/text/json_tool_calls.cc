// Tool calls that are one JSON object: of Hermes and Qwen, between <tool_call> marks,
//   <tool_call>\n{"name": "NAME", "arguments": {}}\n</tool_call>
// and of Llama 3, bare or after a mark, several with ';' between them,
//   <|python_tag|>{"name": "NAME", "parameters": {}}; {...}
// The arguments flow on as soon as the name is known; their bytes are the model's own.
#include <algorithm>
#include <optional>
#include <utility>

#include "text/json_arguments.h"
#include "text/marker_watch.h"
#include "text/tool_call_parser.h"

namespace kun {
namespace {

using Verdict = JsonCursor::Verdict;

constexpr std::string_view kSpace = " \n\r\t";
constexpr std::size_t kEarlyBytesMax = std::size_t{1} << 20U;  // of arguments before the name

bool is_space(char byte) {
  return kSpace.find(byte) != std::string_view::npos;
}

// {"name": ..., "arguments" or "parameters": {...}} from '{' to '}', other members skipped.
class CallObject {
 public:
  enum class Result : std::uint8_t { kMore, kEnd, kBad };

  // `json` gets more of the arguments. kEnd: the object is over.
  Result feed(char byte, std::string& json) {
    switch (state_) {
      case State::kOpen: return is_space(byte) ? Result::kMore : open(byte);
      case State::kKeyOrEnd: return key_or_end(byte);
      case State::kKey: return key(byte);
      case State::kColon: return colon(byte);
      case State::kValue: return value(byte, json);
      case State::kAfterValue: return after_value(byte);
    }
    return Result::kBad;
  }

  const std::string& name() const { return name_; }
  bool name_known() const { return name_known_; }

 private:
  enum class State : std::uint8_t { kOpen, kKeyOrEnd, kKey, kColon, kValue, kAfterValue };
  static constexpr std::size_t kKeyBytesMax = 256;

  Result go(State state) {
    state_ = state;
    return Result::kMore;
  }

  Result open(char byte) { return byte == '{' ? go(State::kKeyOrEnd) : Result::kBad; }

  Result key_or_end(char byte) {
    if (is_space(byte)) return Result::kMore;
    if (byte == '}') return Result::kEnd;
    key_.clear();
    return byte == '"' ? go(State::kKey) : Result::kBad;
  }

  Result key(char byte) {
    if (byte == '"') return go(State::kColon);
    key_ += byte;
    return byte == '\\' || key_.size() > kKeyBytesMax ? Result::kBad : Result::kMore;
  }

  Result colon(char byte) {
    if (is_space(byte)) return Result::kMore;
    cursor_ = JsonArguments();
    value_started_ = false;
    return byte == ':' ? go(State::kValue) : Result::kBad;
  }

  Result value(char byte, std::string& json) {
    if (!value_started_ && is_space(byte)) return Result::kMore;
    const bool first = !std::exchange(value_started_, true);
    const bool arguments = key_ == "arguments" || key_ == "parameters";
    const bool name = key_ == "name";
    if (first && arguments && (byte != '{' || std::exchange(has_arguments_, true))) {
      return Result::kBad;
    }
    if (first && name && (byte != '"' || name_known_)) return Result::kBad;
    std::string text;
    const Verdict verdict = cursor_.feed(byte, text);
    if (verdict == Verdict::kBad) return Result::kBad;
    if (verdict == Verdict::kDoneBefore) {
      state_ = State::kAfterValue;
      return after_value(byte);
    }
    if (arguments) json += text;
    if (name && byte != '"') name_ += byte;
    if (name && (byte == '\\' || name_.size() > kKeyBytesMax)) return Result::kBad;
    if (verdict != Verdict::kDone) return Result::kMore;
    name_known_ = name_known_ || name;
    if (name && name_.empty()) return Result::kBad;
    return go(State::kAfterValue);
  }

  Result after_value(char byte) {
    if (is_space(byte)) return Result::kMore;
    if (byte == '}') return Result::kEnd;
    // One more member must follow a comma, but models that forget it do no harm.
    return byte == ',' ? go(State::kKeyOrEnd) : Result::kBad;
  }

  State state_ = State::kOpen;
  std::string key_;
  std::string name_;
  bool name_known_ = false;
  bool has_arguments_ = false;
  bool value_started_ = false;
  JsonArguments cursor_;
};

// What both syntaxes do with the object.
class JsonCallParser : public ToolCallParser {
 protected:
  enum class Progress : std::uint8_t { kMore, kEnd, kFailed };

  virtual bool may_call(std::string_view name) const = 0;

  void begin_object() {
    object_ = CallObject();
    early_.clear();
    announced_ = false;
  }

  Progress feed_object(char byte, AnswerPiece& piece) {
    std::string json;
    const CallObject::Result result = object_.feed(byte, json);
    if (result == CallObject::Result::kBad) return fail();
    if (announced_) {
      add_arguments(piece, json);
    } else {
      early_ += json;
      if (early_.size() > kEarlyBytesMax) return fail();
    }
    const bool ended = result == CallObject::Result::kEnd;
    if (!announced_ && object_.name_known() && (!early_.empty() || ended)) {
      if (!may_call(object_.name())) return fail();
      announced_ = true;
      begin_call(piece, object_.name());
      add_arguments(piece, early_.empty() ? "{}" : early_);
      early_.clear();
    }
    if (!ended) return Progress::kMore;
    if (!announced_) return Progress::kFailed;
    announced_ = false;
    end_call();
    return Progress::kEnd;
  }

  bool announced() const { return announced_; }

 private:
  Progress fail() {
    if (std::exchange(announced_, false)) break_call();
    return Progress::kFailed;
  }

  CallObject object_;
  std::string early_;  // arguments, as long as the client knows of no call
  bool announced_ = false;
};

class HermesCallParser : public JsonCallParser {
 public:
  HermesCallParser() : watch_({"<tool_call>"}, kSpace) {}

  void feed(char byte, AnswerPiece& piece) override {
    if (state_ == State::kText) return text(byte, piece);
    if (!announced()) raw_ += byte;
    if (state_ == State::kClose) return close(byte, piece);
    switch (feed_object(byte, piece)) {
      case Progress::kMore:
        if (announced()) raw_.clear();
        return;
      case Progress::kFailed: return give_up(byte, piece);
      case Progress::kEnd:
        raw_.clear();
        words_.emplace(std::vector<std::string_view>{"</tool_call>"});
        state_ = State::kClose;
    }
  }

  void finish(AnswerPiece& piece) override {
    if (state_ == State::kText) {
      const std::string held = watch_.take_held();
      if (!after_call_ || held.find_first_not_of(kSpace) != std::string::npos) {
        piece.content += held;
      }
    } else if (state_ == State::kObject && !announced()) {
      piece.content += raw_;
    }
  }

 private:
  enum class State : std::uint8_t { kText, kObject, kClose };

  bool may_call(std::string_view) const override { return true; }

  void text(char byte, AnswerPiece& piece) {
    const std::size_t size = piece.content.size();
    if (watch_.feed(byte, piece.content) == 0) {
      raw_ = watch_.take_held();
      begin_object();
      state_ = State::kObject;
    }
    if (piece.content.size() > size) after_call_ = false;
  }

  void give_up(char byte, AnswerPiece& piece) {
    // `byte` may begin the next mark.
    if (!raw_.empty()) raw_.pop_back();
    piece.content += std::exchange(raw_, {});
    after_call_ = false;
    state_ = State::kText;
    text(byte, piece);
  }

  void close(char byte, AnswerPiece& piece) {
    const int word = words_->feed(byte);
    if (word == WordExpectation::kMore) return;
    if (word == WordExpectation::kFailed) {
      piece.content += std::exchange(raw_, {});
    }
    raw_.clear();
    after_call_ = word == 0;
    state_ = State::kText;
  }

  State state_ = State::kText;
  MarkerWatch watch_;
  std::optional<WordExpectation> words_;
  std::string raw_;
  bool after_call_ = false;
};

class Llama3CallParser : public JsonCallParser {
 public:
  explicit Llama3CallParser(std::vector<std::string> tool_names)
      : tool_names_(std::move(tool_names)) {}

  void feed(char byte, AnswerPiece& piece) override {
    if (state_ == State::kText) {
      piece.content += byte;
      return;
    }
    if (!announced()) raw_ += byte;
    switch (state_) {
      case State::kStart: return start(byte, piece);
      case State::kMark: return mark(byte, piece);
      case State::kObject: return object(byte, piece);
      case State::kBetween:
        if (byte == ';') {
          begin_object();
          state_ = State::kObject;
        } else if (!is_space(byte)) {
          give_up(piece);
        }
        return;
      case State::kText: return;
    }
  }

  void finish(AnswerPiece& piece) override {
    // Behind the last call only layout is held back.
    if (state_ != State::kBetween && state_ != State::kText && !announced()) {
      piece.content += raw_;
    }
  }

 private:
  enum class State : std::uint8_t { kStart, kMark, kObject, kBetween, kText };

  bool may_call(std::string_view name) const override {
    return std::ranges::count(tool_names_, name) > 0;
  }

  void give_up(AnswerPiece& piece) {
    piece.content += std::exchange(raw_, {});
    state_ = State::kText;
  }

  void start(char byte, AnswerPiece& piece) {
    if (is_space(byte)) return;
    if (byte == '{') {
      begin_object();
      state_ = State::kObject;
      return object(byte, piece);
    }
    words_.emplace(std::vector<std::string_view>{"<|python_tag|>"});
    state_ = State::kMark;
    mark(byte, piece);
  }

  void mark(char byte, AnswerPiece& piece) {
    const int word = words_->feed(byte);
    if (word == WordExpectation::kFailed) return give_up(piece);
    if (word != 0) return;
    begin_object();
    state_ = State::kObject;
  }

  void object(char byte, AnswerPiece& piece) {
    switch (feed_object(byte, piece)) {
      case Progress::kMore:
        if (announced()) raw_.clear();
        return;
      case Progress::kFailed:
        if (raw_.empty()) raw_ = byte;
        return give_up(piece);
      case Progress::kEnd: raw_.clear(); state_ = State::kBetween;
    }
  }

  const std::vector<std::string> tool_names_;
  State state_ = State::kStart;
  std::optional<WordExpectation> words_;
  std::string raw_;
};

}  // namespace

std::unique_ptr<ToolCallParser> make_hermes_call_parser() {
  return std::make_unique<HermesCallParser>();
}

std::unique_ptr<ToolCallParser> make_llama3_call_parser(std::vector<std::string> tool_names) {
  return std::make_unique<Llama3CallParser>(std::move(tool_names));
}

}  // namespace kun
