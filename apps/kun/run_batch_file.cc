#include "run_batch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "server/json_view.h"
#include "server/json_writer.h"

namespace kun {
namespace {

using Kind = JsonView::Kind;

// OpenAI's, and vLLM's score.
constexpr std::array<std::string_view, 6> kUrls = {
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings",
    "/v1/responses",        "/v1/score",       "/score"};

int leave_open(std::FILE* file) {
  static_cast<void>(file);
  return 0;
}

bool is_blank(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
}

std::optional<std::string_view> string_of(JsonView object, std::string_view name) {
  const auto value = object.find(name);
  if (!value || !value->is(Kind::kString)) return std::nullopt;
  return value->string();
}

BatchError missing(std::string_view name, std::string_view what) {
  return {"invalid_request", fmt::format("{} must be {}", name, what), std::string(name)};
}

// Everything but the custom id.
std::optional<BatchError> read_request(JsonView object, BatchItem& item) {
  if (string_of(object, "method") != "POST") return missing("method", "\"POST\"");
  const auto url = string_of(object, "url");
  if (!url || std::ranges::count(kUrls, *url) == 0) {
    return missing("url", fmt::format("one of {}", fmt::join(kUrls, ", ")));
  }
  const auto body = object.find("body");
  if (!body || !body->is(Kind::kObject)) return missing("body", "an object");
  const auto stream = body->find("stream");
  if (stream && stream->is(Kind::kBool) && stream->boolean()) {
    return BatchError{"invalid_request", "stream must not be true: a batch has no streams",
                      "body.stream"};
  }
  item.url = *url;
  body->print(item.body);
  return std::nullopt;
}

void open_entry(JsonWriter& json, const BatchItem& item, std::string_view id) {
  json.begin_object().key("id").string(id).key("custom_id");
  if (item.custom_id.empty()) {
    json.null();
  } else {
    json.string(item.custom_id);
  }
}

}  // namespace

BatchReader::BatchReader(std::FILE* file, bool owned, const BatchLimits& limits)
    : limits_(limits), file_(file, owned ? std::fclose : leave_open) {}

Result<std::unique_ptr<BatchReader>> BatchReader::open(const std::string& path,
                                                       const BatchLimits& limits) {
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return not_found(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  }
  return std::unique_ptr<BatchReader>(new BatchReader(file, file != stdin, limits));
}

// Replaces `line`; of one that is too long the rest is read and dropped.
BatchReader::Line BatchReader::read_line(std::string& line) {
  line.clear();
  bool too_long = false;
  int c = std::getc(file_.get());
  if (c == EOF) return Line::kEnd;
  for (; c != EOF && c != '\n'; c = std::getc(file_.get())) {
    if (line.size() < limits_.line_bytes_max) {
      line.push_back(static_cast<char>(c));
    } else {
      too_long = true;
    }
  }
  return too_long ? Line::kTooLong : Line::kWhole;
}

Result<std::optional<BatchItem>> BatchReader::next() {
  std::string text;
  for (;;) {
    const Line read = read_line(text);
    if (std::ferror(file_.get()) != 0) {
      return data_loss(fmt::format("reading the batch stopped behind line {}: {}", line_number_,
                                   std::strerror(errno)));
    }
    if (read == Line::kEnd) return std::optional<BatchItem>();
    if (++line_number_ > limits_.lines_max) {
      return invalid_argument(
          fmt::format("the batch has more than {} lines; split it", limits_.lines_max));
    }
    if (read == Line::kTooLong) {
      BatchItem item;
      item.line = line_number_;
      item.error =
          BatchError{"line_too_long",
                     fmt::format("the line has more than {} bytes", limits_.line_bytes_max), ""};
      return std::optional(std::move(item));
    }
    if (!is_blank(text)) return std::optional(parse(text));
  }
}

BatchItem BatchReader::parse(std::string_view text) {
  BatchItem item;
  item.line = line_number_;
  const Result<JsonDocument> json =
      JsonDocument::parse(text, {limits_.json_depth_max, limits_.json_bytes_max});
  if (!json) {
    item.error = BatchError{"invalid_json", json.error().message(), ""};
    return item;
  }
  const JsonView root = json->root();
  if (!root.is(Kind::kObject)) {
    item.error = BatchError{"invalid_request", "the line must be a JSON object", ""};
    return item;
  }
  const auto custom_id = string_of(root, "custom_id");
  if (!custom_id || custom_id->empty() || custom_id->size() > limits_.custom_id_bytes_max) {
    item.error =
        missing("custom_id", fmt::format("a string of 1 to {} bytes", limits_.custom_id_bytes_max));
    return item;
  }
  item.custom_id = *custom_id;
  if (!custom_ids_.insert(item.custom_id).second) {
    item.error = BatchError{"duplicate_custom_id",
                            "another line before this one has the same custom_id", "custom_id"};
    return item;
  }
  item.error = read_request(root, item);
  return item;
}

std::string batch_entry(const BatchItem& item, const BatchAnswer& answer, std::string_view id) {
  JsonWriter json;
  open_entry(json, item, id);
  json.key("response").begin_object();
  json.key("status_code").integer(answer.status);
  json.key("request_id").string(answer.request_id);
  json.key("body").raw(answer.body);
  json.end_object().key("error").null().end_object();
  return json.take();
}

std::string batch_entry(const BatchItem& item, const BatchError& error, std::string_view id) {
  JsonWriter json;
  open_entry(json, item, id);
  json.key("response").null().key("error").begin_object();
  json.key("code").string(error.code);
  json.key("message").string(error.message);
  json.key("param");
  if (error.param.empty()) {
    json.null();
  } else {
    json.string(error.param);
  }
  json.key("line").integer(item.line);
  json.end_object().end_object();
  return json.take();
}

}  // namespace kun
