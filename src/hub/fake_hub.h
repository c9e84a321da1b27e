// A hub for tests: an HTTP server in this process that answers from a table, notes what it was
// asked, and can misbehave. Only tests include it.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace kun {

struct FakeRequest {
  std::string path;
  std::string token;                      // of the Authorization header
  std::optional<std::size_t> first_byte;  // of the Range header
};

struct FakeReply {
  int status = 200;
  std::string body;
  std::vector<std::string> headers;
  std::size_t cut_after = std::string::npos;  // of the body, then the connection is closed
  int stall_ms = 0;                           // before the body
  bool honours_range = true;
};

class FakeHub {
 public:
  using Handler = std::function<FakeReply(const FakeRequest&)>;

  explicit FakeHub(Handler handler) : handler_(std::move(handler)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_, 16) != 0 ||
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      std::abort();
    }
    endpoint_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { serve(); });
  }

  ~FakeHub() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  FakeHub(const FakeHub&) = delete;
  FakeHub& operator=(const FakeHub&) = delete;
  const std::string& endpoint() const { return endpoint_; }
  std::vector<FakeRequest> requests(std::string_view path_part = "") const {
    const std::lock_guard lock(mutex_);
    std::vector<FakeRequest> found;
    std::copy_if(requests_.begin(), requests_.end(), std::back_inserter(found),
                 [&](const FakeRequest& r) { return r.path.find(path_part) != std::string::npos; });
    return found;
  }

 private:
  void serve() {
    while (true) {
      const int connection = ::accept(listener_, nullptr, nullptr);
      if (connection < 0) return;
      answer(connection);
      ::close(connection);
    }
  }

  static std::string header_value(const std::string& head, const std::string& name) {
    const std::size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return {};
    const std::size_t start = at + name.size() + 4;
    return head.substr(start, head.find("\r\n", start) - start);
  }

  void answer(int connection) {
    std::string head;
    char buffer[4096];
    while (head.find("\r\n\r\n") == std::string::npos) {
      const ssize_t count = ::recv(connection, buffer, sizeof(buffer), 0);
      if (count <= 0) return;
      head.append(buffer, static_cast<std::size_t>(count));
    }
    FakeRequest request;
    request.path = head.substr(4, head.find(' ', 4) - 4);
    request.token = header_value(head, "Authorization");
    if (const std::string range = header_value(head, "Range"); !range.empty()) {
      request.first_byte = std::stoull(range.substr(6));
    }
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    send_reply(connection, request, handler_(request));
  }

  static void send_reply(int connection, const FakeRequest& request, FakeReply reply) {
    std::string range;
    if (request.first_byte && reply.honours_range && reply.status == 200) {
      const std::size_t total = reply.body.size();
      if (*request.first_byte >= total) {
        reply = {.status = 416, .body = "", .headers = {}};
      } else {
        reply.body.erase(0, *request.first_byte);
        reply.status = 206;
        range = "Content-Range: bytes " + std::to_string(*request.first_byte) + "-" +
                std::to_string(total - 1) + "/" + std::to_string(total) + "\r\n";
      }
    }
    std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " x\r\n" + range +
                       "Content-Length: " + std::to_string(reply.body.size()) +
                       "\r\nConnection: close\r\n";
    for (const std::string& header : reply.headers) head += header + "\r\n";
    send_all(connection, head + "\r\n");
    std::this_thread::sleep_for(std::chrono::milliseconds(reply.stall_ms));
    send_all(connection, std::string_view(reply.body).substr(0, reply.cut_after));
  }

  static void send_all(int connection, std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::send(connection, text.data(), text.size(), MSG_NOSIGNAL);
      if (count <= 0) return;
      text.remove_prefix(static_cast<std::size_t>(count));
    }
  }

  const Handler handler_;
  int listener_ = -1;
  std::string endpoint_;
  mutable std::mutex mutex_;
  std::vector<FakeRequest> requests_;
  std::thread thread_;
};

}  // namespace kun
