// What the server refuses, over real connections, and what it makes of garbage.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/kvserve/http_reader.h"
#include "tests/support/http_client.h"

namespace kvrun::serve {
namespace {

HttpOptions SmallLimits() {
  HttpOptions options;
  options.most_header_bytes = 1000;
  options.most_body_bytes = 5000;
  options.request_timeout_s = 1;
  return options;
}

// Asks on a connection of its own, which the server has to close after a refusal; what it says is JSON.
HttpAnswer Refused(uint16_t port, const std::string& request) {
  HttpClient client(port);
  client.Send(request);
  HttpAnswer answer = client.Answer();
  if (answer.status < 400) return answer;
  EXPECT_TRUE(answer.is_complete) << request.substr(0, 200);
  EXPECT_TRUE(client.ReceiveEnd()) << request.substr(0, 200);
  EXPECT_NE(answer.head.find("\r\nConnection: close\r\n"), std::string::npos);
  EXPECT_NE(answer.head.find("\r\nContent-Type: application/json\r\n"), std::string::npos);
  EXPECT_TRUE(nlohmann::json::parse(answer.body).at("error").at("message").is_string());
  return answer;
}
int StatusFor(uint16_t port, const std::string& request) { return Refused(port, request).status; }

TEST(HttpLimits, HeaderAndBody) {
  RunningServer server(EchoRequest, SmallLimits());
  const uint16_t port = server.port();
  EXPECT_EQ(StatusFor(port, Get("/", "X: " + std::string(900, 'x') + "\r\n")), 200);
  EXPECT_EQ(StatusFor(port, Get("/", "X: " + std::string(1000, 'x') + "\r\n")), 431);
  EXPECT_EQ(StatusFor(port, Get("/" + std::string(1000, 'x'))), 431);
  EXPECT_EQ(StatusFor(port, "GET /" + std::string(5000, 'x')), 431) << "without an end";
  EXPECT_EQ(StatusFor(port, Get("/" + std::string(600, 'x'), "X: " + std::string(600, 'x') + "\r\n")), 431)
      << "the first line counts, too";
  std::string fields;
  for (int i = 0; i < 100; ++i) fields += "X: 0123456789\r\n";
  EXPECT_EQ(StatusFor(port, Get("/", fields)), 431) << "many small ones";
  EXPECT_EQ(StatusFor(port, PostText("/", std::string(5000, 'x'))), 200);
  EXPECT_EQ(StatusFor(port, PostText("/", std::string(5001, 'x'))), 413);
  EXPECT_EQ(StatusFor(port, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5001\r\n\r\n"), 413)
      << "before it comes";
  EXPECT_EQ(
      StatusFor(port, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n"),
      400);
  const std::string chunked = "POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(StatusFor(port, chunked + "1388\r\n" + std::string(5000, 'x') + "\r\n0\r\n\r\n"), 200);
  EXPECT_EQ(StatusFor(port, chunked + "1388\r\n" + std::string(5000, 'x') + "\r\n1\r\nx\r\n0\r\n\r\n"), 413);
  EXPECT_EQ(StatusFor(port, chunked + "ffffffffffffffff\r\n"), 413);
  EXPECT_EQ(StatusFor(port, chunked + "1;" + std::string(5000, 'x')), 431) << "a chunk's own header";
  EXPECT_EQ(StatusFor(port, chunked + "0\r\nX: " + std::string(5000, 'x')), 431) << "trailers";
}

// Field by field, each in a write of its own.
TEST(HttpLimits, HeaderThatComesInPieces) {
  HttpOptions options = SmallLimits();
  options.request_timeout_s = 60;
  RunningServer server(EchoRequest, options);
  HttpClient client(server.port());
  client.Send("GET / HTTP/1.1\r\n");
  bool is_open = true;
  for (int i = 0; i < 1000 && is_open; ++i) {
    is_open = client.Send("X: 0123456789\r\n") && !client.Receive(2);
  }
  EXPECT_FALSE(is_open);
  EXPECT_EQ(client.Answer().status, 431);
}

// The client hears why while it goes on sending.
TEST(HttpLimits, LargeBodyIsRefusedAudibly) {
  RunningServer server(EchoRequest, SmallLimits());
  HttpClient client(server.port());
  client.Send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50000000\r\n\r\n");
  bool is_sent = false;
  std::thread sender([&] { is_sent = client.Send(std::string(50'000'000, 'x')); });
  EXPECT_EQ(client.Answer().status, 413);
  sender.join();
  EXPECT_TRUE(is_sent) << "not reset: many clients say what they were told only then";
}

TEST(HttpLimits, SlowRequests) {
  RunningServer server(EchoRequest, SmallLimits());
  for (const char* request : {"GET / HT", "GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
                              "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc"})
    EXPECT_EQ(StatusFor(server.port(), request), 408) << request;
  HttpClient trickle(server.port());
  trickle.Send("GET / HTTP/1.1\r\n");
  while (trickle.Send("x:y\r\n") && !trickle.Receive(100)) {
  }
  EXPECT_EQ(trickle.Answer().status, 408) << "each byte does not begin the time anew";
  HttpClient silent(server.port());
  EXPECT_TRUE(silent.ReceiveEnd());
  EXPECT_EQ(silent.received(), "");
}

TEST(HttpLimits, IdleConnectionIsClosed) {
  HttpOptions options;
  options.idle_timeout_s = 1;
  RunningServer server(EchoRequest, options);
  HttpClient client(server.port());
  client.Send(Get("/"));
  EXPECT_EQ(client.Answer().status, 200);
  EXPECT_TRUE(client.ReceiveEnd());
  EXPECT_EQ(client.received(), "");
}

TEST(HttpLimits, Connections) {
  HttpOptions options;
  options.most_connections = 3;
  RunningServer server(EchoRequest, options);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server.port()));
    clients.back()->Send(Get("/"));
    EXPECT_EQ(clients.back()->Answer().status, 200);
  }
  const HttpAnswer refused = Refused(server.port(), Get("/"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.head.find("\r\nRetry-After: 1\r\n"), std::string::npos);
  // A flood is closed, at least; and those that are served stay so.
  std::vector<std::unique_ptr<HttpClient>> flood;
  for (int i = 0; i < 200; ++i) flood.push_back(std::make_unique<HttpClient>(server.port()));
  clients[0]->Send(Get("/"));
  EXPECT_EQ(clients[0]->Answer().status, 200);
  EXPECT_EQ(server->n_connections(), 3U);
  flood.clear();
  clients.pop_back();
  EXPECT_TRUE(WaitFor([&] { return server->n_connections() == 2; }));
  EXPECT_EQ(StatusFor(server.port(), Get("/", "Connection: close\r\n")), 200);
}

TEST(HttpLimits, BodiesTogether) {
  HttpOptions options;
  options.most_bodies_bytes = 10'000;
  std::atomic<bool> may_go{false};
  std::atomic<int> n_begun{0};
  RunningServer server(
      [&](const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
        ++n_begun;
        if (request.path == "/slow") WaitFor([&] { return may_go.load(); });
        EchoRequest(request, reply);
      },
      options);
  HttpClient first(server.port());
  first.Send(PostText("/slow", std::string(9000, 'x')));
  ASSERT_TRUE(WaitFor([&] { return n_begun == 1; }));
  EXPECT_EQ(StatusFor(server.port(), PostText("/", std::string(900, 'x'))), 200);
  const HttpAnswer refused = Refused(server.port(), PostText("/", std::string(1100, 'x')));
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.head.find("\r\nRetry-After: 1\r\n"), std::string::npos);
  may_go = true;
  EXPECT_EQ(first.Answer().status, 200);
  EXPECT_TRUE(
      WaitFor([&] { return StatusFor(server.port(), PostText("/", std::string(9500, 'x'))) == 200; }));
}

TEST(HttpLimits, SitesAndKeys) {
  std::atomic<int> n_handled{0};
  const HttpHandler handler = [&](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
    ++n_handled;
    EchoRequest(request, reply);
  };
  const auto ask = [](const std::string& host, const std::string& fields) {
    return "POST /v1/x HTTP/1.1\r\nHost: " + host + "\r\n" + fields + "Content-Length: 0\r\n\r\n";
  };
  {
    RunningServer server(handler);
    const uint16_t port = server.port();
    const std::string own = "localhost:" + std::to_string(port);
    EXPECT_EQ(StatusFor(port, ask(own, "Origin: http://" + own + "\r\n")), 200);
    n_handled = 0;
    EXPECT_EQ(StatusFor(port, ask("evil.example:" + std::to_string(port), "")), 403);
    EXPECT_EQ(StatusFor(port, ask(own, "Origin: https://evil.example\r\n")), 403);
    EXPECT_EQ(StatusFor(port, ask(own, "Origin: null\r\n")), 403);
    EXPECT_EQ(n_handled, 0);
  }
  HttpOptions options;
  options.host = "0.0.0.0";
  options.api_key = "sk-secret";
  RunningServer server(handler, options);
  const HttpAnswer refused = Refused(server.port(), ask("kv.example", ""));
  EXPECT_EQ(refused.status, 401);
  EXPECT_NE(refused.head.find("\r\nWWW-Authenticate: Bearer\r\n"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(refused.body).at("error").at("code"), "invalid_api_key");
  EXPECT_EQ(StatusFor(server.port(), ask("kv.example", "Authorization: Bearer sk-wrong\r\n")), 401);
  // Trailers, which come after the check, change nothing.
  EXPECT_EQ(StatusFor(server.port(),
                      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                      "0\r\nAuthorization: Bearer sk-secret\r\n\r\n"),
            401);
  EXPECT_EQ(n_handled, 0);
  EXPECT_EQ(StatusFor(server.port(), ask("kv.example", "Authorization: Bearer sk-secret\r\n")), 200);
  EXPECT_EQ(StatusFor(server.port(), ask("kv.example", "x-api-key: sk-secret\r\n")), 200);
  EXPECT_EQ(StatusFor(server.port(), "GET /health HTTP/1.1\r\nHost: kv.example\r\n\r\n"), 200);
}

TEST(HttpLimits, WhatCouldBeReadInTwoWays) {
  RunningServer server(EchoRequest);
  const auto post = [](const std::string& fields) {
    return "POST / HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n0\r\n\r\n";
  };
  for (const char* fields :
       {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: 5, 5\r\n", "Content-Length: +5\r\n",
        "Content-Length: -1\r\n", "Content-Length: 0x5\r\n", "Content-Length : 5\r\n",
        "Transfer-Encoding: gzip\r\n", "Transfer-Encoding: chunked, gzip\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: xchunked\r\n",
        "Host: localhost\r\n", "X: a\nY: b\r\n", "X\r\n", ": x\r\n"})
    EXPECT_EQ(StatusFor(server.port(), post(fields)), 400) << fields;
  for (const char* request :
       {"GET / HTTP/1.1\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/2.0\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS\r\n\r\n",
        "G\x01T / HTTP/1.1\r\n\r\n", "GET /../x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET evil HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n"})
    EXPECT_EQ(StatusFor(server.port(), request), 400) << request;
}

// Well-formed and malformed requests, changed here and there.
class RequestMaker {
 public:
  explicit RequestMaker(uint32_t seed) : random_(seed) {}

  std::string Make() {
    static const std::vector<std::string> kSeeds = {
        Get("/whole"),
        Get("/events?x=%20", "Accept: */*\r\nConnection: keep-alive\r\n"),
        PostText("/whole", "{\"a\": [1, 2]}"),
        "POST /throws HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n"
        "3;x=\"y\"\r\nefg\r\n0\r\nTrailer: t\r\n\r\n",
        "POST /drops HTTP/1.1\r\nHost: [::1]:80\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nxy",
        "GET / HTTP/1.0\r\n\r\n",
        "HEAD /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n",
        "GET http://localhost/whole HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n"};
    std::string request = kSeeds[Below(kSeeds.size())];
    if (Below(4) == 0) request += kSeeds[Below(kSeeds.size())];
    for (size_t n = Below(6); n > 0; --n) Change(&request);
    return request;
  }
  size_t Below(size_t n) { return random_() % n; }

 private:
  void Change(std::string* request) {
    static const std::vector<std::string> kParts = {"\r\n",
                                                    "\n",
                                                    "\r",
                                                    "\r\n\r\n",
                                                    std::string(1, '\0'),
                                                    " ",
                                                    "\t",
                                                    ":",
                                                    "%",
                                                    "/../",
                                                    "HTTP/1.1",
                                                    "chunked",
                                                    "Content-Length: 18446744073709551616\r\n",
                                                    "Transfer-Encoding: chunked\r\n",
                                                    "Host: localhost\r\n",
                                                    "0\r\n\r\n",
                                                    "ffffffffffffffff\r\n",
                                                    "-1",
                                                    "\xff\xfe",
                                                    "Connection: close\r\n",
                                                    std::string(1200, 'a')};
    const size_t at = Below(request->size() + 1);
    switch (Below(5)) {
      case 0: request->insert(at, kParts[Below(kParts.size())]); break;
      case 1: request->erase(at, Below(10)); break;
      case 2:
        if (at < request->size()) (*request)[at] = static_cast<char>(Below(256));
        break;
      case 3: request->resize(at); break;
      default: request->insert(at, request->substr(Below(request->size() + 1), Below(60))); break;
    }
  }
  std::mt19937 random_;
};

bool IsLongFuzz() {
  const char* value = std::getenv("KVRUN_LONG_TESTS");
  return value != nullptr && std::string(value) == "1";
}

TEST(HttpLimits, ReaderTakesAnything) {
  HttpOptions options = SmallLimits();
  RequestMaker maker(1);
  std::set<unsigned> statuses;
  size_t n_done = 0;
  for (int i = 0; i < (IsLongFuzz() ? 1'000'000 : 30'000); ++i) {
    const std::string request = maker.Make();
    RequestReader reader(options);
    auto state = RequestReader::State::kHead;
    std::string input;
    for (size_t at = 0; at < request.size();) {
      const size_t n = maker.Below(2) == 0 ? request.size() - at : 1 + maker.Below(20);
      input += request.substr(at, n);
      at += n;
      state = reader.Read(&input);
      if (state == RequestReader::State::kRefused || state == RequestReader::State::kDone) break;
    }
    if (state == RequestReader::State::kRefused) statuses.insert(reader.refusal().status);
    if (state == RequestReader::State::kDone) {
      const HttpRequest taken = reader.Take();
      ++n_done;
      ASSERT_LE(taken.body.size(), options.most_body_bytes);
      ASSERT_TRUE(taken.path == "*" || taken.path.substr(0, 1) == "/") << request;
      ASSERT_EQ(taken.path.find("/../"), std::string::npos) << request;
    }
  }
  EXPECT_GT(n_done, 5000U);
  EXPECT_EQ(statuses, (std::set<unsigned>{400, 403, 413, 417, 431}));
}

TEST(HttpLimits, GarbageOverConnections) {
  HttpOptions options;
  options.most_header_bytes = 1000;
  options.most_body_bytes = 5000;
  RunningServer server(
      [](const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
        if (request.path == "/throws") throw std::runtime_error("thrown");
        if (request.path == "/drops") return;
        if (request.path != "/events") return EchoRequest(request, reply);
        reply->BeginEvents();
        reply->SendEvent("x");
        reply->End();
      },
      options);
  RequestMaker maker(2);
  const std::set<int> kStatuses = {100, 200, 400, 403, 413, 417, 431, 500};
  const int n_requests = IsLongFuzz() ? 100'000 : 4000;
  for (int i = 0; i < n_requests; ++i) {
    const std::string request = maker.Make();
    HttpClient client(server.port(), INADDR_LOOPBACK + static_cast<uint32_t>(i % 100));
    ASSERT_TRUE(client.is_connected()) << i;
    const size_t cut = maker.Below(request.size() + 1);
    client.Send(std::string_view(request).substr(0, cut));
    client.Send(std::string_view(request).substr(cut));
    if (maker.Below(20) == 0) {
      client.Reset();
      continue;
    }
    client.EndSending();
    ASSERT_TRUE(client.ReceiveEnd()) << "hangs: " << request;
    const std::string& received = client.received();
    if (received.empty()) continue;
    ASSERT_EQ(received.substr(0, 9), "HTTP/1.1 ") << request;
    ASSERT_EQ(kStatuses.count(std::atoi(received.c_str() + 9)), 1U) << request << received;
  }
  EXPECT_EQ(StatusFor(server.port(), Get("/whole")), 200);
  EXPECT_TRUE(WaitFor([&] { return server->n_connections() == 0; }));
}

}  // namespace
}  // namespace kvrun::serve
