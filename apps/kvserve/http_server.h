// HTTP/1.1 for kvrun serve: connections, their limits, and who may ask. It knows nothing of models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvrun::serve {

struct HttpOptions {
  std::string host = "127.0.0.1";  // an address of this machine, or "localhost"
  uint16_t port = 8080;            // 0: one that is free
  std::string api_key;             // "": none is asked for. Needed where `host` is not loopback.
  size_t most_header_bytes = 16 * 1024;
  size_t most_body_bytes = 64 * 1024 * 1024;
  uint32_t most_connections = 256;
  // A request has to be there after so long, and a client to take what it is sent.
  uint32_t request_timeout_s = 60;
  uint32_t send_timeout_s = 60;
  uint32_t idle_timeout_s = 120;  // between two requests of a connection
};

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // decoded, without the query, and without "." and ".." in it: "/v1/models"
  std::string query;   // as it came
  std::string body;
  // The value of a field, by its name in any case; "" where it is missing.
  std::string Field(std::string_view name) const;
  std::vector<std::pair<std::string, std::string>> fields;
};

using HttpFields = std::vector<std::pair<std::string, std::string>>;

// The answer to a request: whole, or as server-sent events. Any thread. What is said after the end, or after
// the client has gone, is dropped. Where it goes out of scope unanswered, the client is told status 500.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  virtual void Send(unsigned status, std::string_view content_type, std::string body,
                    const HttpFields& fields = {}) = 0;
  // Status 200 and text/event-stream; then events; then the end.
  virtual void BeginEvents() = 0;
  virtual void SendEvent(std::string_view data) = 0;       // "data: ..." and an empty line; of one line
  virtual void SendComment(std::string_view comment) = 0;  // ": ..." and an empty line: clients ignore it
  virtual void End() = 0;

  // The client has gone: the connection was reset, or closed in both directions. One that has only ended its
  // own sending has not.
  virtual bool is_gone() const = 0;
  // Called once, on a thread of the server's, when the client goes before the end; at once where it has gone.
  virtual void OnGone(std::function<void()> gone) = 0;
};

// On a thread of the server's; others are served meanwhile. It may answer later, and on another thread. What
// it throws becomes status 500.
using HttpHandler = std::function<void(const HttpRequest& request, std::shared_ptr<HttpReply> reply)>;

// Answers by itself, in OpenAI's form ({"error": {"message", "type", "param", "code"}}): 400 for what is not
// HTTP, 401 without the key (compared in constant time; GET / and /health need none), 403 for a Host or an
// Origin of another site, 408, 413, 431, and 503 with Retry-After for one connection too many.
class HttpServer {
 public:
  // Throws std::runtime_error, which says what is to be done, where the address cannot be had.
  static std::unique_ptr<HttpServer> Create(const HttpOptions& options, HttpHandler handler);
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  // Serves, on this thread and a few of its own, until Stop.
  virtual void Run() = 0;
  // Any thread, also a signal handler's: takes no more connections and requests. Run returns when the replies
  // that were begun have ended, or after `patience_s`.
  virtual void Stop(uint32_t patience_s) = 0;

  virtual uint32_t n_connections() const = 0;
};

}  // namespace kvrun::serve
