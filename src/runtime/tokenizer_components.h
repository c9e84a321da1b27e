// Translates the components of a tokenizer.json that are not its model: normalizer, pre-tokenizer,
// decoder and post-processor. What we cannot reproduce exactly is refused by its name.
#pragma once

#include "base/status.h"
#include "runtime/json_tree.h"
#include "text/tokenizer_spec.h"

namespace kun {

// Fills normalizers, splits, decoder, prefix and suffix of `spec`, and its model kind.
Status read_tokenizer_components(const JsonTree& root, TokenizerSpec& spec);

}  // namespace kun
