// The factories of all architectures; each is defined in the file of its name.
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

}  // namespace kun
