#include "server/tenant_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace kun {
namespace {

// Tenants with lines of their own; the others together are "other".
constexpr std::size_t kShownMax = 50;

void add(TenantStats& sum, const TenantStats& more) {
  sum.running_count += more.running_count;
  sum.waiting_count += more.waiting_count;
  sum.prompt_token_count += more.prompt_token_count;
  sum.cached_token_count += more.cached_token_count;
  sum.output_token_count += more.output_token_count;
  sum.preemption_count += more.preemption_count;
  sum.refused_count += more.refused_count;
}

std::uint64_t served(const TenantStats& tenant) {
  return tenant.prompt_token_count + tenant.output_token_count;
}

// Those who were served most.
std::vector<TenantStats> shown(std::span<const TenantStats> tenants) {
  std::vector<TenantStats> all(tenants.begin(), tenants.end());
  if (all.size() <= kShownMax) return all;
  std::ranges::stable_sort(
      all, [](const TenantStats& a, const TenantStats& b) { return served(a) > served(b); });
  TenantStats other;
  other.name = "other";
  other.weight = 0.0;
  for (std::size_t i = kShownMax; i < all.size(); ++i) {
    add(other, all[i]);
    other.weight += all[i].weight;
  }
  all.resize(kShownMax);
  all.push_back(other);
  return all;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

std::string tenant_metrics(std::span<const TenantStats> tenants, std::string_view model) {
  const std::vector<TenantStats> all = shown(tenants);
  std::string text;
  const auto family = [&](std::string_view name, std::string_view type, std::string_view help,
                          auto value) {
    text +=
        fmt::format("# HELP kun:tenant_{} {}\n# TYPE kun:tenant_{} {}\n", name, help, name, type);
    for (const TenantStats& tenant : all) {
      text +=
          fmt::format("kun:tenant_{}{{model_name=\"{}\",tenant=\"{}\"}} {}\n", name, escaped(model),
                      tenant.name.empty() ? "default" : escaped(tenant.name), value(tenant));
    }
  };
  if (all.empty()) return text;
  family("weight", "gauge", "Share of the service, against other tenants' weights.",
         [](const TenantStats& t) { return t.weight; });
  family("requests_running", "gauge", "Sequences that run.",
         [](const TenantStats& t) { return t.running_count; });
  family("requests_waiting", "gauge", "Sequences that wait.",
         [](const TenantStats& t) { return t.waiting_count; });
  family("prompt_tokens_total", "counter", "Prompt tokens computed for the first time.",
         [](const TenantStats& t) { return t.prompt_token_count; });
  family("cached_tokens_total", "counter", "Prompt tokens found in the cache.",
         [](const TenantStats& t) { return t.cached_token_count; });
  family("generation_tokens_total", "counter", "Tokens generated.",
         [](const TenantStats& t) { return t.output_token_count; });
  family("preemptions_total", "counter", "Times that its sequences were sent away.",
         [](const TenantStats& t) { return t.preemption_count; });
  family("refused_total", "counter",
         "Requests refused by a full line or by deadlines that could not be kept.",
         [](const TenantStats& t) { return t.refused_count; });
  return text;
}

}  // namespace kun
