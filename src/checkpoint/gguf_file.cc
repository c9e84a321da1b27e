// The parser is one pass over the bytes with a cursor that refuses to step outside of them. Vectors
// grow with what was read, never with what a header announces, so a file cannot make us allocate
// more than a small multiple of its own size.
#include "checkpoint/gguf_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "checkpoint/gguf_types.h"
#include "checkpoint/show_name.h"

namespace kun {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read as it lies in memory");

constexpr std::uint64_t kKeyBytesMax = 65535;      // docs/gguf.md
constexpr std::uint64_t kTensorNameBytesMax = 64;  // docs/gguf.md
constexpr std::uint64_t kAlignmentDefault = 32;
constexpr int kArrayDepthMax = 4;

// The least bytes an entry takes: what a count in the header is held against.
constexpr std::uint64_t kValueBytesMin = 8 + 1 + 4 + 1;       // key length, key, type, value
constexpr std::uint64_t kTensorBytesMin = 8 + 1 + 4 + 4 + 8;  // name, rank, type, offset

// Bytes of one element; 0 for strings, arrays and unknown types.
std::uint64_t fixed_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    case GgufType::kString:
    case GgufType::kArray: break;
  }
  return 0;
}

bool is_known(std::uint32_t type) {
  return type <= static_cast<std::uint32_t>(GgufType::kF64);
}

template <class T>
T load(std::span<const std::byte> bytes, std::uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

// What has not been read yet. Every take either succeeds or leaves the cursor as it was.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return bytes_.size() - position_; }

  template <class T>
  bool take(T& value) {
    if (left() < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }

  bool take(std::uint64_t count, std::span<const std::byte>& out) {
    if (count > left()) return false;
    out = bytes_.subspan(position_, static_cast<std::size_t>(count));
    position_ += static_cast<std::size_t>(count);
    return true;
  }

  bool take(std::string_view& text) {
    const std::size_t start = position_;
    std::uint64_t length = 0;
    std::span<const std::byte> taken;
    if (!take(length) || !take(length, taken)) {
      position_ = start;
      return false;
    }
    text = {reinterpret_cast<const char*>(taken.data()), taken.size()};
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
};

}  // namespace

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, std::string name) : bytes_(bytes), cursor_(bytes) {
    file_.name_ = std::move(name);
  }

  Result<GgufFile> parse() && {
    RETURN_IF_ERROR(read_header());
    RETURN_IF_ERROR(read_metadata());
    RETURN_IF_ERROR(read_tensor_infos());
    RETURN_IF_ERROR(place_tensors());
    return std::move(file_);
  }

 private:
  Status bad(const std::string& what) const {
    return data_loss(fmt::format("{}: {}", file_.name_, what));
  }

  Status read_header();
  Status read_metadata();
  Status read_value(GgufValue& value);
  Status read_elements(GgufValue& value, std::uint32_t type, int depth);
  Status read_alignment();
  Status read_tensor_infos();
  Status read_tensor_info(GgufTensor& tensor, std::uint64_t& offset);
  Status place_tensors();
  Status size_of(const GgufTensor& tensor, std::uint64_t& bytes) const;
  Status check_overlap() const;

  std::span<const std::byte> bytes_;
  Cursor cursor_;
  GgufFile file_;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t value_count_ = 0;
  std::uint64_t alignment_ = kAlignmentDefault;
  std::vector<std::uint64_t> offsets_;  // per tensor, from the start of the data
};

Status GgufParser::read_header() {
  std::array<char, 4> magic{};
  if (!cursor_.take(magic) || std::string_view(magic.data(), 4) != "GGUF") {
    return bad("not a GGUF file: it does not start with the letters GGUF");
  }
  if (!cursor_.take(file_.version_)) return bad("the file ends inside its header");
  if (file_.version_ == 1) {
    return unimplemented(
        fmt::format("{}: GGUF version 1 is not supported, convert the model again", file_.name_));
  }
  if ((file_.version_ & 0xFFFFU) == 0 && file_.version_ != 0) {
    return unimplemented(fmt::format(
        "{}: the file is big-endian, only little-endian GGUF is supported", file_.name_));
  }
  if (file_.version_ != 2 && file_.version_ != 3) {
    return unimplemented(fmt::format("{}: GGUF version {} is not supported, only 2 and 3 are",
                                     file_.name_, file_.version_));
  }
  if (!cursor_.take(tensor_count_) || !cursor_.take(value_count_)) {
    return bad("the file ends inside its header");
  }
  if (value_count_ > cursor_.left() / kValueBytesMin) {
    return bad(fmt::format("the header announces {} metadata values, more than the file can hold",
                           value_count_));
  }
  if (tensor_count_ > cursor_.left() / kTensorBytesMin) {
    return bad(
        fmt::format("the header announces {} tensors, more than the file can hold", tensor_count_));
  }
  return {};
}

