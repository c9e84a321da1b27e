// Constrained generations through the whole engine: grammars over bytes, and a scripted model that
// would rather say something else.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <set>

#include "engine/mask_filler.h"
#include "house.h"
#include "text/byte_tokenizer.h"
#include "text/constrain_after.h"
#include "text/grammar.h"

namespace kun {
namespace {

std::shared_ptr<const Grammar> compile(GrammarKind kind, std::string text) {
  static const auto tokenizer = make_byte_tokenizer();
  static const auto vocabulary = GrammarVocabulary::create(*tokenizer);
  GrammarSource source;
  source.kind = kind;
  source.compact = true;
  (kind == GrammarKind::kJson ? source.schemas.emplace_back() : source.text) = std::move(text);
  auto compiled = (*vocabulary)->compile(source);
  CHECK(compiled.has_value());
  return *std::move(compiled);
}

bool matches(const Grammar& grammar, std::string_view text) {
  const auto state = grammar.begin();
  for (const Token token : bytes(text)) {
    if (!state->advance(token).ok()) return false;
  }
  return state->ending() != TokenConstraint::Ending::kNotYet;
}

GenerateRequest ask_for(const Grammar& grammar, std::string_view prompt = "?") {
  GenerateRequest request = ask(prompt);
  request.constraint = grammar.begin();
  return request;
}

constexpr std::string_view kChatter = "context 600\nprompt *\n repeat 200 \"no \"\n";

TEST(Constraint, MakesTheModelSayWhatTheGrammarDemandsAndEndsThere) {
  House house(kChatter);
  const auto grammar = compile(GrammarKind::kRegex, "yes");
  const Answer answer = house.answer(ask_for(*grammar));
  EXPECT_TRUE(answer.status.ok()) << answer.status.message();
  EXPECT_EQ(answer.text(), "yes");
  EXPECT_EQ(answer.finish, FinishReason::kStop);
  EXPECT_FALSE(answer.end_token.has_value());
  EXPECT_EQ(answer.usage.output_count, 3);
}

TEST(Constraint, LetsTheModelSayWhatItWantsWithinTheGrammar) {
  House house("prompt *\n emit \"green tea\"\n");
  const auto grammar = compile(GrammarKind::kRegex, "(black|green) (tea|ink)!?");
  const Answer answer = house.answer(ask_for(*grammar));
  EXPECT_EQ(answer.text(), "green tea");
  EXPECT_EQ(answer.end_token, std::optional<Token>(256));
}

TEST(Constraint, AllowsTheEndTokenOnlyWhereTheTextMayEnd) {
  House house("prompt *\n emit \"a\"\n");  // then it wants to end
  const auto grammar = compile(GrammarKind::kRegex, "ab{3}c*");
  const Answer answer = house.answer(ask_for(*grammar));
  EXPECT_EQ(answer.text().substr(0, 4), "abbb");
  EXPECT_TRUE(matches(*grammar, answer.text())) << answer.text();
}

TEST(Constraint, EndsTheSequenceEvenWhereEndTokensAreIgnored) {
  House house(kChatter);
  GenerateRequest request = ask_for(*compile(GrammarKind::kRegex, "aa"));
  request.ignore_end_tokens = true;
  const Answer answer = house.answer(std::move(request));
  EXPECT_EQ(answer.text(), "aa");
  EXPECT_EQ(answer.finish, FinishReason::kStop);
}

TEST(Constraint, GivesEveryChoiceItsOwnPlaceInTheGrammar) {
  House house(kChatter);
  const auto grammar = compile(GrammarKind::kRegex, "[ab]{20}(x|yz)");
  GenerateRequest request = ask_for(*grammar);
  request.choice_count = 8;
  request.sampling.temperature = 1.0F;
  request.sampling.seed = 7;
  const auto answers = Reader(house.engine().generate(std::move(request))).read_all(8);
  std::set<std::string> texts;
  for (const auto& [choice, answer] : answers) {
    EXPECT_TRUE(answer.status.ok()) << answer.status.message();
    EXPECT_TRUE(matches(*grammar, answer.text())) << answer.text();
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    texts.insert(answer.text());
  }
  EXPECT_GT(texts.size(), 4U);
}

TEST(Constraint, SaysTheSameForTheSameSeedAloneInCompanyAndAfterPreemption) {
  HouseOptions tight;
  tight.block_count = 24;
  tight.limits.tokens_per_step_max = 16;
  const std::string script = "block 4\n" + std::string(kChatter);
  const auto grammar =
      compile(GrammarKind::kJson,
              R"({"type":"array","items":{"enum":["one","two",3]},"minItems":4,"maxItems":4})");
  const auto request = [&](std::uint64_t seed) {
    GenerateRequest one = ask_for(*grammar, "seed " + std::to_string(seed));
    one.sampling.temperature = 1.0F;
    one.sampling.seed = seed;
    one.output_count_max = 300;
    return one;
  };
  std::vector<std::string> alone;
  {
    House house(script);
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      alone.push_back(house.answer(request(seed)).text());
      EXPECT_TRUE(matches(*grammar, alone.back())) << alone.back();
    }
  }
  House house(script, std::move(tight));
  std::vector<std::unique_ptr<Reader>> readers;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    readers.push_back(std::make_unique<Reader>(house.engine().generate(request(seed))));
  }
  for (std::size_t i = 0; i < readers.size(); ++i) EXPECT_EQ(readers[i]->read().text(), alone[i]);
  EXPECT_GT(house.engine().stats().preemption_count, 0U);
}

