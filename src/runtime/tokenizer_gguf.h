// Reads the tokenizer keys of a GGUF file into a TokenizerSpec. GGUF keeps vocabulary and merges,
// but of the splits only a name, so the splits of the names we know are written down here.
#pragma once

#include "base/status.h"
#include "checkpoint/gguf_file.h"
#include "text/tokenizer_spec.h"

namespace kun {

// kUnimplemented names a model or a pre-tokenizer that is not known.
Result<TokenizerSpec> read_tokenizer_gguf(const GgufFile& file);

}  // namespace kun
