// KvBlockPool hands out block ids and counts who holds them. Ids only: the bytes live with the
// worker, so this class needs no device and no lock (the engine thread owns it). A released block
// keeps its label and its bytes until someone needs the room: the free list is the prefix cache's
// LRU, eviction is allocation, and no separate eviction pass exists.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/token.h"
#include "kv/sip_hash.h"
#include "plan/batch_plan.h"

namespace kun {

class KvBlockPool;

// Shared ownership of one block: copy to share, destroy to release.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(const BlockRef& other);
  BlockRef(BlockRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(other.id_) {}
  BlockRef& operator=(BlockRef other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~BlockRef();

  BlockId id() const { return id_; }

 private:
  friend class KvBlockPool;
  friend class BlockTable;
  BlockRef(KvBlockPool* pool, BlockId id) : pool_(pool), id_(id) {}

  KvBlockPool* pool_ = nullptr;
  BlockId id_ = -1;
};

// Names what a block contains: a keyed hash of its tokens and of all tokens before them.
using BlockLabel = Hash128;

// What a labelled block claims to hold. Labels find it, the rest is compared.
struct BlockContent {
  BlockLabel label;
  BlockLabel parent;              // label of the block before, or of the salt
  std::span<const Token> tokens;  // tokens_per_block of them
};

class KvBlockPool {
 public:
  KvBlockPool(int block_count, int tokens_per_block);
  ~KvBlockPool();
  KvBlockPool(const KvBlockPool&) = delete;
  KvBlockPool& operator=(const KvBlockPool&) = delete;

  // A block without a label when one is free, else the one released longest ago, its old label
  // forgotten; nullopt when all are held.
  std::optional<BlockRef> allocate();

  // The block that holds `content`, in use or released; nullopt when there is none.
  std::optional<BlockRef> find(const BlockContent& content);

  // Lets later find() calls discover the block. The first block to claim a label keeps it, and a
  // block keeps its first label. Requires: somebody holds `id`.
  void set_label(BlockId id, const BlockContent& content);

  // Takes the label away: nobody may find what the block holds.
  void forget(BlockId id);
  void forget(const BlockLabel& label);  // from the block that has it, if one does

  bool labelled(BlockId id) const { return at(id).labelled; }
  int holder_count(BlockId id) const { return at(id).holder_count; }
  int free_count() const { return free_count_; }
  int block_count() const { return static_cast<int>(blocks_.size()); }
  int tokens_per_block() const { return tokens_per_block_; }

 private:
  friend class BlockRef;
  friend class BlockTable;

  // Released blocks form a doubly linked list through their own entries, oldest first.
  struct Block {
    int holder_count = 0;
    BlockId older = -1;
    BlockId newer = -1;
    bool labelled = false;
    BlockLabel label;
    BlockLabel parent;
  };

  // Labels come out of a keyed hash: half of one is as good a hash as any.
  struct LabelHash {
    std::size_t operator()(const BlockLabel& label) const {
      return static_cast<std::size_t>(label.low);
    }
  };

  Block& at(BlockId id) { return blocks_[checked(id)]; }
  const Block& at(BlockId id) const { return blocks_[checked(id)]; }
  std::size_t checked(BlockId id) const {
    CHECK(id >= 0 && id < block_count());
    return static_cast<std::size_t>(id);
  }
  std::span<Token> tokens_of(BlockId id);
  void hold(BlockId id);
  void release(BlockId id);
  void link_newest(BlockId id);
  void link_oldest(BlockId id);
  void unlink(BlockId id);

  int tokens_per_block_ = 0;
  std::vector<Block> blocks_;
  std::vector<Token> tokens_;  // [block][token] of labelled blocks
  std::unordered_map<BlockLabel, BlockId, LabelHash> by_label_;
  BlockId oldest_ = -1;
  BlockId newest_ = -1;
  int free_count_ = 0;
};

}  // namespace kun
