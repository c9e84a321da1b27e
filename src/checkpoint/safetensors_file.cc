// The header is JSON, walked once with simdjson's On Demand parser, which needs no tree in memory
// and shows duplicate keys. Nothing is used before it has been checked.
#include "checkpoint/safetensors_file.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "checkpoint/show_name.h"

namespace kun {
namespace {

namespace json = simdjson::ondemand;

static_assert(std::endian::native == std::endian::little, "safetensors is read as it lies");

constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // the reference implementation's limit
constexpr std::size_t kRankMax = 16;

struct Dtype {
  std::string_view name;
  unsigned bits;
};
constexpr Dtype kDtypes[] = {
    {"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"U16", 16}, {"I16", 16}, {"F16", 16},    {"BF16", 16},
    {"U32", 32},    {"I32", 32}, {"F32", 32}, {"U64", 64},    {"I64", 64},
    {"F64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

const Dtype* find_dtype(std::string_view name) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.name == name) return &dtype;
  }
  return nullptr;
}

// One entry of the header as it stands there.
struct Entry {
  std::optional<std::string_view> dtype;
  std::optional<std::vector<std::int64_t>> shape;
  std::optional<std::vector<std::int64_t>> offsets;
};

// A list of at most `count_max` whole numbers that are not negative.
std::optional<std::vector<std::int64_t>> read_numbers(json::value value, std::size_t count_max) {
  std::vector<std::int64_t> out;
  json::array list;
  if (value.get_array().get(list) != simdjson::SUCCESS) return std::nullopt;
  for (auto element : list) {
    std::int64_t number = 0;
    const bool good = element.get_int64().get(number) == simdjson::SUCCESS && number >= 0;
    if (!good || out.size() == count_max) return std::nullopt;
    out.push_back(number);
  }
  return out;
}

}  // namespace

class SafetensorsParser {
 public:
  SafetensorsParser(std::span<const std::byte> bytes, std::string name) : bytes_(bytes) {
    file_.name_ = std::move(name);
  }

  Result<SafetensorsFile> parse() && {
    RETURN_IF_ERROR(find_header());
    RETURN_IF_ERROR(read_header());
    RETURN_IF_ERROR(check_coverage());
    RETURN_IF_ERROR(index_names());
    return std::move(file_);
  }

 private:
  Status bad(const std::string& what) const {
    return data_loss(fmt::format("{}: {}", file_.name_, what));
  }
  Status bad_json() const { return bad("the header is not valid JSON"); }
  Status bad_tensor(std::string_view tensor, std::string_view what) const {
    return bad(fmt::format("tensor {} {}", show_name(tensor), what));
  }

  Status find_header();
  Status read_header();
  Status read_metadata(json::value value) const;
  Status read_tensor(std::string name, json::value value);
  Status read_entry(std::string_view name, json::object fields, Entry& entry) const;
  Status check_size(const SafetensorsTensor& tensor, unsigned bits) const;
  Status check_coverage();
  Status index_names();

