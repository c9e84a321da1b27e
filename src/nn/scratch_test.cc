// Scratch memory: what is taken does not overlap, and a step of a known size allocates nothing.
#include "nn/scratch.h"

#include <gtest/gtest.h>

#include <cstring>

#include "device/test_ops.h"

namespace kun::nn {
namespace {

// A device that only counts allocations.
class CountingOps final : public TestOps {
 public:
  std::shared_ptr<std::byte> allocate(std::int64_t bytes) override {
    ++count;
    void* data = std::aligned_alloc(64, static_cast<std::size_t>((bytes + 63) / 64 * 64));
    return {static_cast<std::byte*>(data), [](std::byte* p) { std::free(p); }};
  }
  std::uint64_t progress() const override { return 0; }

  int count = 0;
};

// What a model does: something for the whole step, then layer by layer. Every piece is filled and
// must still hold its value when the layer ends.
void run_step(Scratch& scratch, std::int64_t tokens, int layers) {
  scratch.reset();
  const TensorView residual = scratch.take({tokens, 100});
  std::memset(residual.data, 1, static_cast<std::size_t>(tokens * 400));
  for (int layer = 0; layer < layers; ++layer) {
    const std::int64_t mark = scratch.mark();
    std::vector<TensorView> taken;
    for (const std::int64_t width : {100, 300, 77, 1000, 5}) {
      taken.push_back(scratch.take({tokens, width}));
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(taken.back().data) % 64, 0U);
      std::memset(taken.back().data, static_cast<int>(taken.size()) + 1,
                  static_cast<std::size_t>(tokens * width * 4));
    }
    for (std::size_t i = 0; i < taken.size(); ++i) {
      const TensorView& view = taken[i];
      const auto last = static_cast<std::size_t>(view.rows() * view.cols() * 4 - 1);
      ASSERT_EQ(view.data[0], static_cast<std::byte>(i + 2));
      ASSERT_EQ(view.data[last], static_cast<std::byte>(i + 2));
    }
    scratch.rewind(mark);
  }
  ASSERT_EQ(residual.data[tokens * 400 - 1], std::byte{1});
}

TEST(Scratch, AllocatesTheMemoryOfALayerOnceForAllLayers) {
  CountingOps one_layer;
  Scratch first(one_layer);
  run_step(first, 7, 1);
  CountingOps many_layers;
  Scratch second(many_layers);
  run_step(second, 7, 40);
  EXPECT_EQ(many_layers.count, one_layer.count);
}

TEST(Scratch, AllocatesNothingInStepsNoLargerThanEarlierOnes) {
  CountingOps ops;
  Scratch scratch(ops);
  run_step(scratch, 64, 3);
  run_step(scratch, 64, 3);
  const int count = ops.count;
  for (const std::int64_t tokens : {64, 1, 63, 17, 64}) run_step(scratch, tokens, 3);
  EXPECT_EQ(ops.count, count);
}

TEST(Scratch, GrowsFromSmallStepsToLargeOnes) {
  CountingOps ops;
  Scratch scratch(ops);
  for (std::int64_t tokens = 1; tokens < 300; tokens = tokens * 3 / 2 + 1) {
    run_step(scratch, tokens, 2);
  }
}

}  // namespace
}  // namespace kun::nn
