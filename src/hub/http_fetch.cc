// libcurl, told to follow few redirects and only to safe schemes, and to give up on silence.
#include "hub/http_fetch.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <mutex>

namespace kun {
namespace {

constexpr long kRedirectsMax = 8;
constexpr std::size_t kHeaderBytesMax = 4096;
constexpr std::size_t kMessageBytesMax = 300;

struct CurlDeleter {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

struct Transfer {
  CURL* handle = nullptr;
  const HttpSink* sink = nullptr;
  HttpReply reply;
  Status sink_status;
};

bool starts_with_nocase(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), text.begin(), [](char a, char b) {
           return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b - 'A' + 'a') : b);
         });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && static_cast<unsigned char>(text.front()) <= ' ') text.remove_prefix(1);
  while (!text.empty() && static_cast<unsigned char>(text.back()) <= ' ') text.remove_suffix(1);
  return text;
}

// "bytes 100-199/200" starts at 100.
std::uint64_t content_range_start(std::string_view value) {
  std::uint64_t first = 0;
  constexpr std::string_view kUnit = "bytes ";
  if (starts_with_nocase(value, kUnit)) {
    value.remove_prefix(kUnit.size());
    std::from_chars(value.data(), value.data() + value.size(), first);
  }
  return first;
}

// <https://host/path?cursor=x>; rel="next"
std::string next_link(std::string_view value) {
  const std::size_t open = value.find('<');
  const std::size_t close = value.find('>');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return {};
  if (value.find("rel=\"next\"", close) == std::string_view::npos) return {};
  return std::string(value.substr(open + 1, close - open - 1));
}

// A header belongs to the answer that is being read: each status line starts a new one, so that
// nothing of a redirect is left over.
std::size_t on_header(char* data, std::size_t size, std::size_t count, void* context) {
  auto& reply = static_cast<Transfer*>(context)->reply;
  const std::string_view line(data, size * count);
  if (line.starts_with("HTTP/")) {
    reply = {};
  } else if (line.size() <= kHeaderBytesMax) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return line.size();
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (starts_with_nocase(line, "content-range:")) reply.first_byte = content_range_start(value);
    if (starts_with_nocase(line, "link:")) reply.next_url = next_link(value);
    if (starts_with_nocase(line, "x-error-message:")) {
      reply.server_message = value.substr(0, kMessageBytesMax);
    }
  }
  return line.size();
}

std::size_t on_body(char* data, std::size_t size, std::size_t count, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  long status = 0;
  curl_easy_getinfo(transfer.handle, CURLINFO_RESPONSE_CODE, &status);
  if (status != 200 && status != 206) return size * count;
  transfer.reply.status = static_cast<int>(status);
  transfer.sink_status = (*transfer.sink)(transfer.reply, {data, size * count});
  return transfer.sink_status.ok() ? size * count : CURL_WRITEFUNC_ERROR;
}

void set_options(CURL* handle, const HttpFetch& request, Transfer& transfer, char* error_text) {
  curl_easy_setopt(handle, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, error_text);
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_USERAGENT, "kun");
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(handle, CURLOPT_MAXREDIRS, kRedirectsMax);
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  const bool secure = request.url.starts_with("https:");
  curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(request.connect_seconds * 1000.0));
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME,
                   std::max(1L, static_cast<long>(request.stall_seconds)));
  curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(handle, CURLOPT_WRITEDATA, &transfer);
  // Not CURLOPT_RESUME_FROM: that fails when the server answers with the whole file.
  if (request.first_byte > 0) {
    const std::string range = fmt::format("{}-", request.first_byte);
    curl_easy_setopt(handle, CURLOPT_RANGE, range.c_str());
  }
  if (!request.json_body.empty()) {
    curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.json_body.size()));
    curl_easy_setopt(handle, CURLOPT_POSTFIELDS, request.json_body.c_str());
  }
  if (!request.token.empty()) {
    // libcurl sends it to the first host only, unless told otherwise.
    curl_easy_setopt(handle, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    curl_easy_setopt(handle, CURLOPT_XOAUTH2_BEARER, request.token.c_str());
  }
}

}  // namespace

Result<HttpReply> http_fetch(const HttpFetch& request, const HttpSink& sink) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  const std::unique_ptr<CURL, CurlDeleter> handle(curl_easy_init());
  if (handle == nullptr) return internal_error("libcurl could not be started");
  Transfer transfer = {.handle = handle.get(), .sink = &sink, .reply = {}, .sink_status = {}};
  char error_text[CURL_ERROR_SIZE] = {};
  set_options(handle.get(), request, transfer, error_text);
  std::unique_ptr<curl_slist, CurlDeleter> headers;
  if (!request.json_body.empty()) {
    headers.reset(curl_slist_append(nullptr, "Content-Type: application/json"));
    curl_easy_setopt(handle.get(), CURLOPT_HTTPHEADER, headers.get());
  }
  const CURLcode code = curl_easy_perform(handle.get());
  if (!transfer.sink_status.ok()) return transfer.sink_status;
  long status = 0;
  curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &status);
  transfer.reply.status = static_cast<int>(status);
  if (code == CURLE_OK) return transfer.reply;
  const char* text = error_text[0] != '\0' ? error_text : curl_easy_strerror(code);
  const std::string message = fmt::format("{} failed: {}", request.url, text);
  const bool hopeless = code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT ||
                        code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_PEER_FAILED_VERIFICATION;
  return hopeless ? invalid_argument(message) : unavailable(message);
}

}  // namespace kun