Status GgufParser::read_metadata() {
  for (std::uint64_t i = 0; i < value_count_; ++i) {
    GgufValue value;
    RETURN_IF_ERROR(read_value(value));
    file_.metadata_.push_back(value);
  }
  std::sort(file_.metadata_.begin(), file_.metadata_.end(),
            [](const GgufValue& a, const GgufValue& b) { return a.key < b.key; });
  const auto twin =
      std::adjacent_find(file_.metadata_.begin(), file_.metadata_.end(),
                         [](const GgufValue& a, const GgufValue& b) { return a.key == b.key; });
  if (twin != file_.metadata_.end()) {
    return bad(fmt::format("metadata key {} appears twice", show_name(twin->key)));
  }
  return read_alignment();
}

Status GgufParser::read_value(GgufValue& value) {
  if (!cursor_.take(value.key)) return bad("the file ends inside a metadata key");
  if (value.key.empty() || value.key.size() > kKeyBytesMax) {
    return bad(fmt::format("a metadata key is {} bytes long, it must have 1 to {}",
                           value.key.size(), kKeyBytesMax));
  }
  std::uint32_t type = 0;
  if (!cursor_.take(type)) {
    return bad(fmt::format("the file ends inside metadata key {}", show_name(value.key)));
  }
  if (type == static_cast<std::uint32_t>(GgufType::kArray)) {
    value.is_array = true;
    if (!cursor_.take(type) || !cursor_.take(value.count)) {
      return bad(fmt::format("the file ends inside metadata key {}", show_name(value.key)));
    }
  }
  return read_elements(value, type, 1);
}

// Steps over `value.count` elements of `type` and leaves them in `value.bytes`.
Status GgufParser::read_elements(GgufValue& value, std::uint32_t type, int depth) {
  const auto ends = [&] {
    return bad(fmt::format("the file ends inside metadata key {}", show_name(value.key)));
  };
  if (!is_known(type)) {
    return bad(fmt::format("metadata key {} has the unknown type {}", show_name(value.key), type));
  }
  value.type = static_cast<GgufType>(type);
  if (const std::uint64_t size = fixed_bytes(value.type); size > 0) {
    if (value.count > cursor_.left() / size) return ends();
    CHECK(cursor_.take(value.count * size, value.bytes));
    const bool booleans_hold = value.type != GgufType::kBool ||
                               std::all_of(value.bytes.begin(), value.bytes.end(), [](std::byte b) {
                                 return std::to_integer<int>(b) <= 1;
                               });
    if (booleans_hold) return {};
    return bad(
        fmt::format("metadata key {} has a boolean that is neither 0 nor 1", show_name(value.key)));
  }
  const std::size_t start = cursor_.position();
  if (value.type == GgufType::kString) {
    std::string_view text;
    for (std::uint64_t i = 0; i < value.count; ++i) {
      if (!cursor_.take(text)) return ends();
    }
  } else {
    if (depth == kArrayDepthMax) {
      return bad(fmt::format("metadata key {} nests arrays too deeply", show_name(value.key)));
    }
    for (std::uint64_t i = 0; i < value.count; ++i) {
      GgufValue inner;
      inner.key = value.key;
      std::uint32_t inner_type = 0;
      if (!cursor_.take(inner_type) || !cursor_.take(inner.count)) return ends();
      RETURN_IF_ERROR(read_elements(inner, inner_type, depth + 1));
    }
  }
  value.bytes = bytes_.subspan(start, cursor_.position() - start);
  return {};
}

Status GgufParser::read_alignment() {
  const GgufValue* value = file_.find("general.alignment");
  if (value == nullptr) return {};
  if (value->is_array || value->type != GgufType::kU32) {
    return bad("metadata key 'general.alignment' must be a 32-bit unsigned integer");
  }
  alignment_ = load<std::uint32_t>(value->bytes, 0);
  if (std::has_single_bit(alignment_)) return {};
  return bad(fmt::format("general.alignment is {}, it must be a power of two", alignment_));
}

