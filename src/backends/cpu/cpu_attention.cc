// Attention as the device runs it: hands the arguments to the run of the chosen kernel table.
#include "backends/cpu/attention_run.h"
#include "backends/cpu/cpu_ops.h"

namespace kun {

void CpuOps::attention(const AttentionArguments& arguments) {
  AttentionRun run(kernels_, arguments);
  run.plan(run.is_small() ? 1 : pool_.thread_count(), &attention_items_);
  if (run.partial_floats() > 0) {
    run.set_partials(partial_scratch_.get_array<float>(run.partial_floats()));
  }
  if (run.is_small()) {
    for (const AttentionItem& item : attention_items_) run.run(item, nullptr, worker_scratch_[0]);
    return;
  }
  const std::int64_t count = std::ssize(attention_items_);
  pool_.run(count, [&](std::int64_t i, int worker) {
    const AttentionItem* item = attention_items_.data() + i;
    run.run(*item, i + 1 < count ? item + 1 : nullptr,
            worker_scratch_[static_cast<std::size_t>(worker)]);
  });
  if (run.partial_floats() > 0) run.combine(attention_items_, worker_scratch_[0]);
}

}  // namespace kun
