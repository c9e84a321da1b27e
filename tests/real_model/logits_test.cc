// The promise about numbers, at its source: the logits of a text have the same bits however it is
// cut into steps, whoever shares the steps, and on any number of threads; and the fast tables mean
// what the exact one means.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "executor/worker.h"
#include "house.h"

namespace kun {
namespace {

// Logits of every position of a text, as they come: [position][vocabulary].
class Rows {
 public:
  Rows(std::size_t positions, std::size_t width) : width_(width), data_(positions * width) {}

  void set(std::int32_t position, std::span<const float> logits) {
    ASSERT_EQ(logits.size(), width_);
    std::ranges::copy(logits, data_.begin() + static_cast<std::ptrdiff_t>(offset(position)));
  }
  std::span<const float> row(std::int32_t position) const {
    return std::span(data_).subspan(offset(position), width_);
  }
  bool same_bits(std::int32_t position, std::span<const float> logits) const {
    return logits.size() == width_ &&
           std::memcmp(row(position).data(), logits.data(), width_ * sizeof(float)) == 0;
  }

 private:
  std::size_t offset(std::int32_t position) const {
    return static_cast<std::size_t>(position) * width_;
  }

  std::size_t width_;
  std::vector<float> data_;
};

std::unique_ptr<Worker> text_worker(const House& house, std::int64_t token_count) {
  auto worker = make_text_worker(*house.bundle, house.device->ops(), token_count);
  CHECK(worker.has_value());
  return *std::move(worker);
}

Rows whole_text(const House& house, std::span<const Token> tokens) {
  Rows rows(tokens.size(), static_cast<std::size_t>(house.bundle->model->vocabulary_size()));
  const auto worker = text_worker(house, std::ssize(tokens));
  const Status status =
      worker->evaluate_text(tokens, static_cast<int>(tokens.size()),
                            [&](std::size_t, std::int32_t position, std::span<const float> logits) {
                              rows.set(position, logits);
                            });
  CHECK(status.ok());
  return rows;
}

std::vector<Token> play_tokens(const House& house, std::size_t count) {
  std::vector<Token> tokens = house.encode(play_text());
  CHECK(tokens.size() >= count);
  tokens.resize(count);
  return tokens;
}

struct Case {
  std::string kernels;
  ComputeType compute = ComputeType::kBFloat16;
  std::size_t length = 0;  // of the text in tokens
};

void PrintTo(const Case& value, std::ostream* out) {
  *out << value.kernels << ", " << value.length << " tokens";
}

// Long enough to cross the places where the fast tables split a context (every 256 positions).
constexpr std::size_t kFastLength = 270;
constexpr std::size_t kExactLength = 40;
constexpr std::size_t kReferenceLength = 7;  // 10 tokens a second

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& kernels : cpu_kernel_names()) {
    const bool slow = kernels == "reference";
    cases.push_back({kernels, ComputeType::kBFloat16, slow ? kReferenceLength : kFastLength});
    if (!slow) cases.push_back({kernels, ComputeType::kFloat32, kExactLength});
  }
  return cases;
}

class Logits : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(EveryTable, Logits, testing::ValuesIn(all_cases()), [](const auto& test) {
  return test.param.kernels + (test.param.compute == ComputeType::kFloat32 ? "_exact" : "_fast");
});

void expect_same_in_chunks(const House& house, std::span<const Token> tokens, const Rows& expected,
                           int chunk) {
  std::size_t row_count = 0;
  const auto worker = text_worker(house, std::ssize(tokens));
  const Status status = worker->evaluate_text(
      tokens, chunk, [&](std::size_t, std::int32_t position, std::span<const float> logits) {
        ++row_count;
        EXPECT_TRUE(expected.same_bits(position, logits))
            << "position " << position << " in chunks of " << chunk;
      });
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(row_count, tokens.size());
}

