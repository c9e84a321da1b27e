// The factories of all architectures, and what their caches would hold; each is defined in the file
// of its name.
#pragma once

#include "models/registry.h"

namespace kun {

Result<std::unique_ptr<const Model>> load_llama(const Checkpoint& checkpoint, Ops& ops,
                                                const ModelOptions& options);
Result<std::unique_ptr<const Model>> load_qwen2(const Checkpoint& checkpoint, Ops& ops,
                                                const ModelOptions& options);
Result<std::unique_ptr<const Model>> load_qwen3(const Checkpoint& checkpoint, Ops& ops,
                                                const ModelOptions& options);
Result<std::unique_ptr<const Model>> load_deepseek(const Checkpoint& checkpoint, Ops& ops,
                                                   const ModelOptions& options);
Result<std::unique_ptr<const Model>> load_deepseek_v2(const Checkpoint& checkpoint, Ops& ops,
                                                      const ModelOptions& options);
Result<std::unique_ptr<const Model>> load_deepseek_v3(const Checkpoint& checkpoint, Ops& ops,
                                                      const ModelOptions& options);
Result<std::unique_ptr<const Model>> load_deepseek_v32(const Checkpoint& checkpoint, Ops& ops,
                                                       const ModelOptions& options);
Result<std::unique_ptr<const Model>> load_deepseek_v4(const Checkpoint& checkpoint, Ops& ops,
                                                      const ModelOptions& options);

Result<KvLayout> dense_decoder_layout(const Checkpoint& checkpoint, DType cache_dtype);
Result<KvLayout> latent_decoder_layout(const Checkpoint& checkpoint, DType cache_dtype);
Result<KvLayout> deepseek_v32_layout(const Checkpoint& checkpoint, DType cache_dtype);
Result<KvLayout> deepseek_v4_layout(const Checkpoint& checkpoint, DType cache_dtype);

}  // namespace kun