Status GgufParser::read_tensor_infos() {
  for (std::uint64_t i = 0; i < tensor_count_; ++i) {
    GgufTensor tensor;
    std::uint64_t offset = 0;
    RETURN_IF_ERROR(read_tensor_info(tensor, offset));
    file_.tensors_.push_back(tensor);
    offsets_.push_back(offset);
  }
  auto& order = file_.tensors_by_name_;
  order.resize(file_.tensors_.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto name_of = [&](std::uint32_t i) { return file_.tensors_[i].name; };
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return name_of(a) < name_of(b); });
  const auto twin = std::adjacent_find(
      order.begin(), order.end(),
      [&](std::uint32_t a, std::uint32_t b) { return name_of(a) == name_of(b); });
  if (twin == order.end()) return {};
  return bad(fmt::format("tensor {} appears twice", show_name(name_of(*twin))));
}

Status GgufParser::read_tensor_info(GgufTensor& tensor, std::uint64_t& offset) {
  if (!cursor_.take(tensor.name)) return bad("the file ends inside the list of tensors");
  if (tensor.name.empty() || tensor.name.size() > kTensorNameBytesMax) {
    return bad(fmt::format("tensor name {} is {} bytes long, it must have 1 to {}",
                           show_name(tensor.name), tensor.name.size(), kTensorNameBytesMax));
  }
  const auto ends = [&] {
    return bad(fmt::format("the file ends inside the entry of tensor {}", show_name(tensor.name)));
  };
  std::uint32_t rank = 0;
  if (!cursor_.take(rank)) return ends();
  if (rank > tensor.dims.size()) {
    return bad(fmt::format("tensor {} has {} dimensions, at most 4 are possible",
                           show_name(tensor.name), rank));
  }
  tensor.rank = static_cast<int>(rank);
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    if (!cursor_.take(tensor.dims[i])) return ends();
    if (tensor.dims[i] <= 0) {
      return bad(
          fmt::format("tensor {} has a dimension of {}", show_name(tensor.name), tensor.dims[i]));
    }
    if (elements > std::numeric_limits<std::int64_t>::max() / tensor.dims[i]) {
      return bad(fmt::format("tensor {} has more elements than any file can hold",
                             show_name(tensor.name)));
    }
    elements *= tensor.dims[i];
  }
  if (!cursor_.take(tensor.type) || !cursor_.take(offset)) return ends();
  return {};
}

// 0 when the type does not tell.
Status GgufParser::size_of(const GgufTensor& tensor, std::uint64_t& bytes) const {
  bytes = 0;
  const GgufTensorType* type = find_gguf_tensor_type(tensor.type);
  if (type == nullptr || type->block_columns == 0) return {};
  if (tensor.dims[0] % type->block_columns != 0) {
    return bad(fmt::format("tensor {} has rows of {} values, {} needs a multiple of {}",
                           show_name(tensor.name), tensor.dims[0], type->name,
                           type->block_columns));
  }
  std::uint64_t size = static_cast<std::uint64_t>(tensor.dims[0] / type->block_columns);
  const std::array<std::uint64_t, 4> factors{
      static_cast<std::uint64_t>(type->block_bytes), static_cast<std::uint64_t>(tensor.dims[1]),
      static_cast<std::uint64_t>(tensor.dims[2]), static_cast<std::uint64_t>(tensor.dims[3])};
  for (const std::uint64_t factor : factors) {
    if (size > bytes_.size() / factor) {
      return bad(fmt::format("tensor {} is larger than the file", show_name(tensor.name)));
    }
    size *= factor;
  }
  bytes = size;
  return {};
}

Status GgufParser::place_tensors() {
  if (file_.tensors_.empty()) return {};
  const std::uint64_t start = (cursor_.position() + alignment_ - 1) / alignment_ * alignment_;
  if (start > bytes_.size()) return bad("the file ends before the data of its tensors");
  const std::uint64_t space = bytes_.size() - start;
  for (std::size_t i = 0; i < file_.tensors_.size(); ++i) {
    GgufTensor& tensor = file_.tensors_[i];
    if (offsets_[i] % alignment_ != 0) {
      return bad(fmt::format("tensor {} lies at offset {}, which is no multiple of {}",
                             show_name(tensor.name), offsets_[i], alignment_));
    }
    std::uint64_t size = 0;
    RETURN_IF_ERROR(size_of(tensor, size));
    if (offsets_[i] > space || size > space - offsets_[i]) {
      return bad(
          fmt::format("tensor {} reaches beyond the end of the file, which is damaged or "
                      "not completely downloaded",
                      show_name(tensor.name)));
    }
    tensor.data = bytes_.subspan(static_cast<std::size_t>(start + offsets_[i]),
                                 static_cast<std::size_t>(size));
  }
  return check_overlap();
}

