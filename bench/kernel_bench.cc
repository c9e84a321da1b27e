#include "kernel_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <optional>
#include <vector>

#include "backends/cpu/cpu_count.h"
#include "backends/cpu/cpu_device.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/random_weights.h"
#include "backends/cpu/select.h"
#include "backends/cpu/topology.h"
#include "roofline_svg.h"

namespace kun {
namespace {

constexpr std::int64_t kPeakRounds = 4000;  // a tenth of a millisecond
constexpr double kProbeSeconds = 0.05;

double now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// Seconds of the quickest call: on a shared machine the others tell of the neighbours.
double time_of(double budget, const std::function<void()>& body) {
  body();
  double best = 1e9;
  const double end = now() + budget;
  for (int calls = 0; calls < 3 || now() < end; ++calls) {
    const double start = now();
    body();
    best = std::min(best, now() - start);
  }
  return best;
}

// Operations or bytes a second.
struct Probes {
  double int8 = 0.0;
  double bf16 = 0.0;
  double f32 = 0.0;
  double memory = 0.0;
};

struct Row {
  std::string name;
  double seconds = 0.0;
  double bytes = 0.0;       // read from memory at least
  double operations = 0.0;  // of the kind `peak` counts
  double peak = 0.0;        // operations a second, probed beside this row
  double memory = 0.0;      // bytes a second, probed beside this row
};

class KernelBench {
 public:
  KernelBench(const CpuKernels& kernels, int thread_count, double budget, std::string filter)
      : kernels_(kernels),
        pool_(thread_count, pinning(thread_count)),
        ops_(kernels, ComputeType::kBFloat16, pool_),
        stream_bytes_(uncached_bytes()),
        stream_(allocate_zeroed(stream_bytes_)),
        budget_(budget),
        filter_(std::move(filter)) {
    std::fill_n(stream_.get(), stream_bytes_, std::byte{1});
  }

  void run();
  const std::vector<Row>& rows() const { return rows_; }
  const Probes& first() const { return first_; }
  const CpuKernels& kernels() const { return kernels_; }
  int thread_count() const { return pool_.thread_count(); }
  double fork_join_seconds() const { return fork_join_; }

 private:
  static std::vector<int> pinning(int thread_count) {
    std::vector<int> cpus = allowed_cpus();
    if (static_cast<int>(cpus.size()) != thread_count) cpus.clear();
    return cpus;
  }

  double probe_peak(std::int64_t (*peak)(std::int64_t));
  double probe_memory();
  double probe_fork_join();
  double peak_for(WeightFormat format);
  bool wants(const std::string& name) const { return name.find(filter_) != std::string::npos; }
  void add(Row row, WeightFormat format, const std::function<void()>& body);
  void linear(const std::string& model, const std::string& layer, WeightFormat format,
              std::int64_t rows, std::int64_t cols, std::span<const int> token_counts);
  void attention(const std::string& model, int heads, int kv_heads, int dim, int context,
                 int row_count, int users = 1, DType cache = DType::kBF16);