// The text beside others, which advance at other paces and are other texts: `paces[0]` is the
// text's own. Block tables interleave, so that no sequence lies in one piece.
void expect_same_in_company(const House& house, std::span<const Token> tokens, const Rows& expected,
                            const std::vector<int>& paces) {
  const int block_length = house.bundle->model->kv_layout().groups.front().tokens_per_block;
  const auto length = static_cast<int>(tokens.size());
  const auto sequences = static_cast<int>(paces.size());
  const int blocks = (length + block_length - 1) / block_length;
  const auto worker = text_worker(house, std::int64_t{blocks} * sequences * block_length);
  std::vector<int> done(paces.size(), 0);
  int row_count = 0;
  for (std::uint64_t step = 0; done.front() < length; ++step) {
    BatchPlan plan;
    plan.step = step;
    for (int s = sequences; s-- > 0;) {
      int& first = done[static_cast<std::size_t>(s)];
      const int count = std::min(paces[static_cast<std::size_t>(s)], length - first);
      if (count == 0) continue;
      PlanSlice& slice = plan.slices.emplace_back();
      slice.sequence = static_cast<SequenceId>(s);
      slice.first_position = first;
      for (int i = 0; i < count; ++i) {
        // Sequence s reads the text from its s-th token on, in a circle.
        slice.tokens.push_back(tokens[static_cast<std::size_t>((first + i + s) % length)]);
        slice.wanted.push_back(i);
      }
      slice.blocks.emplace_back();
      for (int b = 0; b < blocks; ++b) slice.blocks.front().push_back(b * sequences + s);
      first += count;
    }
    const Status status = worker->evaluate(
        plan, [&](std::size_t which, std::int32_t offset, std::span<const float> logits) {
          const PlanSlice& slice = plan.slices[which];
          if (slice.sequence != 0) return;
          ++row_count;
          EXPECT_TRUE(expected.same_bits(slice.first_position + offset, logits))
              << "position " << slice.first_position + offset << " in company";
        });
    ASSERT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(row_count, length);
}

TEST_P(Logits, HaveTheSameBitsHoweverTheTextIsComputed) {
  if (!has_model()) GTEST_SKIP() << kNoModel;
  const auto& [kernels, compute, length] = GetParam();
  const House one({.thread_count = 1, .kernels = kernels, .compute = compute});
  const std::vector<Token> tokens = play_tokens(one, length);
  const Rows expected = whole_text(one, tokens);

  const House two({.thread_count = 2, .kernels = kernels, .compute = compute});
  expect_same_in_chunks(two, tokens, expected, static_cast<int>(length));
  expect_same_in_chunks(two, tokens, expected, 1);
  expect_same_in_chunks(two, tokens, expected, static_cast<int>(length) / 5);
  expect_same_in_company(two, tokens, expected, {9, 1, 14});
  if (kernels != "reference") expect_same_in_company(one, tokens, expected, {13, 40, 1, 6, 5});
}

// -log softmax(logits)[token]
double surprise(std::span<const float> logits, Token token) {
  const double top{*std::ranges::max_element(logits)};
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(double{logit} - top);
  return top + std::log(sum) - double{logits[static_cast<std::size_t>(token)]};
}

std::ptrdiff_t likeliest(std::span<const float> logits) {
  return std::ranges::max_element(logits) - logits.begin();
}

double margin(std::span<const float> logits) {
  const std::ptrdiff_t top = likeliest(logits);
  const auto before = logits.first(static_cast<std::size_t>(top));
  const auto after = logits.subspan(static_cast<std::size_t>(top) + 1);
  float next = -INFINITY;
  if (!before.empty()) next = *std::ranges::max_element(before);
  if (!after.empty()) next = std::max(next, *std::ranges::max_element(after));
  return double{logits[static_cast<std::size_t>(top)]} - double{next};
}

// How a table reads a text: what it would say at each position, and how the next token surprises.
struct Reader {
  std::vector<std::ptrdiff_t> likeliest;
  std::vector<double> margins;  // of the likeliest logit over the next
  double surprise_sum = 0.0;

  double perplexity() const {
    return std::exp(surprise_sum / static_cast<double>(likeliest.size() - 1));
  }
};

Reader read(const std::string& kernels, ComputeType compute) {
  const House house({.thread_count = 2, .kernels = kernels, .compute = compute});
  const std::vector<Token> tokens = house.encode(play_text());
  const auto worker = text_worker(house, std::ssize(tokens));
  Reader reader;
  const Status status = worker->evaluate_text(
      tokens, 512, [&](std::size_t, std::int32_t position, std::span<const float> logits) {
        reader.likeliest.push_back(likeliest(logits));
        reader.margins.push_back(margin(logits));
        const auto next = static_cast<std::size_t>(position) + 1;
        if (next < tokens.size()) reader.surprise_sum += surprise(logits, tokens[next]);
      });
  CHECK(status.ok());
  return reader;
}

// The exact path dequantizes weights and rounds nothing, so its tables differ by the order of their
// sums alone.
TEST(Tables, AgreeWithTheReferenceOnTheExactPath) {
  if (!has_model()) GTEST_SKIP() << kNoModel;
  constexpr std::size_t kLength = 16;
  const House reference(
      {.thread_count = 2, .kernels = "reference", .compute = ComputeType::kFloat32});
  const std::vector<Token> tokens = play_tokens(reference, kLength);
  const Rows expected = whole_text(reference, tokens);
  for (const std::string& kernels : cpu_kernel_names()) {
    if (kernels == "reference") continue;
    const House house({.thread_count = 2, .kernels = kernels, .compute = ComputeType::kFloat32});
    const Rows got = whole_text(house, tokens);
    double difference = 0.0;
    for (std::int32_t p = 0; p < static_cast<std::int32_t>(kLength); ++p) {
      EXPECT_EQ(likeliest(got.row(p)), likeliest(expected.row(p))) << kernels << ' ' << p;
      for (std::size_t i = 0; i < got.row(p).size(); ++i) {
        const double here = std::fabs(double{got.row(p)[i]} - double{expected.row(p)[i]});
        difference = std::max(difference, here);
      }
    }
    RecordProperty("largest_difference_" + kernels, std::to_string(difference));
    EXPECT_LT(difference, 1e-3) << kernels;
  }
}

// The fast path rounds activations and the cache. On this text that may not cost more than half a
// percent of perplexity; the exact path stands for the reference, which would take minutes.
TEST(Tables, ReadATextOnTheFastPathAsOnTheExactOne) {
  if (!has_model()) GTEST_SKIP() << kNoModel;
  const Reader exact = read(cpu_kernel_names().back(), ComputeType::kFloat32);
  ASSERT_GT(exact.likeliest.size(), 500U);
  for (const std::string& kernels : cpu_kernel_names()) {
    if (kernels == "reference") continue;
    const Reader fast = read(kernels, ComputeType::kBFloat16);
    ASSERT_EQ(fast.likeliest.size(), exact.likeliest.size());
    int agreement = 0;
    double margin_lost = 0.0;
    for (std::size_t p = 0; p < exact.likeliest.size(); ++p) {
      const bool same = fast.likeliest[p] == exact.likeliest[p];
      agreement += same ? 1 : 0;
      if (!same) margin_lost = std::max(margin_lost, exact.margins[p]);
    }
    const double share = agreement / static_cast<double>(exact.likeliest.size());
    const double ratio = fast.perplexity() / exact.perplexity();
    std::printf(
        "%s: top-1 agreement %.4f, perplexity %.4f, exactly %.4f (%+.3f %%), margin lost %.3f\n",
        kernels.c_str(), share, fast.perplexity(), exact.perplexity(), 100.0 * (ratio - 1.0),
        margin_lost);
    EXPECT_GT(share, 0.93) << kernels;
    EXPECT_LT(margin_lost, 1.0) << kernels << " is wrong where the exact path is sure";
    EXPECT_NEAR(ratio, 1.0, 0.005) << kernels;
  }
}

}  // namespace
}  // namespace kun
