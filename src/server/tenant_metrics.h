// The figures of tenants for /metrics. Names of tenants are labels, so only so many of them are
// shown; the rest is summed up.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "plan/tenant_stats.h"

namespace kun {

// Lines in Prometheus' text format; `model` is the label model_name.
std::string tenant_metrics(std::span<const TenantStats> tenants, std::string_view model);

}  // namespace kun
