// The free list is linked through the entries themselves, so that every operation is constant time
// and none but the label index allocates.
#include "kv/block_pool.h"

#include <algorithm>

namespace kun {

BlockRef::BlockRef(const BlockRef& other) : pool_(other.pool_), id_(other.id_) {
  if (pool_ != nullptr) pool_->hold(id_);
}

BlockRef::~BlockRef() {
  if (pool_ != nullptr) pool_->release(id_);
}

KvBlockPool::KvBlockPool(int block_count, int tokens_per_block)
    : tokens_per_block_(tokens_per_block) {
  CHECK(block_count > 0 && tokens_per_block > 0);
  blocks_.resize(static_cast<std::size_t>(block_count));
  tokens_.resize(blocks_.size() * static_cast<std::size_t>(tokens_per_block));
  for (BlockId id = 0; id < block_count; ++id) link_newest(id);
}

KvBlockPool::~KvBlockPool() {
  CHECK(free_count_ == block_count());
}

std::optional<BlockRef> KvBlockPool::allocate() {
  if (free_count_ == 0) return std::nullopt;
  const BlockId id = oldest_;
  forget(id);
  hold(id);
  return BlockRef(this, id);
}

std::optional<BlockRef> KvBlockPool::find(const BlockContent& content) {
  const auto entry = by_label_.find(content.label);
  if (entry == by_label_.end()) return std::nullopt;
  const BlockId id = entry->second;
  if (at(id).parent != content.parent) return std::nullopt;
  if (!std::ranges::equal(tokens_of(id), content.tokens)) return std::nullopt;
  hold(id);
  return BlockRef(this, id);
}

void KvBlockPool::set_label(BlockId id, const BlockContent& content) {
  CHECK(at(id).holder_count > 0);
  CHECK(std::ssize(content.tokens) == tokens_per_block_);
  if (at(id).labelled || !by_label_.emplace(content.label, id).second) return;
  at(id).labelled = true;
  at(id).label = content.label;
  at(id).parent = content.parent;
  std::ranges::copy(content.tokens, tokens_of(id).begin());
}

void KvBlockPool::forget(BlockId id) {
  if (!std::exchange(at(id).labelled, false)) return;
  by_label_.erase(at(id).label);
  if (at(id).holder_count > 0) return;
  unlink(id);
  link_oldest(id);
}

void KvBlockPool::forget(const BlockLabel& label) {
  const auto entry = by_label_.find(label);
  if (entry != by_label_.end()) forget(entry->second);
}

std::span<Token> KvBlockPool::tokens_of(BlockId id) {
  const auto count = static_cast<std::size_t>(tokens_per_block_);
  return std::span(tokens_).subspan(checked(id) * count, count);
}

void KvBlockPool::hold(BlockId id) {
  if (at(id).holder_count++ == 0) unlink(id);
}

// Nobody can ever find a block without a label, so it goes first.
void KvBlockPool::release(BlockId id) {
  CHECK(at(id).holder_count > 0);
  if (--at(id).holder_count > 0) return;
  if (at(id).labelled) {
    link_newest(id);
  } else {
    link_oldest(id);
  }
}

void KvBlockPool::link_newest(BlockId id) {
  at(id).older = newest_;
  at(id).newer = -1;
  (newest_ == -1 ? oldest_ : at(newest_).newer) = id;
  newest_ = id;
  ++free_count_;
}

void KvBlockPool::link_oldest(BlockId id) {
  at(id).older = -1;
  at(id).newer = oldest_;
  (oldest_ == -1 ? newest_ : at(oldest_).older) = id;
  oldest_ = id;
  ++free_count_;
}

void KvBlockPool::unlink(BlockId id) {
  const BlockId older = at(id).older;
  const BlockId newer = at(id).newer;
  (older == -1 ? oldest_ : at(older).newer) = newer;
  (newer == -1 ? newest_ : at(newer).older) = older;
  --free_count_;
}

}  // namespace kun
