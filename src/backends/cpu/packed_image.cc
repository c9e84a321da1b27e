// The layout is rows, columns and the segments, as 64-bit numbers. The checksum is over the
// checksums of pieces, so that all threads can work on one image.
#include "backends/cpu/packed_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/checksum.h"

namespace kun {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;
constexpr std::size_t kSegmentFields = 5;
constexpr std::int64_t kSegmentsMax = 64;

using Fields = std::vector<std::int64_t>;

std::string layout_of(const CpuPackedMatrix& matrix) {
  Fields fields{matrix.rows, matrix.cols};
  for (const PackedSegment& segment : matrix.segments) {
    fields.insert(fields.end(), {static_cast<std::int64_t>(segment.format), segment.first_row,
                                 segment.row_count, segment.panel_bytes, segment.offset});
  }
  return {reinterpret_cast<const char*>(fields.data()), fields.size() * sizeof(std::int64_t)};
}

// body(piece index, bytes of the piece) for all pieces, then their checksum.
template <class Body>
std::uint64_t work_through(std::int64_t bytes, ThreadPool& pool, const Body& body) {
  const std::int64_t count = (bytes + kPieceBytes - 1) / kPieceBytes;
  std::vector<std::uint64_t> pieces(static_cast<std::size_t>(count));
  pool.run(count, [&](std::int64_t i, int) {
    const std::int64_t first = i * kPieceBytes;
    pieces[static_cast<std::size_t>(i)] =
        body(static_cast<std::size_t>(first),
             static_cast<std::size_t>(std::min(kPieceBytes, bytes - first)));
  });
  return checksum(std::as_bytes(std::span(pieces)));
}

// Rebuilds the segments; false when the numbers do not describe a matrix of this many bytes.
bool read_layout(const std::string& layout, std::int64_t bytes, CpuPackedMatrix& matrix) {
  Fields fields(layout.size() / sizeof(std::int64_t));
  if (fields.size() * sizeof(std::int64_t) != layout.size() || fields.size() < 2) return false;
  std::memcpy(fields.data(), layout.data(), layout.size());
  const std::size_t count = (fields.size() - 2) / kSegmentFields;
  if (count * kSegmentFields + 2 != fields.size() || count < 1 || count > kSegmentsMax)
    return false;
  matrix.cols = fields[1];
  if (matrix.cols < 1 || matrix.cols > (1 << 24)) return false;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t* field = &fields[2 + i * kSegmentFields];
    PackedSegment segment;
    if (field[0] < 0 || field[0] >= kPanelFormatCount) return false;
    segment.format = static_cast<PanelFormat>(field[0]);
    segment.first_row = field[1];
    segment.row_count = field[2];
    segment.panel_bytes = field[3];
    segment.offset = field[4];
    const bool follows = segment.first_row == matrix.rows && segment.offset == matrix.bytes &&
                         segment.row_count >= 1 && segment.row_count <= (1 << 28) &&
                         segment.panel_bytes == panel_bytes(segment.format, matrix.cols);
    if (!follows) return false;
    matrix.rows += segment.row_count;
    matrix.bytes += segment.panel_count() * segment.panel_bytes;
    matrix.segments.push_back(segment);
  }
  return matrix.rows == fields[0] && matrix.bytes == bytes;
}

}  // namespace

PackedImage image_of(const CpuPackedMatrix& matrix, ThreadPool& pool) {
  PackedImage image;
  image.layout = layout_of(matrix);
  image.data = {matrix.data.get(), static_cast<std::size_t>(matrix.bytes)};
  image.checksum = work_through(matrix.bytes, pool, [&](std::size_t first, std::size_t size) {
    return checksum(image.data.subspan(first, size));
  });
  return image;
}

Result<std::unique_ptr<PackedMatrix>> matrix_of(const PackedImage& image, ThreadPool& pool,
                                                Slabs& slabs) {
  auto matrix = std::make_unique<CpuPackedMatrix>();
  const auto bytes = static_cast<std::int64_t>(image.data.size());
  if (!read_layout(image.layout, bytes, *matrix)) {
    return data_loss("a packed matrix has a layout that does not fit its data");
  }
  matrix->data = slabs.take(bytes);
  if (matrix->data == nullptr) {
    return resource_exhausted(
        fmt::format("not enough memory for {} bytes of packed weights", bytes));
  }
  const std::uint64_t found = work_through(bytes, pool, [&](std::size_t first, std::size_t size) {
    std::byte* out = matrix->data.get() + first;
    std::memcpy(out, image.data.data() + first, size);
    return checksum({out, size});
  });
  if (found != image.checksum) return data_loss("a packed matrix does not match its checksum");
  return std::unique_ptr<PackedMatrix>(std::move(matrix));
}

// Raise it with any change to dequantizers, unpackers, plan_pack, role_of or the names and contents
// of WeightLoader's matrices: the fingerprint sees only what becomes of floats.
constexpr int kPackingVersion = 3;

std::string packing_name(const PackSettings& settings) {
  constexpr std::int64_t kRows = 40;
  constexpr std::int64_t kCols = 256;
  std::vector<float> values(static_cast<std::size_t>(kRows * kCols));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((i * 7919 + i * i % 977) % 2048) / 1024.0F - 1.0F;
  }
  WeightView view;
  view.rows = kRows;
  view.cols = kCols;
  view.data = std::as_bytes(std::span(values));
  ThreadPool pool(1);
  Slabs slabs;
  std::uint64_t fingerprint = 0;
  for (const WeightTarget target :
       {WeightTarget::kAuto, WeightTarget::kBF16, WeightTarget::kInt8, WeightTarget::kInt4}) {
    PackSettings each = settings;
    each.target = target;
    const auto packed = pack_matrix({&view, 1}, each, pool, slabs);
    if (!packed) continue;
    const auto& matrix = static_cast<const CpuPackedMatrix&>(**packed);
    fingerprint =
        checksum({matrix.data.get(), static_cast<std::size_t>(matrix.bytes)}, fingerprint);
  }
  return fmt::format("cpu packing {} panels {:016x} compute {} target {} bf16 {}", kPackingVersion,
                     fingerprint, static_cast<int>(settings.compute),
                     static_cast<int>(settings.target), settings.fast_bf16);
}

}  // namespace kun
