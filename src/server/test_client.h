// Test support: a blocking HTTP client that shows what is on the wire and can misbehave.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kun {

struct ClientResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  bool complete = false;

  boost::json::value json() const {
    boost::system::error_code error;
    auto value = boost::json::parse(body, error);
    EXPECT_FALSE(error) << body;
    return value;
  }
  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

class TestClient {
 public:
  // `receive_bytes`: of the receive buffer, for readers that are to be slow.
  explicit TestClient(int port, int receive_bytes = 0) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    if (receive_bytes > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    }
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  explicit TestClient(int fd, std::nullptr_t) : fd_(fd), connected_(true) {}
  ~TestClient() { close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool connected() const { return connected_; }

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  void send_request(std::string_view method, std::string_view path, std::string_view body = {},
                    std::string_view headers = {}) {
    std::string text(method);
    text += ' ';
    text += path;
    text += " HTTP/1.1\r\nHost: test\r\n";
    text += headers;
    if (!body.empty() || method == "POST") {
      text += "Content-Type: application/json\r\n";
      text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    }
    text += "\r\n";
    text += body;
    send(text);
  }

  ClientResponse request(std::string_view method, std::string_view path, std::string_view body = {},
                         std::string_view headers = {}) {
    send_request(method, path, body, headers);
    return read_response(method != "HEAD");
  }

  // Status line and headers.
  ClientResponse read_head() {
    ClientResponse response;
    std::size_t end = 0;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!receive()) return response;
    }
    const std::string head = buffer_.substr(0, end + 2);
    buffer_.erase(0, end + 4);
    response.status = std::atoi(head.c_str() + 9);
    for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
      const std::size_t line_end = head.find("\r\n", at);
      const std::string line = head.substr(at, line_end - at);
      const std::size_t colon = line.find(": ");
      std::string name = line.substr(0, colon);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      response.headers[name] = line.substr(colon + 2);
      at = line_end + 2;
    }
    return response;
  }

  ClientResponse read_response(bool with_body = true) {
    ClientResponse response = read_head();
    if (response.status == 0 || !with_body || response.status == 204 || response.status == 100) {
      response.complete = response.status != 0;
      return response;
    }
    if (response.header("transfer-encoding") == "chunked") {
      std::string chunk;
      while (read_chunk(chunk)) {
        if (chunk.empty()) {
          response.complete = true;
          break;
        }
        response.body += chunk;
      }
    } else if (!response.header("content-length").empty()) {
      const auto size = static_cast<std::size_t>(std::stoul(response.header("content-length")));
      while (buffer_.size() < size && receive()) continue;
      response.complete = buffer_.size() >= size;
      response.body = buffer_.substr(0, size);
      buffer_.erase(0, size);
    } else {
      while (receive()) continue;
      response.body.swap(buffer_);
      response.complete = true;
    }
    return response;
  }

  // False at the end of the connection; an empty chunk is the end of the body.
  bool read_chunk(std::string& chunk) {
    std::size_t end = 0;
    while ((end = buffer_.find("\r\n")) == std::string::npos) {
      if (!receive()) return false;
    }
    std::size_t size = 0;
    std::from_chars(buffer_.data(), buffer_.data() + end, size, 16);
    while (buffer_.size() < end + 2 + size + 2) {
      if (!receive()) return false;
    }
    chunk = buffer_.substr(end + 2, size);
    buffer_.erase(0, end + 2 + size + 2);
    return true;
  }

  // True when the server closes the connection within the time.
  bool sees_close(int timeout_ms = 5000) {
    while (receive(timeout_ms)) continue;
    return closed_;
  }

 private:
  bool receive(int timeout_ms = 20'000) {
    pollfd waiting = {fd_, POLLIN, 0};
    if (::poll(&waiting, 1, timeout_ms) <= 0) return false;
    char bytes[16384];
    const ssize_t count = ::recv(fd_, bytes, sizeof(bytes), 0);
    if (count <= 0) {
      closed_ = true;
      return false;
    }
    buffer_.append(bytes, static_cast<std::size_t>(count));
    return true;
  }

  int fd_ = -1;
  bool connected_ = false;
  bool closed_ = false;
  std::string buffer_;
};

// The data of each server-sent event.
inline std::vector<std::string> sse_data(const std::string& body) {
  std::vector<std::string> events;
  for (std::size_t at = 0; (at = body.find("data: ", at)) != std::string::npos;) {
    const std::size_t end = body.find("\n\n", at);
    events.push_back(body.substr(at + 6, end - at - 6));
    at = end;
  }
  return events;
}

}  // namespace kun
