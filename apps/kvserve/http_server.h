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
  std::string host = "127.0.0.1";  // an address of this machine, or a name of one (IPv4 first)
  uint16_t port = 8080;            // 0: one that is free
  std::string api_key;             // "": none is asked for. Needed where `host` is not loopback.
  size_t most_header_bytes = 16 * 1024;
  size_t most_body_bytes = 64 * 1024 * 1024;
  size_t most_bodies_bytes = 256 * 1024 * 1024;  // of all requests that are being read or handled; then 503
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
// the client has gone, is dropped. Where it goes out of scope unanswered, the client is told status 500;
// where events have begun, they are cut off, which clients of HTTP/1.1 notice. It may outlive the server.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  virtual void Send(unsigned status, std::string_view content_type, std::string body,
                    const HttpFields& fields = {}) = 0;
  // Status 200 and text/event-stream; then events; then the end.
  virtual void BeginEvents() = 0;
  // "data: ..." and an empty line. A client that lets 8 MiB of them lie, or takes nothing for
  // send_timeout_s, is disconnected, and so is gone.
  virtual void SendEvent(std::string_view data) = 0;
  virtual void SendComment(std::string_view comment) = 0;  // ": ..." and an empty line: clients ignore it
  virtual void End() = 0;

  // The client has gone: the connection was reset, or closed in both directions. One that has only ended its
  // own sending has not. (To tell these apart, what clients ignore is sent: comments in events, before them
  // "100 Continue". HTTP/1.0 has nothing such before the answer: there it takes a minute or two.)
  virtual bool is_gone() const = 0;
  // Called once, on a thread of the server's, when the client goes before the end, or here and at once where
  // it has gone. What it owns is let go at the end of the reply. It must not wait: connections share that
  // thread.
  virtual void OnGone(std::function<void()> gone) = 0;
};

// On one of two threads of the server's, on which no connection waits. It may answer later, and on another
// thread. What it throws becomes status 500. It is not called for a client that has gone before its turn.
using HttpHandler = std::function<void(const HttpRequest& request, std::shared_ptr<HttpReply> reply)>;

// Answers by itself, in OpenAI's form ({"error": {"message", "type", "param", "code"}}), and closes the
// connection: 400 for what is not HTTP, 401 without the key (in Authorization or x-api-key, compared in
// constant time; GET of /, /health and the page's files needs none), 403 for a Host or an Origin of another
// site, 408, 413, 417, 431, and 503 with Retry-After for one connection too many.
class HttpServer {
 public:
  // Throws std::runtime_error, which says what is to be done, where the address cannot be had.
  static std::unique_ptr<HttpServer> Create(const HttpOptions& options, HttpHandler handler);
  // Ends all connections, and waits for Run and for the handlers that are running.
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  // Serves, on this thread and a few of its own, until Stop. Once.
  virtual void Run() = 0;
  // Any thread, also in a signal handler: takes no more connections and requests. Run returns when the
  // replies that were begun have ended, or after `patience_s`; the earliest of several counts.
  virtual void Stop(uint32_t patience_s) = 0;

  virtual uint32_t n_connections() const = 0;  // that are served
};

}  // namespace kvrun::serve
