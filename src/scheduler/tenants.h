// Who the waiting sequences belong to, and whose turn it is. Service is fair between tenants by
// tokens: each has a virtual time, which grows by the tokens it is served divided by its weight,
// and who is furthest behind goes first. This is start-time fair queueing (Goyal, Vin and Cheng,
// 1996) with the tokens of Sheng et al., "Fairness in Serving Large Language Models" (2024).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/sequence.h"

namespace kun {

// What tokens count: one found in the cache costs a tenth of one that is computed.
inline constexpr double kCachedTokenCost = 0.1;

struct Tenant {
  std::string name;
  double weight = 1.0;
  double virtual_time = 0.0;  // tokens / weight
  std::uint64_t number = 0;   // breaks ties
  std::map<SequenceKey, std::unique_ptr<Sequence>> waiting;
  int sequence_count = 0;  // waiting and running
  int debt_count = 0;      // others' sequences that wait because of it
  // Came back from having nothing: its next admission may send others away at once.
  bool may_displace = false;

  // Counters.
  std::uint64_t prompt_token_count = 0;  // computed, not again after preemption
  std::uint64_t cached_token_count = 0;
  std::uint64_t output_token_count = 0;
  std::uint64_t preemption_count = 0;
  std::uint64_t refused_count = 0;  // and those dropped because of their deadlines
};

// A tenant's place in line: who is behind in virtual time is served first.
inline bool goes_before(const Tenant& a, const Tenant& b) {
  if (a.virtual_time != b.virtual_time) return a.virtual_time < b.virtual_time;
  return a.number < b.number;
}

// Tenants live as long as they have sequences, and as long as they are owed or owe something. The
// scheduler owns it.
class TenantBook {
 public:
  using SequencePtr = std::unique_ptr<Sequence>;

  // `credit`: tokens that a tenant may be behind after it had nothing to do, and that it must be
  // behind before another tenant's running sequences are sent away for it.
  explicit TenantBook(double credit) : credit_(credit) {}

  // The tenant of that name, for a request that comes in now. One that had nothing waiting keeps
  // no more than the credit of what it did not use.
  Tenant& arrive(std::string_view name, double weight);

  // The waiting line.
  void put(SequencePtr sequence);
  SequencePtr take_first(Tenant& tenant);
  int waiting_count() const { return waiting_count_; }  // sequences
  Tenant* next();                                       // whose turn it is; null: nobody waits
  // Whether a line of `most` has room for one more of `tenant`. One that is short of its share is
  // let in even when others have filled the line, which so grows to twice its length at most.
  bool has_room(const Tenant& tenant, int most) const;
  // Takes out those of which `gone` says so.
  void sweep(const std::function<bool(SequencePtr&)>& gone);

  // `tenant` has been served `token_count` tokens.
  static void charge(Tenant& tenant, double token_count) {
    tenant.virtual_time += token_count / tenant.weight;
  }

  // A sequence of `tenant`, whose virtual time was `start`, begins to run.
  void admitted(Tenant& tenant, double start);

  // Whether a waiting sequence of `mine` may send away running ones of `theirs`, when that costs
  // `loss` tokens to compute again.
  bool may_displace(const Tenant& mine, const Tenant& theirs, double loss) const;

  // In the order of their names.
  const std::map<std::string, Tenant, std::less<>>& all() const { return tenants_; }

 private:
  void forget_idle();

  const double credit_;
  std::map<std::string, Tenant, std::less<>> tenants_;
  double virtual_time_ = 0.0;  // of the system: the latest start of service
  std::uint64_t tenant_count_ = 0;
  int waiting_count_ = 0;
};

}  // namespace kun
