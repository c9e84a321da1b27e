// Ops for models that compute nothing: memory, and a progress count the test moves.
#pragma once

#include <atomic>
#include <cstdlib>
#include <memory>

#include "base/check.h"
#include "device/test_ops.h"

namespace kun {

class HostOps final : public TestOps {
 public:
  std::shared_ptr<std::byte> allocate(std::int64_t bytes) override {
    if (bytes > bytes_max) return nullptr;
    const auto size = (static_cast<std::size_t>(bytes) + 63) / 64 * 64;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, size == 0 ? 64 : size));
    CHECK(memory != nullptr);
    std::fill_n(memory, size, std::byte{0});
    return {memory, [](std::byte* pointer) { std::free(pointer); }};
  }
  std::uint64_t progress() const override { return tiles.load(); }

  std::atomic<std::uint64_t> tiles = 0;
  std::int64_t bytes_max = std::int64_t{1} << 30;
};

}  // namespace kun