  const CpuKernels& kernels_;
  ThreadPool pool_;
  CpuOps ops_;
  // What is measured in memory rotates through as many bytes.
  const std::int64_t stream_bytes_;
  std::shared_ptr<std::byte> stream_;
  std::int64_t stream_at_ = 0;
  double budget_;
  std::string filter_;
  double fork_join_ = 0.0;
  Probes first_;
  std::vector<Row> rows_;
  std::atomic<std::uint64_t> sink_{0};  // keeps what the probes read alive
};

double KernelBench::probe_peak(std::int64_t (*peak)(std::int64_t)) {
  if (peak == nullptr) return 0.0;
  const std::int64_t tiles = pool_.thread_count() * 8;
  std::atomic<std::int64_t> operations{0};
  const double seconds = time_of(kProbeSeconds, [&] {
    operations = 0;
    pool_.run(tiles, [&](std::int64_t, int) { operations += peak(kPeakRounds); });
  });
  return static_cast<double>(operations.load()) / seconds;
}

// Reads as much at a time as a small model's layer, each time further on in a buffer that no cache
// holds. The quickest of short reads would be one that a cache helped: 4 MiB at a time gave up to a
// tenth more than the buffer as a whole.
double KernelBench::probe_memory() {
  constexpr std::int64_t kChunk = std::int64_t{1} << 18;
  constexpr std::int64_t kWindow = std::int64_t{32} << 20;
  const double seconds = time_of(kProbeSeconds, [&] {
    const std::byte* window = stream_.get() + stream_at_;
    stream_at_ += kWindow;
    if (stream_at_ + kWindow > stream_bytes_) stream_at_ = 0;
    pool_.run(kWindow / kChunk, [&](std::int64_t i, int) {
      sink_ += kernels_.read_bytes(window + i * kChunk, kChunk);
    });
  });
  return static_cast<double>(kWindow) / seconds;
}

// Seconds of a loop in which every thread takes part and does nothing: a tile ends when all have
// begun, or after a while, should there be fewer processors than threads.
double KernelBench::probe_fork_join() {
  constexpr int kLoops = 100;
  constexpr int kPatience = 100000;
  const int threads = pool_.thread_count();
  const auto loop = [&] {
    std::atomic<int> arrived{0};
    pool_.run(threads, [&](std::int64_t, int) {
      arrived.fetch_add(1);
      for (int i = 0; i < kPatience && arrived.load() < threads; ++i) continue;
    });
  };
  return time_of(0.1,
                 [&] {
                   for (int i = 0; i < kLoops; ++i) loop();
                 }) /
         kLoops;
}

double KernelBench::peak_for(WeightFormat format) {
  if (format == WeightFormat::kF32) return probe_peak(kernels_.peak_f32);
  if (format == WeightFormat::kBF16) {
    return probe_peak(kernels_.peak_bf16 != nullptr ? kernels_.peak_bf16 : kernels_.peak_f32);
  }
  return probe_peak(kernels_.peak_int8);
}

// The probes stand on both sides of the measurement.
void KernelBench::add(Row row, WeightFormat format, const std::function<void()>& body) {
  row.memory = probe_memory();
  row.peak = peak_for(format);
  row.seconds = time_of(budget_, body);
  row.memory = (row.memory + probe_memory()) / 2;
  row.peak = (row.peak + peak_for(format)) / 2;
  rows_.push_back(std::move(row));
}

void KernelBench::linear(const std::string& model, const std::string& layer, WeightFormat format,
                         std::int64_t rows, std::int64_t cols, std::span<const int> token_counts) {
  const auto row_name = [&](int tokens) {
    return fmt::format("{} {} {} {}x{} M={}", model, layer, name(format), rows, cols, tokens);
  };
  if (std::ranges::none_of(token_counts, [&](int tokens) { return wants(row_name(tokens)); })) {
    return;
  }
  const RandomWeights weights(format, rows, cols);
  std::vector<std::unique_ptr<PackedMatrix>> copies;
  for (std::int64_t bytes = 0; bytes < stream_bytes_;) {
    copies.push_back(*ops_.pack({&weights.view, 1}));
    bytes += copies.back()->bytes;
  }
  std::size_t next = 0;
  for (const int tokens : token_counts) {
    if (!wants(row_name(tokens))) continue;
    auto in = random_floats(tokens * cols, 1);
    std::vector<float> out(static_cast<std::size_t>(tokens * rows));
    const TensorView in_view(reinterpret_cast<std::byte*>(in.data()), DType::kF32, {tokens, cols});
    const TensorView out_view(reinterpret_cast<std::byte*>(out.data()), DType::kF32,
                              {tokens, rows});
    Row row;
    row.name = row_name(tokens);
    row.bytes = static_cast<double>(copies[0]->bytes);
    row.operations = 2.0 * static_cast<double>(rows * cols) * tokens;
    add(row, format, [&] {
      ops_.linear(in_view, *copies[next++ % copies.size()], {}, LinearOutput::kStore, out_view);
    });
  }
}

// `users` sequences of `context` positions each, whose blocks lie scattered over a pool; the last
// `row_count` positions of each are queries.
void KernelBench::attention(const std::string& model, int heads, int kv_heads, int dim, int context,
                            int row_count, int users, DType cache) {
  constexpr int kTokensPerBlock = 32;
  Row row;
  row.name = fmt::format("{} attention {}/{} d{} context {} M={}", model, heads, kv_heads, dim,
                         context, row_count);
  if (users > 1) row.name += fmt::format(" x{}", users);
  if (cache != DType::kBF16) row.name += fmt::format(" {}", kun::name(cache));
  if (!wants(row.name)) return;
  const int width = kv_heads * dim;
  const int blocks = users * context / kTokensPerBlock;
  CachePlane plane{nullptr, cache, CacheRole::kKeys, width, dim, kTokensPerBlock, blocks};
  const std::int64_t plane_bytes = blocks * plane.block_bytes();
  const std::int64_t layers = std::max<std::int64_t>(1, stream_bytes_ / (2 * plane_bytes));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(blocks));
  for (int b = 0; b < blocks; ++b) ids[static_cast<std::size_t>(b)] = b * 7 % blocks;
  const auto memory = ops_.allocate(layers * 2 * plane_bytes);
  // .01 as a float and in BF16, 60 as a code, in memory of its own: pages never written are all the
  // same zeros.
  std::fill_n(memory.get(), layers * 2 * plane_bytes, std::byte{0x3C});
  AttentionArguments arguments;
  arguments.keys = arguments.values = plane;
  arguments.values.role = CacheRole::kValues;
  const int rows = row_count * users;
  auto query = random_floats(std::int64_t{rows} * heads * dim, 1);
  std::vector<float> out(query.size());
  arguments.query =
      TensorView(reinterpret_cast<std::byte*>(query.data()), DType::kF32, {rows, heads, dim});
  arguments.out =
      TensorView(reinterpret_cast<std::byte*>(out.data()), DType::kF32, {rows, heads, dim});
  std::vector<AttentionSlice> slices;
  const auto blocks_per_user = static_cast<std::size_t>(blocks / users);
  for (int user = 0; user < users; ++user) {
    slices.push_back({user * row_count, row_count, context - row_count,
                      std::span(ids).subspan(static_cast<std::size_t>(user) * blocks_per_user,
                                             blocks_per_user)});
  }
  arguments.slices = slices;
  arguments.kv_heads = kv_heads;
  arguments.scale = 0.1F;
  row.bytes = static_cast<double>(2 * plane_bytes);
  const double positions = rows * (context - (row_count - 1) / 2.0);
  row.operations = 4.0 * heads * dim * positions;
  std::int64_t next = 0;
  add(row, cache == DType::kI8 ? WeightFormat::kQ8_0 : WeightFormat::kBF16, [&] {
    arguments.keys.data = memory.get() + next++ % layers * 2 * plane_bytes;
    arguments.values.data = arguments.keys.data + plane_bytes;
    ops_.attention(arguments);
  });
}

void KernelBench::run() {
  first_ = {probe_peak(kernels_.peak_int8), probe_peak(kernels_.peak_bf16),
            probe_peak(kernels_.peak_f32), probe_memory()};
  fork_join_ = probe_fork_join();
  constexpr int kFew[] = {1, 8, 256};
  constexpr int kMore[] = {1, 2, 4, 8, 16, 64, 512};
  linear("SmolLM2-135M", "qkv", WeightFormat::kQ4_1, 960, 576, kFew);
  linear("SmolLM2-135M", "gate_up", WeightFormat::kQ4_1, 3072, 576, kMore);
  linear("SmolLM2-135M", "down", WeightFormat::kQ4_1, 576, 1536, kFew);
  linear("SmolLM2-135M", "head", WeightFormat::kQ8_0, 49152, 576, std::span(kFew).first(2));
  attention("SmolLM2-135M", 9, 3, 64, 2048, 1);
  attention("SmolLM2-135M", 9, 3, 64, 704, 1, 16);
  attention("SmolLM2-135M", 9, 3, 64, 512, 512);
  linear("Qwen-1.5B", "qkv", WeightFormat::kQ4_0, 2048, 1536, kFew);
  linear("Qwen-1.5B", "gate_up", WeightFormat::kQ4_0, 17920, 1536, kMore);
  linear("Qwen-1.5B", "gate_up", WeightFormat::kQ8_0, 17920, 1536, kFew);
  linear("Qwen-1.5B", "gate_up", WeightFormat::kQ4_K, 17920, 1536, kFew);
  linear("Qwen-1.5B", "gate_up", WeightFormat::kBF16, 17920, 1536, kFew);
  linear("Qwen-1.5B", "down", WeightFormat::kQ4_0, 1536, 8960, kFew);
  linear("Qwen-1.5B", "down", WeightFormat::kQ6_K, 1536, 8960, kFew);
  attention("Qwen-1.5B", 12, 2, 128, 2048, 1);
  attention("Qwen-1.5B", 12, 2, 128, 8192, 1);
  attention("Qwen-1.5B", 12, 2, 128, 32768, 1);
  attention("Qwen-1.5B", 12, 2, 128, 1024, 1, 16);
  attention("Qwen-1.5B", 12, 2, 128, 512, 512);
  attention("Qwen-1.5B", 12, 2, 128, 8192, 512);
  attention("Qwen-1.5B", 12, 2, 128, 8192, 1, 1, DType::kI8);
  attention("Qwen-1.5B", 12, 2, 128, 32768, 1, 1, DType::kI8);
  attention("Qwen-1.5B", 12, 2, 128, 1024, 1, 16, DType::kI8);
  attention("Qwen-1.5B", 12, 2, 128, 8192, 512, 1, DType::kI8);
}

void write_table(const KernelBench& bench, std::ostream& out) {
  out << fmt::format(
      "cpu {}, {} threads: int8 {:.0f} Gop/s, bf16 {:.0f} Gop/s, f32 {:.0f} Gop/s, memory {:.1f} "
      "GB/s, fork-join {:.2f} us\n{:<48} {:>10} {:>9} {:>9} {:>7} {:>7}\n",
      bench.kernels().name, bench.thread_count(), bench.first().int8 / 1e9,
      bench.first().bf16 / 1e9, bench.first().f32 / 1e9, bench.first().memory / 1e9,
      bench.fork_join_seconds() * 1e6, "kernel", "time/us", "GB/s", "Gop/s", "memory", "peak");
  for (const Row& row : bench.rows()) {
    const std::string peak =
        row.peak > 0 ? fmt::format("{:.2f}", row.operations / row.seconds / row.peak) : "-";
    out << fmt::format("{:<48} {:>10.1f} {:>9.1f} {:>9.1f} {:>7.2f} {:>7}\n", row.name,
                       row.seconds * 1e6, row.bytes / row.seconds / 1e9,
                       row.operations / row.seconds / 1e9, row.bytes / row.seconds / row.memory,
                       peak);
  }
}

void write_json(const KernelBench& bench, std::ostream& out) {
  out << fmt::format(
      R"({{"kernels":"{}","threads":{},"int8_ops":{:.4g},"bf16_ops":{:.4g},"f32_ops":{:.4g},)"
      R"("memory_bytes":{:.4g},"fork_join_us":{:.3f},"rows":[)",
      bench.kernels().name, bench.thread_count(), bench.first().int8, bench.first().bf16,
      bench.first().f32, bench.first().memory, bench.fork_join_seconds() * 1e6);
  const char* separator = "";
  for (const Row& row : bench.rows()) {
    out << separator
        << fmt::format(R"({{"name":"{}","us":{:.2f},"bytes":{:.0f},"operations":{:.0f},)"
                       R"("memory_share":{:.3f},"peak_share":{}}})",
                       row.name, row.seconds * 1e6, row.bytes, row.operations,
                       row.bytes / row.seconds / row.memory,
                       row.peak > 0 ? fmt::format("{:.3f}", row.operations / row.seconds / row.peak)
                                    : "null");
    separator = ",";
  }
  out << "]}\n";
}

void write_svg(const KernelBench& bench, std::ostream& out) {
  std::vector<RooflinePoint> points;
  for (const Row& row : bench.rows()) {
    points.push_back({row.name, row.operations / row.bytes, row.operations / row.seconds});
  }
  const Probes& probes = bench.first();
  write_roofline_svg(
      fmt::format("Kun's {} kernels, {} threads", bench.kernels().name, bench.thread_count()),
      probes.memory, {{"int8", probes.int8}, {"bf16", probes.bf16}, {"f32", probes.f32}}, points,
      out);
}

}  // namespace

Status run_kernel_bench(const KernelBenchOptions& options, std::ostream& out) {
  const std::vector<const CpuKernels*> tables = supported_kernels();
  const CpuKernels* chosen = options.kernels.empty() ? tables.back() : nullptr;
  for (const CpuKernels* table : tables) {
    if (options.kernels == table->name) chosen = table;
  }
  if (chosen == nullptr || options.thread_count < 0 || options.thread_count > 1024) {
    return invalid_argument(fmt::format("cannot run kernels '{}' on {} threads", options.kernels,
                                        options.thread_count));
  }
  const int threads = options.thread_count > 0 ? options.thread_count : usable_cpu_count();
  std::ofstream picture;
  if (!options.svg.empty()) picture.open(options.svg);
  KernelBench bench(*chosen, threads, options.seconds_per_row, options.filter);
  if (picture) bench.run();
  if (!options.svg.empty()) write_svg(bench, picture);
  if (!picture.flush()) {
    return invalid_argument(fmt::format("cannot write the picture to {}", options.svg));
  }
  if (options.json) {
    write_json(bench, out);
  } else {
    write_table(bench, out);
  }
  return {};
}

}  // namespace kun
