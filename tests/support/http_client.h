// A client of HTTP over bytes, and a server to ask: for tests/serve.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "apps/kvserve/http_server.h"

namespace kvrun::serve {

// Until it is so, at most that long.
inline bool WaitFor(const std::function<bool()>& is_so, int timeout_ms = 10'000) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

struct HttpAnswer {
  int status = 0;  // 0: none came
  std::string head;
  std::string body;          // chunks are joined
  bool is_complete = false;  // as its length or its chunks say, or by the end of the connection
};

class HttpClient {
 public:
  // From another address of loopback where `from` says so: each has ports of its own.
  explicit HttpClient(uint16_t port, uint32_t from = INADDR_LOOPBACK, int receive_bytes = 0) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_bytes > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(from);
    if (from != INADDR_LOOPBACK) bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    is_connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient() { Close(); }

  bool is_connected() const { return is_connected_; }
  // False: the server has closed.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void EndSending() { shutdown(fd_, SHUT_WR); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void Reset() {
    const linger now{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    Close();
  }

  // Into received(); false: nothing came, or the connection has ended.
  bool Receive(int timeout_ms = 10'000) {
    pollfd watched{fd_, POLLIN, 0};
    if (poll(&watched, 1, timeout_ms) != 1) return false;
    char buffer[65536];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    if (n <= 0) has_ended_ = true;
    if (n > 0) received_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }
  const std::string& received() const { return received_; }
  bool ReceiveUntil(std::string_view text, int timeout_ms = 10'000) {
    while (received_.find(text) == std::string::npos) {
      if (!Receive(timeout_ms)) return false;
    }
    return true;
  }
  // The server has closed, after whatever it sent.
  bool ReceiveEnd(int timeout_ms = 10'000) {
    while (Receive(timeout_ms)) {
    }
    return has_ended_;
  }

  // The next one; interim ones (1xx) are passed over and counted.
  HttpAnswer Answer(bool has_body = true) {
    HttpAnswer answer;
    for (;;) {
      if (!ReceiveUntil("\r\n\r\n")) return answer;
      answer.head = TakeReceived(received_.find("\r\n\r\n") + 4);
      if (answer.head.compare(0, 9, "HTTP/1.1 ") != 0) return answer;
      answer.status = std::atoi(answer.head.c_str() + 9);
      if (answer.status >= 200) break;
      ++n_interim_;
    }
    if (!has_body) {
      answer.is_complete = true;
    } else if (answer.head.find("\r\nTransfer-Encoding: chunked\r\n") != std::string::npos) {
      answer.is_complete = ReadChunks(&answer.body);
    } else if (const size_t at = answer.head.find("\r\nContent-Length: "); at != std::string::npos) {
      const size_t n = std::strtoul(answer.head.c_str() + at + 18, nullptr, 10);
      while (received_.size() < n && Receive()) {
      }
      answer.is_complete = received_.size() >= n;
      answer.body = TakeReceived(n);
    } else {
      answer.is_complete = ReceiveEnd();
      answer.body = TakeReceived(received_.size());
    }
    return answer;
  }
  int n_interim() const { return n_interim_; }

 private:
  std::string TakeReceived(size_t n) {
    std::string taken = received_.substr(0, n);
    received_.erase(0, n);
    return taken;
  }
  bool ReadChunks(std::string* body) {
    for (;;) {
      if (!ReceiveUntil("\r\n")) return false;
      const size_t n = std::strtoul(TakeReceived(received_.find("\r\n") + 2).c_str(), nullptr, 16);
      while (received_.size() < n + 2) {
        if (!Receive()) return false;
      }
      body->append(TakeReceived(n));
      if (TakeReceived(2) != "\r\n") return false;
      if (n == 0) return true;
    }
  }

  int fd_ = -1;
  bool is_connected_ = false;
  bool has_ended_ = false;
  std::string received_;
  int n_interim_ = 0;
};

// Serves until its end.
class RunningServer {
 public:
  explicit RunningServer(HttpHandler handler, HttpOptions options = {}) {
    options.port = 0;
    server_ = HttpServer::Create(options, std::move(handler));
    port_ = server_->port();
    thread_ = std::thread([this] {
      server_->Run();
      has_ended_ = true;
    });
  }
  ~RunningServer() {
    server_->Stop(0);
    thread_.join();
  }
  HttpServer& operator*() { return *server_; }
  HttpServer* operator->() { return server_.get(); }
  uint16_t port() const { return port_; }
  bool has_ended() const { return has_ended_; }

 private:
  std::unique_ptr<HttpServer> server_;
  uint16_t port_ = 0;
  std::thread thread_;
  std::atomic<bool> has_ended_{false};
};

inline std::string Get(const std::string& path, const std::string& fields = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n";
}
inline std::string PostText(const std::string& path, const std::string& body,
                            const std::string& fields = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Answers what it was asked.
inline void EchoRequest(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  reply->Send(200, "text/plain",
              request.method + " " + request.path + " " + request.query + " " + request.body);
}

}  // namespace kvrun::serve
