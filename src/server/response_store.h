// The answers of /v1/responses that clients may come back to, in memory and bounded: the oldest go
// when there are too many or they are too large together.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/memory_ledger.h"

namespace kun {

struct StoredResponse {
  std::string id;
  std::string owner;     // whoever asks must show the same Authorization header
  std::string response;  // JSON, as it was answered
  std::string messages;  // JSON array of the conversation up to and with the answer
};

// Thread-safe.
class ResponseStore {
 public:
  // What is kept is counted in `memory`, where it may have an eighth of the limit; null: nowhere.
  ResponseStore(std::size_t count_max, std::size_t bytes_max,
                std::shared_ptr<MemoryLedger> memory = nullptr)
      : count_max_(count_max), bytes_max_(bytes_max), memory_(std::move(memory)) {}

  void add(StoredResponse response);
  // Null when there is none of that owner.
  std::shared_ptr<const StoredResponse> find(std::string_view id, std::string_view owner) const;
  bool erase(std::string_view id, std::string_view owner);

 private:
  using Entry = std::shared_ptr<const StoredResponse>;

  void drop_oldest();
  bool full(std::size_t more) const;

  const std::size_t count_max_;
  const std::size_t bytes_max_;
  const std::shared_ptr<MemoryLedger> memory_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // oldest first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_id_;
  std::size_t bytes_ = 0;
};

}  // namespace kun
