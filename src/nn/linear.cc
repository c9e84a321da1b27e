#include "nn/linear.h"

#include <vector>

namespace kun::nn {

Linear::Linear(std::initializer_list<Part> parts, std::int64_t cols)
    : ops_(&parts.begin()->load.ops()) {
  std::vector<MatrixPart> weights;
  std::vector<MatrixPart> biases;
  for (const Part& part : parts) {
    weights.push_back({part.load.weight(), part.rows});
    biases.push_back({part.load.bias(), part.rows});
  }
  WeightLoader& loader = parts.begin()->load.weights();
  weight_ = loader.matrix(weights, cols);
  bias_ = loader.optional_vectors(biases);
}

}  // namespace kun::nn
