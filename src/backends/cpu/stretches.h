// How a parallel loop's tiles are divided among threads: into stretches, one of which each thread
// begins with, the neighbours' after that. On a machine of several memory nodes a node's threads
// share the same part of every loop, so the rows of a matrix that a node's threads packed (and so
// placed in their memory) are the rows they multiply; only a node that has run out helps another.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"

namespace kun {

class Stretches {
 public:
  static constexpr int kCountMax = 16;

  // Threads are numbered node by node. Requires: thread_count is a multiple of node_count.
  explicit Stretches(int thread_count, int node_count = 1)
      : thread_count_(thread_count),
        node_count_(node_count),
        per_node_(std::max(1, std::min(thread_count, kCountMax) / node_count)) {
    CHECK(node_count >= 1 && thread_count % node_count == 0);
  }

  int count() const { return per_node_ * node_count_; }
  int node_count() const { return node_count_; }

  // The first tile of a stretch; that of count() is `tile_count`.
  std::int64_t begin(int stretch, std::int64_t tile_count) const {
    return tile_count * stretch / count();
  }

  // The `turn`-th stretch that a worker looks into, turn in [0, count()): its own, the others of
  // its node, then those of other nodes.
  int visited(int worker, int turn) const {
    const int home = static_cast<int>(std::int64_t{worker} * count() / thread_count_);
    const int node = (home / per_node_ + turn / per_node_) % node_count_;
    return node * per_node_ + (home + turn) % per_node_;
  }

 private:
  int thread_count_;
  int node_count_;
  int per_node_;
};

}  // namespace kun
