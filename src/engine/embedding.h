// From the pooled hidden state of a text (GenerateRequest::pooling, StreamEvent::pooled) to what
// clients call its embedding, and how alike two of them are.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kun {

// The first `dimensions` values (0: all of them), scaled to length 1 unless told otherwise. That
// order is the one of matryoshka embeddings: what was cut is a unit vector again.
std::vector<float> make_embedding(std::vector<float> pooled, std::size_t dimensions = 0,
                                  bool normalize = true);

// In [-1, 1]; 0 where one of them is all zeros. Requires: as many values, none infinite.
float cosine_similarity(std::span<const float> a, std::span<const float> b);

}  // namespace kun
