// The blocks of one sequence in one KV group, in the order of its tokens. It owns a share of each
// block, and keeps plain ids so that a plan takes them with one copy. Where the group has a window,
// the first places are empty (kNoBlock) once their blocks lie before it.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kv/block_pool.h"

namespace kun {

// Releases its last block first. The pool reuses what was released longest ago, so the head of a
// prompt, which other prompts are likelier to share, outlives the tail.
class BlockTable {
 public:
  // `pool` must outlive the table.
  explicit BlockTable(KvBlockPool& pool) : pool_(&pool) {}
  BlockTable(BlockTable&& other) noexcept
      : pool_(other.pool_),
        ids_(std::exchange(other.ids_, {})),
        empty_count_(std::exchange(other.empty_count_, 0)) {}
  BlockTable& operator=(BlockTable&&) = delete;
  ~BlockTable() { clear(); }

  // Another table of the same blocks.
  BlockTable share() const {
    BlockTable table(*pool_);
    table.ids_ = ids_;
    table.empty_count_ = empty_count_;
    for (int i = empty_count_; i < size(); ++i) pool_->hold(id(i));
    return table;
  }

  // Requires: `block` is of this table's pool.
  void append(BlockRef block) { ids_.push_back(take(block)); }

  // Puts `block` in the place of another and returns that one.
  BlockRef replace(int index, BlockRef block) {
    const BlockId old = std::exchange(ids_[static_cast<std::size_t>(index)], take(block));
    return {pool_, old};
  }

  void clear() { truncate(0); }

  // Keeps the first `count` blocks, or all if there are fewer.
  void truncate(int count) {
    for (; size() > count; ids_.pop_back()) {
      if (ids_.back() != kNoBlock) pool_->release(ids_.back());
    }
    empty_count_ = std::min(empty_count_, size());
  }

  // Leaves the first `count` places without a block. Requires: the table is empty.
  void skip(int count) {
    CHECK(ids_.empty());
    ids_.assign(static_cast<std::size_t>(count), kNoBlock);
    empty_count_ = count;
  }

  // Gives back the blocks before place `count`, or all if there are fewer.
  void release_before(int count) {
    for (; empty_count_ < std::min(count, size()); ++empty_count_) {
      pool_->release(std::exchange(ids_[static_cast<std::size_t>(empty_count_)], kNoBlock));
    }
  }

  int size() const { return static_cast<int>(ids_.size()); }  // places, the empty ones included
  int empty_count() const { return empty_count_; }            // places before the first block
  int held_count() const { return size() - empty_count_; }
  BlockId id(int index) const { return ids_[static_cast<std::size_t>(index)]; }
  std::span<const BlockId> ids() const { return ids_; }
  KvBlockPool& pool() const { return *pool_; }

 private:
  BlockId take(BlockRef& block) const {
    CHECK(block.pool_ == pool_);
    block.pool_ = nullptr;
    return block.id_;
  }

  KvBlockPool* pool_;
  std::vector<BlockId> ids_;
  int empty_count_ = 0;
};

}  // namespace kun
