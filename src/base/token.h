// A token id. Negative values never name a token.
#pragma once

#include <cstdint>

namespace kun {

using Token = std::int32_t;

}  // namespace kun