  std::span<const std::byte> bytes_;
  std::string_view header_;
  std::span<const std::byte> data_;
  SafetensorsFile file_;
  bool has_metadata_ = false;
};

Status SafetensorsParser::find_header() {
  std::uint64_t length = 0;
  if (bytes_.size() < sizeof(length)) {
    return bad("not a safetensors file: it is shorter than 8 bytes");
  }
  std::memcpy(&length, bytes_.data(), sizeof(length));
  if (length > kHeaderBytesMax) {
    return bad(
        fmt::format("the header claims {} bytes, at most {} are allowed", length, kHeaderBytesMax));
  }
  const std::span<const std::byte> rest = bytes_.subspan(sizeof(length));
  if (length > rest.size()) {
    return bad(
        fmt::format("the header claims {} bytes, the file has only {} left", length, rest.size()));
  }
  const auto size = static_cast<std::size_t>(length);
  header_ = {reinterpret_cast<const char*>(rest.data()), size};
  data_ = rest.subspan(size);
  if (header_.empty() || header_.front() != '{') {
    return bad("not a safetensors file: its header does not start with '{'");
  }
  return {};
}

Status SafetensorsParser::read_header() {
  const simdjson::padded_string text(header_);
  json::parser parser;
  json::document document;
  json::object entries;
  if (parser.iterate(text).get(document) != simdjson::SUCCESS ||
      document.get_object().get(entries) != simdjson::SUCCESS) {
    return bad_json();
  }
  for (auto result : entries) {
    json::field field;
    std::string_view key;
    if (std::move(result).get(field) != simdjson::SUCCESS ||
        field.unescaped_key().get(key) != simdjson::SUCCESS) {
      return bad_json();
    }
    if (key == "__metadata__") {
      if (std::exchange(has_metadata_, true)) return bad("__metadata__ appears twice");
      RETURN_IF_ERROR(read_metadata(field.value()));
    } else {
      RETURN_IF_ERROR(read_tensor(std::string(key), field.value()));
    }
  }
  const bool at_end = document.current_location().error() == simdjson::OUT_OF_BOUNDS;
  return at_end ? Status() : bad_json();
}

// A map of strings to strings, or the file is not what it claims. Nothing in it is of use to us.
Status SafetensorsParser::read_metadata(json::value value) const {
  json::object fields;
  if (value.get_object().get(fields) != simdjson::SUCCESS) {
    return bad("__metadata__ is not a map of strings");
  }
  for (auto result : fields) {
    json::field field;
    std::string_view text;
    if (std::move(result).get(field) != simdjson::SUCCESS ||
        field.unescaped_key().get(text) != simdjson::SUCCESS ||
        field.value().get_string().get(text) != simdjson::SUCCESS) {
      return bad("__metadata__ is not a map of strings");
    }
  }
  return {};
}

Status SafetensorsParser::read_entry(std::string_view name, json::object fields,
                                     Entry& entry) const {
  for (auto result : fields) {
    json::field field;
    std::string_view key;
    if (std::move(result).get(field) != simdjson::SUCCESS ||
        field.unescaped_key().get(key) != simdjson::SUCCESS) {
      return bad_json();
    }
    const bool twice = (key == "dtype" && entry.dtype) || (key == "shape" && entry.shape) ||
                       (key == "data_offsets" && entry.offsets);
    if (twice) return bad_tensor(name, fmt::format("has two fields '{}'", key));
    if (key == "dtype") {
      std::string_view text;
      if (field.value().get_string().get(text) != simdjson::SUCCESS) {
        return bad_tensor(name, "has a dtype that is no string");
      }
      entry.dtype = text;
    } else if (key == "shape") {
      entry.shape = read_numbers(field.value(), kRankMax);
      if (!entry.shape) return bad_tensor(name, "has a shape that is no list of sizes");
    } else if (key == "data_offsets") {
      entry.offsets = read_numbers(field.value(), 2);
      if (!entry.offsets || entry.offsets->size() != 2) {
        return bad_tensor(name, "has data_offsets that are no pair of positions");
      }
    } else {
      return bad_tensor(name, fmt::format("has the unknown field {}", show_name(key)));
    }
  }
  return {};
}

Status SafetensorsParser::read_tensor(std::string name, json::value value) {
  json::object fields;
  if (value.get_object().get(fields) != simdjson::SUCCESS) {
    return bad_tensor(name, "is not described by an object");
  }
  Entry entry;
  RETURN_IF_ERROR(read_entry(name, fields, entry));
  if (!entry.dtype || !entry.shape || !entry.offsets) {
    return bad_tensor(name, "needs all of dtype, shape and data_offsets");
  }
  const Dtype* dtype = find_dtype(*entry.dtype);
  if (dtype == nullptr) {
    return bad_tensor(name, fmt::format("has the unknown dtype {}", show_name(*entry.dtype)));
  }
  const auto begin = static_cast<std::uint64_t>((*entry.offsets)[0]);
  const auto end = static_cast<std::uint64_t>((*entry.offsets)[1]);
  if (begin > end) return bad_tensor(name, "ends before it begins");
  if (end > data_.size()) {
    return bad_tensor(name,
                      "reaches beyond the end of the file, which is damaged or not completely "
                      "downloaded");
  }
  SafetensorsTensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = dtype->name;
  tensor.shape = std::move(*entry.shape);
  tensor.data =
      data_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  RETURN_IF_ERROR(check_size(tensor, dtype->bits));
  file_.tensors_.push_back(std::move(tensor));
  return {};
}

Status SafetensorsParser::check_size(const SafetensorsTensor& tensor, unsigned bits) const {
  std::uint64_t size = bits;
  bool fits = true;
  for (const std::int64_t dim : tensor.shape) {
    fits = fits && !__builtin_mul_overflow(size, static_cast<std::uint64_t>(dim), &size);
  }
  if (!fits) return bad_tensor(tensor.name, "has more elements than any file can hold");
  if (size % 8 != 0) return bad_tensor(tensor.name, "does not fill its last byte");
  if (size / 8 == tensor.data.size()) return {};
  return bad_tensor(tensor.name, fmt::format("needs {} bytes by its shape and has {}", size / 8,
                                             tensor.data.size()));
}

// Sorts the tensors by their data and holds that it covers the file: no overlap, no holes.
Status SafetensorsParser::check_coverage() {
  auto& tensors = file_.tensors_;
  const auto begin_of = [](const SafetensorsTensor& tensor) { return tensor.data.data(); };
  const auto end_of = [](const SafetensorsTensor& tensor) {
    return tensor.data.data() + tensor.data.size();
  };
  std::sort(tensors.begin(), tensors.end(),
            [&](const SafetensorsTensor& a, const SafetensorsTensor& b) {
              return std::pair(begin_of(a), end_of(a)) < std::pair(begin_of(b), end_of(b));
            });
  const std::byte* position = data_.data();
  for (const SafetensorsTensor& tensor : tensors) {
    if (begin_of(tensor) < position) return bad_tensor(tensor.name, "overlaps another tensor");
    if (begin_of(tensor) > position) {
      return bad_tensor(tensor.name, "has bytes before it that belong to no tensor");
    }
    position = end_of(tensor);
  }
  if (position == data_.data() + data_.size()) return {};
  return bad("the file goes on after the last tensor");
}

Status SafetensorsParser::index_names() {
  const auto& tensors = file_.tensors_;
  auto& order = file_.tensors_by_name_;
  order.resize(tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
  const auto twin = std::adjacent_find(
      order.begin(), order.end(),
      [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name == tensors[b].name; });
  return twin == order.end() ? Status() : bad_tensor(tensors[*twin].name, "appears twice");
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(auto mapped, MappedFile::open(path));
  ASSIGN_OR_RETURN(SafetensorsFile file, parse(mapped->bytes(), path.string()));
  file.file_ = std::move(mapped);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes, std::string name) {
  return SafetensorsParser(bytes, std::move(name)).parse();
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors_by_name_.begin(), tensors_by_name_.end(), name,
      [this](std::uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  if (found == tensors_by_name_.end() || tensors_[*found].name != name) return nullptr;
  return &tensors_[*found];
}

}  // namespace kun
