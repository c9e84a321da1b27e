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
    Scratch::level(worker_scratch_);
    return;
  }
  const std::int64_t count = std::ssize(attention_items_);
  pool_.run(count, [&](std::int64_t i, int worker) {
    const AttentionItem* item = attention_items_.data() + i;
    run.run(*item, i + 1 < count ? item + 1 : nullptr,
            worker_scratch_[static_cast<std::size_t>(worker)]);
  });
  Scratch::level(worker_scratch_);
  if (run.partial_floats() == 0) return;
  split_rows_.clear();
  for (std::int64_t i = 0; i < count; ++i) {
    const AttentionItem& item = attention_items_[static_cast<std::size_t>(i)];
    if (item.partial >= 0 && item.split_begin == 0) split_rows_.push_back(i);
  }
  pool_.run(std::ssize(split_rows_), [&](std::int64_t i, int worker) {
    const std::int64_t first = split_rows_[static_cast<std::size_t>(i)];
    run.combine(std::span(attention_items_).subspan(static_cast<std::size_t>(first)),
                worker_scratch_[static_cast<std::size_t>(worker)]);
  });
}

}  // namespace kun