// Knows the answers, and is wrong now and then: with other bytes, and with the end token.
class Knowing final : public Drafter {
 public:
  explicit Knowing(std::map<std::string, std::string> answers) : answers_(std::move(answers)) {}

  Status propose(std::span<const DraftWish> wishes,
                 std::vector<std::vector<Token>>& drafts) override {
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      const auto prompt_count = static_cast<std::size_t>(wishes[i].prompt_count);
      const auto history = wishes[i].history;
      const std::string& answer =
          answers_.at(text_of({history.begin(), history.begin() + wishes[i].prompt_count}));
      std::size_t place = history.size() - prompt_count;
      for (int j = 0; j < wishes[i].count_max; ++j, ++place) {
        const bool right = place < answer.size() && random_() % 8 != 0;
        drafts[i].push_back(right ? answer[place] : static_cast<Token>(200 + random_() % 57));
      }
    }
    return {};
  }

 private:
  std::map<std::string, std::string> answers_;
  std::mt19937 random_{3};
};

TEST(Constraint, SaysTheSameWithDraftsRightAndWrong) {
  const auto grammar =
      compile(GrammarKind::kJson,
              R"({"type":"array","items":{"enum":["one","two",3]},"minItems":4,"maxItems":4})");
  const auto request = [&](std::uint64_t seed) {
    GenerateRequest one = ask_for(*grammar, "seed " + std::to_string(seed));
    one.sampling.temperature = 1.0F;
    one.sampling.seed = seed;
    return one;
  };
  House plain(kChatter);
  std::map<std::string, std::string> answers;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const Answer answer = plain.answer(request(seed));
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    answers["seed " + std::to_string(seed)] = answer.text();
  }
  HouseOptions options;
  options.limits.draft_count_max = 5;
  options.limits.adaptive_drafts = false;
  options.drafter = std::make_unique<Knowing>(answers);
  House house(kChatter, std::move(options));
  std::vector<std::unique_ptr<Reader>> readers;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    readers.push_back(std::make_unique<Reader>(house.engine().generate(request(seed))));
  }
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const Answer answer = readers[seed]->read();
    EXPECT_EQ(answer.text(), answers["seed " + std::to_string(seed)]);
    EXPECT_EQ(answer.finish, FinishReason::kStop);
    EXPECT_TRUE(answer.status.ok()) << answer.status.message();
  }
  const EngineStats stats = house.engine().stats();
  EXPECT_GT(stats.accepted_token_count, stats.draft_token_count / 3);
  EXPECT_LT(stats.accepted_token_count, stats.draft_token_count);
  EXPECT_LT(stats.step_count, plain.engine().stats().step_count / 6);  // six together besides
}

