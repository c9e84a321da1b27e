#include "engine/token_stream.h"

#include <gtest/gtest.h>

namespace kun {
namespace {

StreamEvent tokens(std::vector<Token> ids, std::uint32_t choice = 0) {
  StreamEvent event;
  event.choice = choice;
  for (const Token id : ids) event.tokens.push_back({id, 0.0F, {}});
  event.usage.output_count = static_cast<int>(ids.size());
  return event;
}

StreamEvent end(FinishReason reason, int output_count, std::uint32_t choice = 0) {
  StreamEvent event;
  event.choice = choice;
  event.finish = reason;
  event.usage.output_count = output_count;
  return event;
}

std::vector<Token> ids(const StreamEvent& event) {
  std::vector<Token> result;
  for (const SampledToken& token : event.tokens) result.push_back(token.token);
  return result;
}

TEST(TokenStream, GivesNothingWhenThereIsNothing) {
  TokenStream stream;
  EXPECT_FALSE(stream.poll().has_value());
}

TEST(TokenStream, MergesWhatWasNotReadSoThatItStaysBounded) {
  TokenStream stream;
  for (Token token = 0; token < 100; ++token) {
    stream.push(tokens({token}, 0));
    stream.push(tokens({token + 1000}, 1));
  }
  StreamEvent last = end(FinishReason::kStop, 100);
  last.end_token = 99;
  stream.push(std::move(last));
  const auto first = stream.poll();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->choice, 0U);
  EXPECT_EQ(first->tokens.size(), 100U);
  EXPECT_EQ(ids(*first).back(), 99);
  EXPECT_EQ(first->finish, FinishReason::kStop);
  EXPECT_EQ(first->end_token, Token{99});
  EXPECT_EQ(first->usage.output_count, 100);
  const auto second = stream.poll();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->choice, 1U);
  EXPECT_EQ(second->tokens.size(), 100U);
  EXPECT_FALSE(second->finish.has_value());
  EXPECT_FALSE(stream.poll().has_value());
}

TEST(TokenStream, CallsReadyOnlyWhenEventsArriveWhileNoneWereWaiting) {
  TokenStream stream;
  int calls = 0;
  stream.set_ready_callback([&calls] { ++calls; });
  EXPECT_EQ(calls, 0);
  stream.push(tokens({1}));
  stream.push(tokens({2}));
  EXPECT_EQ(calls, 1);
  stream.poll();
  stream.push(tokens({3}));
  EXPECT_EQ(calls, 2);
  stream.set_ready_callback([&calls] { calls += 10; });
  EXPECT_EQ(calls, 12) << "an event is waiting already";
  stream.set_ready_callback(nullptr);
  stream.poll();
  stream.push(tokens({4}));
  EXPECT_EQ(calls, 12);
}

TEST(TokenStream, HandsStopRequestsToTheWriterOnce) {
  TokenStream stream;
  stream.finish(2, 5);
  stream.finish(2, 7);  // it is stopped already
  stream.finish(0, 1);
  const auto requests = stream.take_stop_requests();
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0].choice, 2U);
  EXPECT_EQ(requests[0].kept_count, 5);
  EXPECT_TRUE(stream.take_stop_requests().empty());
}

TEST(TokenStream, DropsWhatRanPastTheStop) {
  TokenStream stream;
  stream.push(tokens({1, 2, 3}));
  stream.push(tokens({7}, 1));
  stream.finish(0, 2);
  stream.push(tokens({4}));
  StreamEvent natural = end(FinishReason::kLength, 4);  // the engine had not heard of it yet
  natural.tokens = tokens({5}).tokens;
  stream.push(std::move(natural));
  const auto other = stream.poll();
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->choice, 1U);
  EXPECT_EQ(ids(*other), std::vector<Token>{7});
  const auto last = stream.poll();
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->choice, 0U);
  EXPECT_TRUE(last->tokens.empty());
  EXPECT_EQ(last->finish, FinishReason::kStop);
  EXPECT_EQ(last->usage.output_count, 2);
  EXPECT_FALSE(stream.poll().has_value());
}

TEST(TokenStream, GivesALongEventInPortions) {
  TokenStream stream;
  stream.push(tokens({1, 2, 3}));
  StreamEvent last = end(FinishReason::kLength, 5);
  last.tokens = tokens({4, 5}).tokens;
  stream.push(std::move(last));
  std::vector<Token> all;
  for (int portion = 0; portion < 3; ++portion) {
    const auto event = stream.poll(2);
    ASSERT_TRUE(event.has_value());
    EXPECT_LE(event->tokens.size(), 2U);
    EXPECT_EQ(event->finish.has_value(), portion == 2) << "the end comes with the last portion";
    for (const Token token : ids(*event)) all.push_back(token);
  }
  EXPECT_EQ(all, (std::vector<Token>{1, 2, 3, 4, 5}));
  EXPECT_FALSE(stream.poll(2).has_value());
}

TEST(TokenStream, AStopFoundInTheLastUnreadEventReplacesItsEnd) {
  TokenStream stream;
  StreamEvent natural = end(FinishReason::kStop, 6);
  natural.tokens = tokens({5, 6}).tokens;
  natural.end_token = 6;
  stream.push(std::move(natural));
  stream.finish(0, 3);
  const auto last = stream.poll();
  ASSERT_TRUE(last.has_value());
  EXPECT_TRUE(last->tokens.empty());
  EXPECT_FALSE(last->end_token.has_value());
  EXPECT_EQ(last->finish, FinishReason::kStop);
  EXPECT_EQ(last->usage.output_count, 3);
}

}  // namespace
}  // namespace kun
