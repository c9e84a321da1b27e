// The engine under many threads, with little cache: what it says must not depend on batching,
// chunking, preemption, prefix hits or neighbours, and nobody may be left without an answer.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "house.h"

namespace kun {
namespace {

// Replies of different lengths, chosen by the prompt's last letter; `after` makes places exact.
std::string many_replies() {
  std::string script = "block 4\ncontext 400\nafter \">\"\n";
  for (char letter = 'a'; letter <= 'h'; ++letter) {
    script += std::string("prompt ends \"") + letter + ">\"\n";
    script += " repeat " + std::to_string(1 + (letter - 'a') * 4) + " \"" + letter + ". \"\n";
  }
  return script + "prompt *\n emit \"?\"\n";
}

std::string reply_to(char letter) {
  std::string reply;
  for (int i = 0; i < 1 + (letter - 'a') * 4; ++i) reply += std::string(1, letter) + ". ";
  return reply;
}

std::string prompt_for(std::mt19937& random, char letter) {
  std::string prompt;
  if (random() % 2 == 0) prompt = "a preamble that half of all requests have in common; ";
  prompt.append(random() % 60, static_cast<char>('A' + random() % 3));
  return prompt + letter + ">";
}

TEST(EngineUnderLoad, AnswersEveryClientCorrectlyWhileOthersComeStopAndLeave) {
  HouseOptions options;
  options.block_count = 90;  // about three long sequences: preemption is certain
  options.limits.tokens_per_step_max = 24;
  options.limits.tokens_per_step_min = 8;
  options.limits.sequences_running_max = 12;
  House house(many_replies(), std::move(options));

  std::atomic<int> wrong = 0;
  std::atomic<int> complete = 0;
  std::vector<std::thread> clients;
  for (unsigned client = 0; client < 10; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937 random(client);
      for (int round = 0; round < 25; ++round) {
        const char letter = static_cast<char>('a' + random() % 8);
        const std::string expected = reply_to(letter);
        const int choices = random() % 4 == 0 ? 2 : 1;
        GenerateRequest request = ask(prompt_for(random, letter));
        request.choice_count = choices;
        request.priority = static_cast<int>(random() % 2);
        Reader reader(house.engine().generate(std::move(request)));
        const auto fate = random() % 6;
        if (fate == 0) {  // hang up at once, or after the first tokens
          if (random() % 2 == 0) reader.next();
          reader.let_go();
          continue;
        }
        if (fate == 1) reader.stream().finish(0, 2);
        auto answers = reader.read_all(choices);
        for (auto& [choice, answer] : answers) {
          const bool stopped = fate == 1 && choice == 0;
          const bool right = answer.finish == FinishReason::kStop &&
                             (stopped ? answer.tokens.empty() : answer.text() == expected);
          if (!right) ++wrong;
        }
        ++complete;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(complete, 150);
  EXPECT_TRUE(house.wait_for(
      [](const EngineStats& s) { return s.running_count == 0 && s.waiting_count == 0; }));
  const EngineStats stats = house.engine().stats();
  EXPECT_EQ(stats.cache_usage, 0.0);
  EXPECT_GT(stats.preemption_count, 0U);
  EXPECT_GT(stats.prefix_hit_token_count, 0U);
  EXPECT_TRUE(house.engine().healthy());
}

TEST(EngineUnderLoad, FiveHundredRequestsAtOnceAreAllAnsweredOrRefused) {
  HouseOptions options;
  options.limits.sequences_running_max = 64;
  options.limits.sequences_waiting_max = 300;
  House house(many_replies(), std::move(options));
  std::vector<std::unique_ptr<Reader>> readers(500);
  std::vector<std::thread> clients;
  for (std::size_t client = 0; client < 10; ++client) {
    clients.emplace_back([&, client] {
      for (std::size_t i = client; i < readers.size(); i += 10) {
        const std::string prompt = std::string(1, static_cast<char>('a' + i % 8)) + ">";
        readers[i] = std::make_unique<Reader>(house.engine().generate(ask(prompt)));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  int answered = 0;
  int refused = 0;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    const Answer answer = readers[i]->read();
    if (answer.text() == reply_to(static_cast<char>('a' + i % 8))) ++answered;
    if (answer.status.code() == StatusCode::kResourceExhausted) ++refused;
  }
  EXPECT_EQ(answered + refused, 500);
  EXPECT_GE(answered, 300);
}

TEST(EngineUnderLoad, FaultsOfSomeRequestsDoNotReachTheSteadyOnes) {
  House house(
      "block 4\nafter \">\"\n"
      "prompt contains \"nan\"\n emit \"x\"\n nan\n"
      "prompt *\n repeat 30 \"steady \"\n");
  std::atomic<bool> done = false;
  std::thread saboteur([&] {
    while (!done) {
      const Answer answer = house.answer(ask("nan>"));
      EXPECT_EQ(answer.text(), "x");
      EXPECT_EQ(answer.finish, FinishReason::kError);
    }
  });
  std::string expected;
  for (int i = 0; i < 30; ++i) expected += "steady ";
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(house.answer(ask("work>")).text(), expected);
  }
  done = true;
  saboteur.join();
}

TEST(EngineUnderLoad, DestructionWhileClientsGenerateAnswersEverybody) {
  for (int round = 0; round < 10; ++round) {
    House house("step_us 300\n" + many_replies());
    std::vector<std::unique_ptr<Reader>> readers;
    for (int i = 0; i < 40; ++i) {
      readers.push_back(std::make_unique<Reader>(house.engine().generate(ask("h>"))));
    }
    if (round % 2 == 0) readers.back()->next();
    for (std::size_t i = 1; i < readers.size(); i += 4) readers[i]->let_go();
    house.tear_down();
    for (std::size_t i = 0; i < readers.size(); ++i) {
      if (i % 4 == 1) continue;
      const Answer answer = readers[i]->read();
      EXPECT_TRUE(answer.finish == FinishReason::kAbort || answer.finish == FinishReason::kStop);
    }
  }
}

TEST(EngineUnderLoad, SampledTextIsTheSameAloneAndInCompany) {
  // Temperature high enough that the script's peak loses now and then: the draws matter.
  HouseOptions options;
  options.limits.tokens_per_step_max = 16;
  House house("block 4\nafter \">\"\nprompt *\n repeat 40 \"abc\"\n", std::move(options));
  const auto hot = [](int i) {
    GenerateRequest request = ask("prompt>", 60);
    request.sampling.temperature = 12.0F;
    request.sampling.seed = static_cast<std::uint64_t>(i);
    request.end_tokens = {};
    return request;
  };
  std::vector<std::vector<Token>> alone;
  for (int i = 0; i < 12; ++i) alone.push_back(house.answer(hot(i)).tokens);
  EXPECT_NE(alone[0], alone[1]);

  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 12; ++i) {
    readers.push_back(std::make_unique<Reader>(house.engine().generate(hot(i))));
  }
  for (std::size_t i = 0; i < readers.size(); ++i) EXPECT_EQ(readers[i]->read().tokens, alone[i]);
}

}  // namespace
}  // namespace kun
