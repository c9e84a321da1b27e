// Weights as a device holds them.
#pragma once

#include <cstdint>

namespace kun {

// A weight matrix in the layout one backend likes best. Opaque to everyone else.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;

  std::int64_t rows = 0;   // output features, all fused views together
  std::int64_t cols = 0;   // input features
  std::int64_t bytes = 0;  // what a step reads when it uses the whole matrix
};

}  // namespace kun
