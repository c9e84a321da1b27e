#include "server/tenant_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

namespace kun {
namespace {

constexpr std::size_t kKeysMax = 10'000;
constexpr std::size_t kTenantBytesMax = 64;
constexpr double kWeightMin = 0.001;
constexpr double kWeightMax = 1'000'000.0;

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  line = line.substr(0, line.find('#'));
  constexpr std::string_view kBlanks = " \t\r";
  for (std::size_t at = 0; (at = line.find_first_not_of(kBlanks, at)) != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

// Names are labels of metrics, so they are of few kinds of characters.
bool is_name(std::string_view text) {
  return text.size() <= kTenantBytesMax && std::ranges::all_of(text, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.' || c == '@' || c == '/';
         });
}

Result<ApiKey> parse_line(const std::vector<std::string_view>& words, int number) {
  ApiKey key;
  key.key = words[0];
  key.tenant = words.size() > 1 ? std::string(words[1]) : fmt::format("key{}", number);
  if (words.size() > 3) {
    return invalid_argument(
        fmt::format("line {} has more than a key, a tenant and a weight", number));
  }
  if (!is_name(key.tenant)) {
    return invalid_argument(fmt::format(
        "line {}: a tenant's name has at most {} of the characters a-z A-Z 0-9 - _ . @ /", number,
        kTenantBytesMax));
  }
  if (words.size() < 3) return key;
  const char* end = words[2].data() + words[2].size();
  const auto parsed = std::from_chars(words[2].data(), end, key.weight);
  if (parsed.ec != std::errc() || parsed.ptr != end ||
      !(key.weight >= kWeightMin && key.weight <= kWeightMax)) {
    return invalid_argument(fmt::format("line {}: the weight must be a number from {} to {}",
                                        number, kWeightMin, kWeightMax));
  }
  return key;
}

}  // namespace

Result<std::vector<ApiKey>> parse_api_keys(std::string_view text) {
  std::vector<ApiKey> keys;
  std::map<std::string, double> weights;
  std::set<std::string_view> seen;
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (words.empty()) continue;
    if (keys.size() == kKeysMax) {
      return invalid_argument(fmt::format("there are more than {} keys", kKeysMax));
    }
    if (!seen.insert(words[0]).second) {
      return invalid_argument(fmt::format("line {} has a key that was there before", number));
    }
    ASSIGN_OR_RETURN(ApiKey key, parse_line(words, number));
    // A weight said once holds for all keys of the tenant.
    const bool has_weight = words.size() == 3;
    const auto [known, is_new] = weights.try_emplace(key.tenant, has_weight ? key.weight : -1.0);
    if (has_weight && !is_new && known->second > 0.0 && known->second != key.weight) {
      return invalid_argument(
          fmt::format("line {} gives tenant {} another weight than before", number, key.tenant));
    }
    if (has_weight) known->second = key.weight;
    keys.push_back(std::move(key));
  }
  for (ApiKey& key : keys) {
    const double weight = weights.at(key.tenant);
    if (weight > 0.0) key.weight = weight;
  }
  return keys;
}

std::vector<ApiKey> unnamed_api_keys(const std::vector<std::string>& keys) {
  std::vector<ApiKey> named;
  for (const std::string& key : keys) {
    named.push_back({key, fmt::format("key{}", named.size() + 1), 1.0});
  }
  return named;
}

}  // namespace kun
