#include "server/request_deadlines.h"

#include <algorithm>

#include "server/translated_request.h"

namespace kun {
namespace {

constexpr double kMillisecondsMax = 86'400'000.0;  // a day

}  // namespace

Deadlines read_deadlines(FieldReader& reader, const ServerLimits& limits) {
  const auto read = [&](std::string_view name, std::string_view other_name,
                        std::chrono::milliseconds otherwise) {
    auto given = reader.number(name, 0.0, kMillisecondsMax);
    if (!other_name.empty()) {
      const auto other = reader.number(other_name, 0.0, kMillisecondsMax);
      if (!given) given = other;
    }
    if (!given) return static_cast<Microseconds>(otherwise.count()) * 1000;
    return static_cast<Microseconds>(*given * 1e3);
  };
  Deadlines deadlines;
  deadlines.first_token = read("ttft_slo_ms", "ttft_timeout_ms", limits.ttft_slo);
  deadlines.per_token = read("tpot_slo_ms", "", limits.tpot_slo);
  deadlines.total = read("timeout_ms", "ttlt_slo_ms", limits.timeout);
  return deadlines;
}

void copy_deadlines(FieldReader& reader, JsonView request, JsonWriter& json) {
  for (const std::string_view name :
       {"ttft_slo_ms", "ttft_timeout_ms", "tpot_slo_ms", "timeout_ms", "ttlt_slo_ms"}) {
    static_cast<void>(reader.number(name, 0.0, kMillisecondsMax));
    copy_member(json, request, name);
  }
}

Deadlines remaining(const Deadlines& deadlines, std::chrono::steady_clock::duration elapsed) {
  const Microseconds passed =
      std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count();
  const auto left = [passed](Microseconds duration) {
    return duration == 0 ? 0 : std::max<Microseconds>(1, duration - passed);
  };
  return {.first_token = left(deadlines.first_token),
          .per_token = deadlines.per_token,
          .total = left(deadlines.total)};
}

}  // namespace kun
