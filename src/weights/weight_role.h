// Which matrices --weight-format may make small, by their names.
#pragma once

#include <string_view>

#include "tensor/weight_view.h"

namespace kun {

// Routers stay exact: the order of experts hangs on small differences, and they are small. Output
// layers (and embeddings tied to them) stay at 8 bits at least: their error goes into every logit.
constexpr WeightRole role_of(std::string_view name) {
  for (const std::string_view router : {".gate.weight", ".weights_proj.weight"}) {
    if (name.ends_with(router)) return WeightRole::kExact;
  }
  for (const std::string_view output :
       {"lm_head.weight", "embed_tokens.weight", "shared_head.head.weight"}) {
    if (name.ends_with(output)) return WeightRole::kSensitive;
  }
  return name == "head.weight" || name == "embed.weight" ? WeightRole::kSensitive
                                                         : WeightRole::kOrdinary;
}

}  // namespace kun
