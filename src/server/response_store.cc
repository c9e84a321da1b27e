#include "server/response_store.h"

#include <utility>

namespace kun {
namespace {

std::size_t bytes_of(const StoredResponse& response) {
  return sizeof(StoredResponse) + response.id.size() + response.owner.size() +
         response.response.size() + response.messages.size();
}

}  // namespace

void ResponseStore::add(StoredResponse response) {
  const std::size_t bytes = bytes_of(response);
  if (bytes > bytes_max_) return;
  const std::lock_guard lock(mutex_);
  if (by_id_.contains(response.id)) return;
  entries_.push_back(std::make_shared<const StoredResponse>(std::move(response)));
  by_id_.emplace(entries_.back()->id, std::prev(entries_.end()));
  bytes_ += bytes;
  while (entries_.size() > count_max_ || bytes_ > bytes_max_) drop_oldest();
}

void ResponseStore::drop_oldest() {
  bytes_ -= bytes_of(*entries_.front());
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
  bytes_ -= bytes_of(**found->second);
  entries_.erase(found->second);
  by_id_.erase(found);
  return true;
}

}  // namespace kun
