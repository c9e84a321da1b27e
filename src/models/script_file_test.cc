#include "models/script_file.h"

#include <gtest/gtest.h>

#include <random>

namespace kun {
namespace {

std::vector<Token> bytes(std::string_view text) {
  std::vector<Token> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

Script parse(std::string_view text) {
  auto script = parse_script(text);
  CHECK(script.has_value());
  return *std::move(script);
}

// What generation gives behind `prompt`, `count` tokens of it; -1 where no rule fits.
std::string generate(const Script& script, std::string_view prompt, int count) {
  std::vector<Token> text = bytes(prompt);
  std::string reply;
  for (int i = 0; i < count; ++i) {
    const Script::Place place = script.locate(text);
    if (place.rule == nullptr) return reply + "!";
    const Token token = place.rule->reply[place.given];
    text.push_back(token);
    reply.push_back(token == 256 ? '$' : static_cast<char>(token));
  }
  return reply;
}

TEST(Script, ReadsEveryDirective) {
  const Script script = parse(
      "# a comment\n"
      "vocab 300\nend_token 299\ncontext 64\nblock 8\nstep_us 3\ntoken_us 4\nafter \">\" 10\n\n"
      "prompt contains 7 8\r\n"
      "  emit 72 \"i\\n\\x41\\\\\\\"\" 101  # another\n"
      "  stall_ms 50\n  emit 1\n  repeat 3 2 3\n  error \"text\"\n"
      "prompt *\n nan\n end\n emit 5\n");
  EXPECT_EQ(script.vocabulary_size, 300);
  EXPECT_EQ(script.end_token, 299);
  EXPECT_EQ(script.context_length, 64);
  EXPECT_EQ(script.tokens_per_block, 8);
  EXPECT_EQ(script.step_us, 3);
  EXPECT_EQ(script.token_us, 4);
  EXPECT_EQ(script.after, (std::vector<Token>{'>', 10}));
  ASSERT_EQ(script.rules.size(), 2U);
  const ScriptRule& rule = script.rules[0];
  EXPECT_EQ(rule.match, PromptMatch::kContains);
  EXPECT_EQ(rule.pattern, (std::vector<Token>{7, 8}));
  EXPECT_EQ(rule.reply,
            (std::vector<Token>{72, 'i', '\n', 'A', '\\', '"', 101, 1, 2, 3, 2, 3, 2, 3, 299}));
  EXPECT_EQ(rule.events.at(7).stall_ms, 50);
  EXPECT_TRUE(rule.events.at(14).fails);
  EXPECT_EQ(rule.events.at(14).error, "text");
  EXPECT_TRUE(script.rules[1].events.at(0).nan);
  EXPECT_EQ(script.rules[1].reply, (std::vector<Token>{299, 5, 299}));
}

TEST(Script, ErrorsNameTheLineInOneSentence) {
  for (const std::string_view text : {"nonsense\n",
                                      "emit 1\n",
                                      "vocab x\nprompt *",
                                      "vocab 1\nprompt *",
                                      "vocab -4\nprompt *",
                                      "vocab 99999999999999\nprompt *",
                                      "prompt\n",
                                      "prompt maybe 1\n",
                                      "prompt contains\n",
                                      "prompt *\nemit\n",
                                      "prompt *\nemit 257\n",
                                      "prompt *\nemit -1\n",
                                      "prompt *\nemit 1x\n",
                                      "prompt *\nemit \"open\n",
                                      "prompt *\nemit \"\\q\"\n",
                                      "prompt *\nemit \"\\x4\"\n",
                                      "prompt *\nemit \"\\\n",
                                      "prompt *\nvocab 300\n",
                                      "prompt *\nafter 1\n",
                                      "prompt *\nstall_ms 5 6\n",
                                      "prompt *\nerror\n",
                                      "prompt *\nerror text\n",
                                      "prompt *\nrepeat 99999999 1\n",
                                      "prompt *\nrepeat 4000000 \"abc\"\n",
                                      "vocab 100\nend_token 100\nprompt *\n",
                                      "vocab 60\nend_token 1\nprompt *\nemit \"a\"\n",
                                      "prompt * *\n",
                                      "prompt *\nnan 1\n"}) {
    const auto script = parse_script(text);
    ASSERT_FALSE(script.has_value()) << text;
    EXPECT_EQ(script.error().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(script.error().message().starts_with("line ")) << script.error().message();
    EXPECT_EQ(script.error().message().find('\n'), std::string::npos);
  }
  EXPECT_FALSE(parse_script("").has_value());
  EXPECT_FALSE(parse_script("vocab 300\n").has_value());
  EXPECT_FALSE(parse_script(std::string(17 << 20, ' ')).has_value());
}

TEST(Script, SurvivesMutatedFiles) {
  const std::string good =
      "vocab 300\nafter \">\"\nprompt contains \"x\\x41\"\n emit 1 2 \"abc\"\n stall_ms 5\n"
      " repeat 3 9\n error \"e\"\nprompt *\n nan\n end\n";
  std::mt19937 random(3);
  int parsed = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = good;
    for (int edit = 0; edit < 3; ++edit) {
      const std::size_t place = random() % text.size();
      switch (random() % 3) {
        case 0: text[place] = static_cast<char>(random() % 256); break;
        case 1: text.erase(place, 1 + random() % 5); break;
        default: text.insert(place, 1, "0 \"\\x#\n9"[random() % 8]);
      }
      if (text.empty()) break;
    }
    parsed += parse_script(text).has_value() ? 1 : 0;
  }
  EXPECT_GT(parsed, 0);
  EXPECT_LT(parsed, 20'000);
}

TEST(Script, UsesTheFirstRuleThatFitsThePrompt) {
  const Script script = parse(
      "prompt is \"exact\"\n emit \"1\"\nprompt ends \"tail\"\n emit \"2\"\n"
      "prompt contains \"mid\"\n emit \"3\"\n");
  EXPECT_EQ(generate(script, "exact", 2), "1$");
  EXPECT_EQ(generate(script, "a mid tail", 2), "2$");
  EXPECT_EQ(generate(script, "a mid b", 2), "3$");
  EXPECT_EQ(generate(script, "none", 2), "!");
}

TEST(Script, StartsOverBehindTheEnd) {
  const Script script = parse("prompt *\n emit \"ab\"\n");
  EXPECT_EQ(generate(script, "x", 8), "ab$ab$ab");
}

TEST(Script, FindsItsPlaceInRepliesThatRepeatThemselves) {
  for (const char* reply : {"aaaa", "abababc", "abcabdabcabc", "aabaabaaa"}) {
    const Script script = parse(std::string("prompt *\n emit \"") + reply + "\"\n");
    EXPECT_EQ(generate(script, "prompt:", static_cast<int>(std::string(reply).size()) + 1),
              std::string(reply) + "$");
  }
}

TEST(Script, AReplyThatLooksLikeAnotherRulesPromptGoesOn) {
  const Script script =
      parse("prompt contains \"help\"\n emit \"1\"\nprompt *\n emit \"I need help now\"\n");
  EXPECT_EQ(generate(script, "x", 16), "I need help now$");
}

TEST(Script, AfterMakesTheStartOfTheReplyExact) {
  const Script loose = parse("prompt *\n emit \"hello\"\n");
  EXPECT_EQ(generate(loose, "say he", 3), "llo") << "taken for a reply in progress, as documented";
  const Script exact = parse("after \">>\"\nprompt contains \"x\"\n emit \"hello\"\n");
  EXPECT_EQ(generate(exact, "x he>>", 6), "hello$");
  EXPECT_EQ(generate(exact, "x>>hello>>", 6), "hello$") << "a later turn";
  EXPECT_EQ(generate(exact, "y>>", 1), "!");
}

}  // namespace
}  // namespace kun
