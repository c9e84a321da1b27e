#include "scheduler/tenants.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kun {
namespace {

// Beyond this many, tenants that have nothing to do and are owed nothing are forgotten.
constexpr std::size_t kTenantsMax = 1024;

// Weights below it would make one token cost more than a double can count.
constexpr double kWeightMin = 1e-6;

}  // namespace

Tenant& TenantBook::arrive(std::string_view name, double weight) {
  auto entry = tenants_.find(name);
  if (entry == tenants_.end()) {
    if (tenants_.size() >= kTenantsMax) forget_idle();
    entry = tenants_.try_emplace(std::string(name)).first;
    entry->second.name = name;
    entry->second.number = tenant_count_++;
  }
  Tenant& tenant = entry->second;
  tenant.weight = std::max(weight, kWeightMin);
  if (!tenant.waiting.empty()) return tenant;
  // Those who are served now have moved time on as well, though nobody was admitted for long.
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [other_name, other] : tenants_) {
    if (&other != &tenant && other.sequence_count > 0) least = std::min(least, other.virtual_time);
  }
  if (least < std::numeric_limits<double>::infinity()) {
    virtual_time_ = std::max(virtual_time_, least);
  }
  tenant.virtual_time = std::max(tenant.virtual_time, virtual_time_ - credit_ / tenant.weight);
  if (tenant.sequence_count == 0) tenant.may_displace = true;
  return tenant;
}

void TenantBook::put(SequencePtr sequence) {
  Tenant& tenant = *sequence->request->tenant;
  const SequenceKey key = sequence->key();
  tenant.waiting.emplace(key, std::move(sequence));
  ++waiting_count_;
}

TenantBook::SequencePtr TenantBook::take_first(Tenant& tenant) {
  SequencePtr first = std::move(tenant.waiting.begin()->second);
  tenant.waiting.erase(tenant.waiting.begin());
  --waiting_count_;
  return first;
}

Tenant* TenantBook::next() {
  Tenant* first = nullptr;
  if (waiting_count_ == 0) return first;
  for (auto& [name, tenant] : tenants_) {
    if (tenant.waiting.empty()) continue;
    if (first == nullptr || goes_before(tenant, *first)) first = &tenant;
  }
  return first;
}

bool TenantBook::has_room(const Tenant& tenant, int most) const {
  if (waiting_count_ < most) return true;
  double weights = 0.0;
  for (const auto& [name, other] : tenants_) {
    if (&other == &tenant || !other.waiting.empty()) weights += other.weight;
  }
  const double share = std::floor(most * tenant.weight / weights);
  return tenant.waiting.size() + 1 <= static_cast<std::size_t>(share) && waiting_count_ < 2 * most;
}

void TenantBook::sweep(const std::function<bool(SequencePtr&)>& gone) {
  for (auto& [name, tenant] : tenants_) {
    for (auto entry = tenant.waiting.begin(); entry != tenant.waiting.end();) {
      if (!gone(entry->second)) {
        ++entry;
        continue;
      }
      entry = tenant.waiting.erase(entry);
      --waiting_count_;
    }
  }
}

void TenantBook::admitted(Tenant& tenant, double start) {
  virtual_time_ = std::max(virtual_time_, start);
  tenant.may_displace = false;
}

// A single request of somebody who had nothing running does not wait for others to end. Beyond
// that, being sent away must be rare: a tenant first has to fall behind by its credit and by what
// is lost, so that less than half of all work is ever done twice.
bool TenantBook::may_displace(const Tenant& mine, const Tenant& theirs, double loss) const {
  const double behind = theirs.virtual_time - mine.virtual_time;
  if (mine.may_displace && behind >= 0.0) return true;
  return behind * mine.weight >= credit_ + loss;
}

void TenantBook::forget_idle() {
  std::erase_if(tenants_, [this](const auto& entry) {
    const Tenant& tenant = entry.second;
    return tenant.sequence_count == 0 && tenant.debt_count == 0 &&
           tenant.virtual_time <= virtual_time_ - credit_ / tenant.weight;
  });
}

}  // namespace kun
