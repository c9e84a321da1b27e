#include "server/response_store.h"

#include <algorithm>
#include <utility>

namespace kun {
namespace {

constexpr std::size_t kShareOfMemory = 8;

std::size_t bytes_of(const StoredResponse& response) {
  return sizeof(StoredResponse) + response.id.size() + response.owner.size() +
         response.response.size() + response.messages.size();
}

}  // namespace

void ResponseStore::add(StoredResponse response) {
  const std::size_t bytes = bytes_of(response);
  const std::lock_guard lock(mutex_);
  if (by_id_.contains(response.id)) return;
  while (!entries_.empty() && full(bytes)) drop_oldest();
  if (full(bytes)) return;
  entries_.push_back(std::make_shared<const StoredResponse>(std::move(response)));
  by_id_.emplace(entries_.back()->id, std::prev(entries_.end()));
  bytes_ += bytes;
  if (memory_ != nullptr) memory_->adjust(MemoryUse::kResponses, 0, bytes);
}

bool ResponseStore::full(std::size_t more) const {
  std::size_t most = bytes_max_;
  if (memory_ != nullptr && memory_->limit() > 0) {
    most = std::min(most, memory_->limit() / kShareOfMemory);
  }
  return entries_.size() >= count_max_ || more > most || bytes_ > most - more;
}

void ResponseStore::drop_oldest() {
  const std::size_t bytes = bytes_of(*entries_.front());
  bytes_ -= bytes;
  if (memory_ != nullptr) memory_->release(MemoryUse::kResponses, bytes);
  by_id_.erase(entries_.front()->id);
  entries_.pop_front();
}

std::shared_ptr<const StoredResponse> ResponseStore::find(std::string_view id,
                                                          std::string_view owner) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(std::string(id));
  if (found == by_id_.end() || (*found->second)->owner != owner) return nullptr;
  return *found->second;
}

bool ResponseStore::erase(std::string_view id, std::string_view owner) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(std::string(id));
  if (found == by_id_.end() || (*found->second)->owner != owner) return false;
  const std::size_t bytes = bytes_of(**found->second);
  bytes_ -= bytes;
  if (memory_ != nullptr) memory_->release(MemoryUse::kResponses, bytes);
  entries_.erase(found->second);
  by_id_.erase(found);
  return true;
}

}  // namespace kun
