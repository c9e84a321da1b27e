#include "models/script_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "models/script_file.h"

namespace kun {
namespace {

// What a cache entry holds. The position is there to catch entries that are not what they should.
struct Entry {
  Token token;
  std::int32_t position;
};
constexpr int kEntryWidth = 2;

// The scripted token's logit over zeros elsewhere: certain at any sane temperature, and still moved
// by a logit bias of 100.
constexpr float kPeak = 50.0F;

// A hidden row: the scripted token, and 1 where the logits shall be NaN.
constexpr int kHiddenSize = 2;

class ScriptModel final : public Model {
 public:
  explicit ScriptModel(Script script) : script_(std::move(script)) {
    layout_.groups.push_back(
        {script_.tokens_per_block, {0}, {{"token and position", DType::kI32, kEntryWidth}}});
  }

  int vocabulary_size() const override { return script_.vocabulary_size; }
  int hidden_size() const override { return kHiddenSize; }
  int context_length_max() const override { return script_.context_length; }
  const KvLayout& kv_layout() const override { return layout_; }

  Status forward(const ForwardBatch& batch, const KvStorage& cache,
                 TensorView hidden) const override;
  Status logits(ConstTensorView hidden, TensorView out) const override;

 private:
  Status store(const ForwardBatch& batch, const CachePlane& plane) const;
  Status read(const AttentionSlice& slice, std::int32_t length, const CachePlane& plane,
              std::vector<Token>& text) const;

  Script script_;
  KvLayout layout_;
};

Status ScriptModel::store(const ForwardBatch& batch, const CachePlane& plane) const {
  const std::vector<std::int32_t>& slots = batch.groups[0].slots;
  CHECK(slots.size() == batch.tokens.size() && batch.positions.size() == batch.tokens.size());
  for (std::size_t row = 0; row < batch.tokens.size(); ++row) {
    const Entry entry{batch.tokens[row], batch.positions[row]};
    if (entry.token < 0 || entry.token >= script_.vocabulary_size) {
      return invalid_argument(fmt::format("token {} is not in the script's vocabulary of {}",
                                          entry.token, script_.vocabulary_size));
    }
    CHECK(slots[row] >= 0 && slots[row] < plane.block_count * plane.tokens_per_block);
    std::memcpy(plane.data + slots[row] * std::int64_t{sizeof(Entry)}, &entry, sizeof(Entry));
  }
  return {};
}

// The text of a slice's sequence up to `length` tokens.
Status ScriptModel::read(const AttentionSlice& slice, std::int32_t length, const CachePlane& plane,
                         std::vector<Token>& text) const {
  text.clear();
  for (std::int32_t position = 0; position < length; ++position) {
    const auto block = static_cast<std::size_t>(position / plane.tokens_per_block);
    CHECK(block < slice.blocks.size());
    const std::int64_t slot = std::int64_t{slice.blocks[block]} * plane.tokens_per_block +
                              position % plane.tokens_per_block;
    CHECK(slot >= 0 && slot < plane.block_count * plane.tokens_per_block);
    Entry entry{};
    std::memcpy(&entry, plane.data + slot * std::int64_t{sizeof(Entry)}, sizeof(Entry));
    if (entry.position != position) {
      return internal_error(fmt::format("the cache entry of position {} holds position {}",
                                        position, entry.position));
    }
    text.push_back(entry.token);
  }
  return {};
}

Status ScriptModel::forward(const ForwardBatch& batch, const KvStorage& cache,
                            TensorView hidden) const {
  CHECK(batch.groups.size() == 1 && cache.planes.size() == 1 && cache.planes[0].size() == 1);
  const CachePlane& plane = cache.planes[0][0];
  CHECK(plane.block_bytes() == std::int64_t{plane.tokens_per_block} * std::int64_t{sizeof(Entry)});
  RETURN_IF_ERROR(store(batch, plane));

  int stall_ms = 0;
  Status failure;
  std::vector<Token> text;
  const std::vector<AttentionSlice>& slices = batch.groups[0].slices;
  for (std::size_t i = 0; i < batch.wanted_rows.size(); ++i) {
    const std::int32_t row = batch.wanted_rows[i];
    const auto behind = std::ranges::upper_bound(slices, row, {}, &AttentionSlice::first_row);
    CHECK(behind != slices.begin());
    const AttentionSlice& slice = *(behind - 1);
    const std::int32_t length = slice.first_position + (row - slice.first_row) + 1;
    RETURN_IF_ERROR(read(slice, length, plane, text));
    const Script::Place place = script_.locate(text);
    float* out = hidden.row<float>(static_cast<std::int64_t>(i));
    out[0] = static_cast<float>(script_.end_token);
    out[1] = 0.0F;
    if (place.rule == nullptr) continue;
    out[0] = static_cast<float>(place.rule->reply[place.given]);
    const auto event = place.rule->events.find(place.given);
    if (event == place.rule->events.end()) continue;
    stall_ms = std::max(stall_ms, event->second.stall_ms);
    if (event->second.nan) out[1] = 1.0F;
    if (event->second.fails && failure.ok()) failure = internal_error(event->second.error);
  }
  const auto pace = std::chrono::microseconds(script_.step_us) +
                    std::chrono::microseconds(script_.token_us) * std::ssize(batch.tokens);
  if (const auto time = pace + std::chrono::milliseconds(stall_ms); time.count() > 0) {
    std::this_thread::sleep_for(time);
  }
  return failure;
}

Status ScriptModel::logits(ConstTensorView hidden, TensorView out) const {
  CHECK(hidden.cols() == kHiddenSize && out.cols() == script_.vocabulary_size);
  for (std::int64_t row = 0; row < hidden.rows(); ++row) {
    const float* state = hidden.row<float>(row);
    float* values = out.row<float>(row);
    const bool nan = state[1] != 0.0F;
    std::fill_n(values, out.cols(), nan ? std::numeric_limits<float>::quiet_NaN() : 0.0F);
    if (!nan) values[static_cast<std::ptrdiff_t>(state[0])] = kPeak;
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<const Model>> load_script_model(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(Script script, read_script(path));
  return std::unique_ptr<const Model>(std::make_unique<ScriptModel>(std::move(script)));
}

Result<std::unique_ptr<const Model>> make_script_model(std::string_view text) {
  ASSIGN_OR_RETURN(Script script, parse_script(text));
  return std::unique_ptr<const Model>(std::make_unique<ScriptModel>(std::move(script)));
}

}  // namespace kun
