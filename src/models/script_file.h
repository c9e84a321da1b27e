// The file behind `script:FILE`: what a scripted model says to which prompt, and where it stalls,
// fails or writes NaN. Lines of directives, `#` starts a comment, order matters:
//
//   vocab 257           rows of the output head; before the rules
//   end_token 256       ends every reply
//   context 4096        tokens a sequence may have
//   block 16            tokens per cache block
//   step_us 0           every step takes at least this long
//   token_us 0          and this much for each token it computes
//   after TOKENS        see below
//
//   prompt *            opens a rule; the first whose prompt fits is used
//   prompt contains TOKENS | prompt ends TOKENS | prompt is TOKENS
//     emit TOKENS       the next output tokens
//     repeat 100 TOKENS
//     stall_ms 50       the next output token takes this long
//     error "text"      the step that would give the next output token fails
//     nan               its logits are NaN
//     end               the end token; implied where a rule ends
//
// TOKENS are ids and quoted strings, whose bytes are ids: emit 72 "ello\n". Strings know the
// escapes \n \t \r \xHH, and the backslash before itself and before a quote. The tokenizer that
// fits has bytes as ids, and id 256 as the end.
//
// A model sees tokens, not where the prompt ends. With `after TOKENS` (the end of the chat
// template's last turn, say) output starts behind the last place where TOKENS stand, exactly.
// Without it, a text whose tail is the start of a rule's reply is taken as that reply in progress,
// the longest such tail first; so a prompt must not end the way any reply begins. A reply starts
// over when generation goes on behind its end.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/token.h"

namespace kun {

enum class PromptMatch : std::uint8_t { kAny, kContains, kEnds, kIs };

// What happens at one place of a reply beside its token.
struct ScriptEvent {
  int stall_ms = 0;
  bool nan = false;
  bool fails = false;
  std::string error;
};

struct ScriptRule {
  PromptMatch match = PromptMatch::kAny;
  std::vector<Token> pattern;
  std::vector<Token> reply;  // the end token last
  std::map<std::size_t, ScriptEvent> events;
  std::vector<std::size_t> borders;  // of the reply's prefixes (Knuth, Morris, Pratt)

  bool fits(std::span<const Token> prompt) const;
};

struct Script {
  int vocabulary_size = 257;
  Token end_token = 256;
  int context_length = 4096;
  int tokens_per_block = 16;
  int step_us = 0;
  int token_us = 0;
  std::vector<Token> after;
  std::vector<ScriptRule> rules;

  // Where a text stands: the reply in progress and how many of its tokens were given; rule is
  // nullptr when no rule fits, which ends the text.
  struct Place {
    const ScriptRule* rule = nullptr;
    std::size_t given = 0;
  };
  Place locate(std::span<const Token> text) const;
};

// Errors name the line.
Result<Script> parse_script(std::string_view text);
Result<Script> read_script(const std::filesystem::path& path);

}  // namespace kun
