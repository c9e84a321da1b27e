// The format of DeepSeek V4, as its published encoder and that encoder's test vectors have it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "text/deepseek_encoder.h"
#include "text/encoder_messages.h"

namespace kun {
namespace {

constexpr std::string_view kReminder = "<｜latest_reminder｜>";

// The texts the model was trained with; {} is the list of functions.
constexpr std::string_view kTools =
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can invoke "
    "tools by writing a \"<｜DSML｜tool_calls>\" block like the following:\n"
    "\n"
    "<｜DSML｜tool_calls>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" "
    "string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>\n"
    "\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other "
    "types (numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n"
    "\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete "
    "reasoning inside <think>...</think> BEFORE any tool calls or final response.\n"
    "\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n"
    "{}\n"
    "\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke "
    "tool calls.\n";
constexpr std::string_view kEffortHigh =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential "
    "paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate "
    "step, considered alternative, and rejected hypothesis to ensure absolutely no "
    "assumption is left unchecked.\n"
    "\n";
constexpr std::string_view kEffortMax =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every "
    "causal chain to its root, and resolve the underlying cause rather than any surface "
    "symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple "
    "angles and are certain that no assumption remains unchecked and no error remains "
    "undiscovered.\n"
    "\n";

constexpr std::array<std::string_view, 6> kTasks = {"action", "query", "authority",
                                                    "domain", "title", "read_url"};

// A user turn: texts and the results of tools, in one.
struct Block {
  bool is_result = false;
  std::string call_id;
  std::string text;
};

struct Turn {
  EncoderMessage message;  // role "user" also for results
  std::vector<Block> blocks;
};

const std::string& role_of(const Turn& turn) {
  return turn.message.role;
}

std::vector<Turn> merge(const std::vector<EncoderMessage>& messages) {
  std::vector<Turn> turns;
  for (const EncoderMessage& message : messages) {
    const bool result = message.role == "tool";
    if (!result && message.role != "user") {
      turns.push_back({message, {}});
      continue;
    }
    const bool joins = !turns.empty() && turns.back().message.role == "user" &&
                       (result || turns.back().message.task.empty());
    if (!joins) {
      turns.push_back({message, {}});
      turns.back().message.role = "user";
    }
    turns.back().blocks.push_back({result, message.tool_call_id, message.content});
  }
  return turns;
}

// Results stand in the order of the calls they answer.
void sort_results(std::vector<Turn>& turns) {
  std::map<std::string, int> order;
  for (Turn& turn : turns) {
    if (turn.message.role == "assistant" && !turn.message.calls.empty()) {
      order.clear();
      int index = 0;
      for (const EncoderCall& call : turn.message.calls) {
        if (!call.id.empty()) order[call.id] = index;
        ++index;
      }
    }
    if (order.empty()) continue;
    std::vector<Block> results;
    for (const Block& block : turn.blocks) {
      if (block.is_result) results.push_back(block);
    }
    const auto place = [&order](const Block& block) {
      const auto found = order.find(block.call_id);
      return found == order.end() ? 0 : found->second;
    };
    std::ranges::stable_sort(results, {}, place);
    std::size_t next = 0;
    for (Block& block : turn.blocks) {
      if (block.is_result) block = results[next++];
    }
  }
}

class V4Rendering {
 public:
  static constexpr std::string_view kSource = "<｜Assistant｜><think></think><｜DSML｜tool_calls>";

  V4Rendering(const EncoderInput& input, bool add_generation_prompt)
      : input_(input), opens_(add_generation_prompt) {}

  Result<std::string> render() {
    std::vector<Turn> turns = merge(input_.messages);
    sort_results(turns);
    drops_ = input_.drop_thinking.value_or(true) && !input_.has_tools();
    const int last_user = last_user_of(turns, role_of);
    for (std::size_t i = 0; i < turns.size(); ++i) {
      // Instructions of developers hold for their own turn.
      const bool old = static_cast<int>(i) < last_user;
      if (input_.thinking && drops_ && old && turns[i].message.role == "developer") continue;
      turns_.push_back(std::move(turns[i]));
    }
    last_user_ = last_user_of(turns_, role_of);
    text_ = kBegin;
    if (input_.thinking) text_ += effort();
    for (std::size_t i = 0; i < turns_.size(); ++i) RETURN_IF_ERROR(add(i));
    return std::move(text_);
  }

 private:
  std::string_view effort() const {
    const std::string& effort = input_.reasoning_effort;
    if (effort == "high") return kEffortHigh;
    return effort == "max" || effort == "xhigh" ? kEffortMax : "";
  }

  Status add(std::size_t index) {
    const Turn& turn = turns_[index];
    const EncoderMessage& message = turn.message;
    if (message.role == "system") {
      text_ += message.content + encoder_appendix(message, kTools);
    } else if (message.role == "developer") {
      if (message.content.empty()) return invalid_argument("a developer message has no content");
      text_ += kUser;
      text_ += message.content + encoder_appendix(message, kTools);
    } else if (message.role == "user") {
      text_ += kUser;
      add_blocks(turn);
    } else if (message.role == "latest_reminder") {
      text_ += kReminder;
      text_ += message.content;
    } else if (message.role == "assistant") {
      add_answer(index);
    } else {
      return unknown_role(message.role);
    }
    return add_transition(index);
  }

  void add_blocks(const Turn& turn) {
    bool first = true;
    for (const Block& block : turn.blocks) {
      if (!std::exchange(first, false)) text_ += "\n\n";
      text_ += block.is_result ? "<tool_result>" + block.text + "</tool_result>" : block.text;
    }
  }

  void add_answer(std::size_t index) {
    const EncoderMessage& message = turns_[index].message;
    const bool after_task = index > 0 && !turns_[index - 1].message.task.empty();
    const bool keeps = !drops_ || static_cast<int>(index) > last_user_;
    if (input_.thinking && !after_task && keeps) text_ += message.reasoning + "</think>";
    text_ += message.content;
    if (!message.calls.empty()) text_ += "\n\n" + dsml_calls(message, "tool_calls");
    text_ += kEnd;
  }

  // What stands between this turn and the next, or opens the answer.
  Status add_transition(std::size_t index) {
    const EncoderMessage& message = turns_[index].message;
    if (index + 1 < turns_.size()) {
      const std::string& next = turns_[index + 1].message.role;
      if (next != "assistant" && next != "latest_reminder") return {};
    } else if (!opens_) {
      return {};
    }
    if (!message.task.empty()) return add_task(message.task);
    if (message.role != "user" && message.role != "developer") return {};
    text_ += kAssistant;
    const bool now = !drops_ || static_cast<int>(index) >= last_user_;
    text_ += input_.thinking && now ? "<think>" : "</think>";
    return {};
  }

  Status add_task(const std::string& task) {
    if (std::ranges::count(kTasks, task) == 0) {
      return invalid_argument(fmt::format("this model knows no task {:?}", task));
    }
    if (task == "action") {
      text_ += kAssistant;
      text_ += input_.thinking ? "<think>" : "</think>";
    }
    text_ += fmt::format("<｜{}｜>", task);
    return {};
  }

  const EncoderInput& input_;
  const bool opens_;
  bool drops_ = true;
  std::vector<Turn> turns_;
  int last_user_ = -1;
  std::string text_;
};

}  // namespace

std::unique_ptr<const ChatTemplate> make_deepseek_v4_encoder() {
  return std::make_unique<DeepSeekEncoder<V4Rendering>>();
}

}  // namespace kun