Status GgufParser::check_overlap() const {
  std::vector<std::uint32_t> order(file_.tensors_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return offsets_[a] < offsets_[b]; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::uint32_t before = order[i - 1];
    if (offsets_[before] + file_.tensors_[before].data.size() > offsets_[order[i]]) {
      return bad(fmt::format("tensors {} and {} overlap", show_name(file_.tensors_[before].name),
                             show_name(file_.tensors_[order[i]].name)));
    }
  }
  return {};
}

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(auto mapped, MappedFile::open(path));
  ASSIGN_OR_RETURN(GgufFile file, parse(mapped->bytes(), path.string()));
  file.file_ = std::move(mapped);
  return file;
}

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
  return GgufParser(bytes, std::move(name)).parse();
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found =
      std::lower_bound(metadata_.begin(), metadata_.end(), key,
                       [](const GgufValue& value, std::string_view k) { return value.key < k; });
  return found != metadata_.end() && found->key == key ? &*found : nullptr;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors_by_name_.begin(), tensors_by_name_.end(), name,
      [this](std::uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  if (found == tensors_by_name_.end() || tensors_[*found].name != name) return nullptr;
  return &tensors_[*found];
}

std::optional<std::int64_t> GgufValue::int_at(std::uint64_t index) const {
  CHECK(index < count);
  switch (type) {
    case GgufType::kU8: return load<std::uint8_t>(bytes, index);
    case GgufType::kI8: return load<std::int8_t>(bytes, index);
    case GgufType::kU16: return load<std::uint16_t>(bytes, index);
    case GgufType::kI16: return load<std::int16_t>(bytes, index);
    case GgufType::kU32: return load<std::uint32_t>(bytes, index);
    case GgufType::kI32: return load<std::int32_t>(bytes, index);
    case GgufType::kI64: return load<std::int64_t>(bytes, index);
    case GgufType::kU64: {
      const auto value = load<std::uint64_t>(bytes, index);
      if (value > std::numeric_limits<std::int64_t>::max()) return std::nullopt;
      return static_cast<std::int64_t>(value);
    }
    default: return std::nullopt;
  }
}

std::optional<double> GgufValue::float_at(std::uint64_t index) const {
  CHECK(index < count);
  if (type == GgufType::kF32) return load<float>(bytes, index);
  if (type == GgufType::kF64) return load<double>(bytes, index);
  const std::optional<std::int64_t> integer = int_at(index);
  if (!integer) return std::nullopt;
  return static_cast<double>(*integer);
}

std::optional<bool> GgufValue::bool_at(std::uint64_t index) const {
  CHECK(index < count);
  if (type != GgufType::kBool) return std::nullopt;
  return bytes[static_cast<std::size_t>(index)] != std::byte{0};
}

std::vector<std::string_view> GgufValue::strings() const {
  std::vector<std::string_view> out;
  if (type != GgufType::kString) return out;
  out.reserve(static_cast<std::size_t>(count));  // each took at least 8 bytes of the file
  Cursor cursor(bytes);
  std::string_view text;
  while (cursor.take(text)) out.push_back(text);
  return out;
}

std::optional<std::string_view> GgufFile::find_string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr || value->is_array || value->type != GgufType::kString) return std::nullopt;
  return value->strings().front();
}

std::optional<std::int64_t> GgufFile::find_int(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr || value->is_array) return std::nullopt;
  return value->int_at(0);
}

std::optional<std::uint64_t> GgufFile::find_uint(std::string_view key) const {
  const std::optional<std::int64_t> value = find_int(key);
  if (!value || *value < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*value);
}

std::optional<double> GgufFile::find_float(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr || value->is_array) return std::nullopt;
  return value->float_at(0);
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr || value->is_array) return std::nullopt;
  return value->bool_at(0);
}

std::optional<std::vector<std::string_view>> GgufFile::find_strings(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr || !value->is_array || value->type != GgufType::kString) {
    return std::nullopt;
  }
  return value->strings();
}

const GgufValue* GgufFile::find_array(std::string_view key) const {
  const GgufValue* value = find(key);
  const bool flat = value != nullptr && value->is_array && fixed_bytes(value->type) > 0;
  return flat ? value : nullptr;
}

}  // namespace kun