TEST(Constraint, EndsOnlyTheSequenceForWhichNoTokenIsLeft) {
  House house(kChatter);
  GenerateRequest starved = ask_for(*compile(GrammarKind::kRegex, "abc"));
  // The grammar demands 'b', the bias forbids it.
  starved.sampling.logit_bias = {{'b', -std::numeric_limits<float>::infinity()}};
  Reader other(house.engine().generate(ask_for(*compile(GrammarKind::kRegex, "(ab){30}"))));
  const Answer answer = house.answer(std::move(starved));
  EXPECT_EQ(answer.text(), "a");
  EXPECT_EQ(answer.finish, FinishReason::kError);
  EXPECT_EQ(answer.status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(other.read().text().size(), 60U);
  EXPECT_EQ(house.engine().stats().corrupted_count, 0U);
}

TEST(Constraint, WinsOverMinimumOutputWhereTheGrammarIsOver) {
  House house(kChatter);
  GenerateRequest request = ask_for(*compile(GrammarKind::kRegex, "ab"));
  request.sampling.output_count_min = 10;
  EXPECT_EQ(house.answer(std::move(request)).text(), "ab");
  GenerateRequest longer = ask_for(*compile(GrammarKind::kRegex, "a*"));
  longer.sampling.output_count_min = 10;
  longer.output_count_max = 12;
  EXPECT_GE(house.answer(std::move(longer)).text().size(), 10U);
}

TEST(Constraint, HoldsBehindTheThoughtsOnly) {
  static const auto tokenizer = make_byte_tokenizer();
  House house("prompt *\n emit \"let me see</think>no\"\n");
  GenerateRequest request = ask("?");
  request.constraint = constrain_after(make_end_mark("</think>", *tokenizer),
                                       compile(GrammarKind::kRegex, "yes|perhaps")->begin());
  const std::string text = house.answer(std::move(request)).text();
  EXPECT_TRUE(text == "let me see</think>yes" || text == "let me see</think>perhaps") << text;
}

TEST(Constraint, StopsWhereItsReaderStopsIt) {
  House house("step_us 2000\n" + std::string(kChatter));  // or all is said before it is stopped
  GenerateRequest request = ask_for(*compile(GrammarKind::kRegex, "a{500}"));
  request.choice_count = 2;
  Reader reader(house.engine().generate(std::move(request)));
  reader.next();
  reader.stream().finish(0, 1);
  auto answers = reader.read_all(2);
  EXPECT_EQ(answers[0].finish, FinishReason::kStop);
  EXPECT_EQ(answers[0].usage.output_count, 1);
  EXPECT_GE(answers[1].tokens.size(), 400U);
}

// A constraint that fails, as one does whose masks take too much to compute.
class Broken final : public TokenConstraint {
 public:
  explicit Broken(int sound_count) : sound_count_(sound_count) {}
  Status fill_mask(std::span<std::uint32_t> bits) override {
    if (taken_count_ >= sound_count_) return invalid_argument("too much to compute");
    bits['x' / 32] |= std::uint32_t{1} << ('x' % 32);
    return {};
  }
  Status advance(Token /*token*/) override {
    ++taken_count_;
    return {};
  }
  Status rollback(int /*count*/) override { return {}; }
  Ending ending() override { return Ending::kAllowed; }
  std::unique_ptr<TokenConstraint> clone() const override {
    return std::make_unique<Broken>(*this);
  }

 private:
  int sound_count_;
  int taken_count_ = 0;
};

TEST(Constraint, TellsWhyItsMaskFailed) {
  House house(kChatter);
  GenerateRequest request = ask("?");
  request.constraint = std::make_shared<Broken>(3);
  const Answer answer = house.answer(std::move(request));
  EXPECT_EQ(answer.finish, FinishReason::kError);
  EXPECT_EQ(answer.status.message(), "too much to compute");
  EXPECT_EQ(answer.text(), "xxx");
}

TEST(MaskFiller, GivesEachSequenceItsOwnMaskHoweverManyHelpersThereAre) {
  for (const int helpers : {0, 1, 3}) {
    MaskFiller filler(257, helpers);
    std::vector<std::unique_ptr<TokenConstraint>> states;
    for (int i = 0; i < 20; ++i) {
      states.push_back(
          compile(GrammarKind::kRegex, std::string(1, static_cast<char>('a' + i)) + "{9}")
              ->begin());
    }
    const std::vector<Token> ends = {256};
    for (int round = 0; round < 50; ++round) {
      SamplingBatch batch;
      for (int i = 0; i < 20; ++i) {
        for (int copy = 0; copy <= i % 2; ++copy) {
          SamplingRow& row = batch.rows.emplace_back();
          row.constraint = i % 5 == 4 ? nullptr : states[static_cast<std::size_t>(i)].get();
          row.end_tokens = ends;
        }
      }
      filler.fill(batch);
      std::size_t r = 0;
      for (int i = 0; i < 20; ++i) {
        for (int copy = 0; copy <= i % 2; ++copy) {
          const SamplingRow& row = batch.rows[r++];
          if (row.constraint == nullptr) {
            EXPECT_TRUE(row.mask.empty());
            continue;
          }
          const auto byte = static_cast<std::uint32_t>('a' + i);
          std::vector<std::uint32_t> only(9, 0);
          only[byte / 32] = std::uint32_t{1} << (byte % 32);
          EXPECT_EQ(std::vector<std::uint32_t>(row.mask.begin(), row.mask.end()), only);
        }
      }
    }
  }
}

std::string possible(const SamplingRow& row) {
  std::string all;
  for (std::size_t token = 0; token < 257; ++token) {
    if (((row.mask[token / 32] >> (token % 32)) & 1U) == 0) continue;
    all += token == 256 ? '$' : static_cast<char>(token);
  }
  return all;
}

TEST(MaskFiller, FollowsTheDraftsAndComesBack) {
  MaskFiller filler(257, 0, std::chrono::hours(1));
  const auto grammar = compile(GrammarKind::kRegex, "ab[cd]e?");
  const auto state = grammar->begin();
  const std::vector<Token> ends = {256};
  const auto masks_along = [&](std::string_view drafts) {
    SamplingBatch batch;
    for (const Token draft : bytes(drafts)) {
      SamplingRow& row = batch.rows.emplace_back();
      row.draft = draft == '$' ? 256 : draft;
    }
    batch.rows.emplace_back();
    for (SamplingRow& row : batch.rows) {
      row.constraint = state.get();
      row.end_tokens = ends;
    }
    filler.fill(batch);
    std::vector<std::string> masks;
    for (const SamplingRow& row : batch.rows) {
      EXPECT_TRUE(row.mask_status.ok());
      masks.push_back(possible(row));
    }
    return masks;
  };
  using Masks = std::vector<std::string>;
  EXPECT_EQ(masks_along("abc"), (Masks{"a", "b", "cd", "e$"}));
  EXPECT_EQ(masks_along("abxe"), (Masks{"a", "b", "cd", "", ""}));
  EXPECT_EQ(masks_along("xbc"), (Masks{"a", "", "", ""}));
  EXPECT_EQ(masks_along("abc$"), (Masks{"a", "b", "cd", "e$", ""}));
  EXPECT_EQ(masks_along("abdex"), (Masks{"a", "b", "cd", "e$", "$", ""}));  // past the end
  EXPECT_EQ(masks_along(""), (Masks{"a"}));
  ASSERT_TRUE(state->advance('a').ok());
  EXPECT_EQ(masks_along("bd"), (Masks{"b", "cd", "e$"}));
}

TEST(MaskFiller, GoesNoFurtherAlongTheDraftsThanItsTimeAllows) {
  MaskFiller filler(257, 0, std::chrono::milliseconds(-1));
  const auto state = compile(GrammarKind::kRegex, "ab[cd]e?")->begin();
  SamplingBatch batch;
  batch.rows.resize(2);
  batch.rows[0].draft = 'a';
  for (SamplingRow& row : batch.rows) row.constraint = state.get();
  filler.fill(batch);
  EXPECT_EQ(possible(batch.rows[0]), "a");
  EXPECT_EQ(possible(batch.rows[1]), "");
}

}  // namespace
}  // namespace kun
