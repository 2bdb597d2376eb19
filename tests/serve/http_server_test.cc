#include "apps/kvserve/http_server.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/http_client.h"

namespace kvrun::serve {
namespace {

// Takes replies and lets the test answer.
class HeldReplies {
 public:
  HttpHandler Handler() {
    return [this](const HttpRequest&, std::shared_ptr<HttpReply> reply) {
      const std::lock_guard lock(mutex_);
      replies_.push_back(std::move(reply));
    };
  }
  // The next one, with which this has no more to do; null: none came.
  std::shared_ptr<HttpReply> Take() {
    std::shared_ptr<HttpReply> reply;
    WaitFor([&] {
      const std::lock_guard lock(mutex_);
      if (replies_.empty()) return false;
      reply = std::move(replies_.front());
      replies_.erase(replies_.begin());
      return true;
    });
    return reply;
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpReply>> replies_;
};

TEST(HttpServer, AnswersWholeAndKeepsTheConnection) {
  RunningServer server(EchoRequest);
  HttpClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.Send(PostText("/a%20b?q=1", "body " + std::to_string(i))));
    const HttpAnswer answer = client.Answer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.is_complete);
    EXPECT_EQ(answer.body, "POST /a b q=1 body " + std::to_string(i));
    EXPECT_NE(answer.head.find("\r\nContent-Type: text/plain\r\n"), std::string::npos);
    EXPECT_NE(answer.head.find("\r\nConnection: keep-alive\r\n"), std::string::npos);
    EXPECT_NE(answer.head.find("\r\nDate: "), std::string::npos);
    EXPECT_EQ(answer.head.find("Access-Control"), std::string::npos);
  }
  EXPECT_EQ(server->n_connections(), 1U);
  ASSERT_TRUE(client.Send(Get("/", "Connection: close\r\n")));
  EXPECT_EQ(client.Answer().status, 200);
  EXPECT_TRUE(client.ReceiveEnd());
  client.Close();
  EXPECT_TRUE(WaitFor([&] { return server->n_connections() == 0; }));
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInTurn) {
  RunningServer server([](const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
    // The first answers come later than the next would.
    if (request.body.size() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EchoRequest(request, reply);
  });
  HttpClient client(server.port());
  std::string all;
  // More than is read ahead of its turn.
  for (int i = 0; i < 20; ++i) all += PostText("/" + std::to_string(i), std::string(i * 1000, 'x'));
  std::thread sender([&] { client.Send(all); });
  for (int i = 0; i < 20; ++i) {
    const HttpAnswer answer = client.Answer();
    ASSERT_EQ(answer.body, "POST /" + std::to_string(i) + "  " + std::string(i * 1000, 'x'));
  }
  sender.join();
  EXPECT_EQ(server->n_connections(), 1U);
}

TEST(HttpServer, BytesComeOneByOneAndInChunks) {
  RunningServer server(EchoRequest);
  HttpClient client(server.port());
  const std::string request =
      "\r\nPOST /x HTTP/1.1\r\nhost: 127.0.0.1:9\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n0004;name=value\r\ndefg\r\n0\r\nAuthorization: trailing\r\n\r\n";
  for (const char c : request) {
    ASSERT_TRUE(client.Send(std::string(1, c)));
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  EXPECT_EQ(client.Answer().body, "POST /x  abcdefg");
  ASSERT_TRUE(client.Send(request));
  EXPECT_EQ(client.Answer().body, "POST /x  abcdefg");
}

TEST(HttpServer, ClientThatExpectsIsToldToContinue) {
  RunningServer server(EchoRequest);
  HttpClient client(server.port());
  ASSERT_TRUE(
      client.Send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"));
  ASSERT_TRUE(client.ReceiveUntil("\r\n\r\n"));
  EXPECT_EQ(client.received(), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(client.Send("b"));
  ASSERT_TRUE(client.Send("ody"));
  EXPECT_EQ(client.Answer().body, "POST /  body");
  EXPECT_EQ(client.n_interim(), 1);
}

TEST(HttpServer, EventsComeInChunks) {
  HeldReplies held;
  RunningServer server(held.Handler());
  HttpClient client(server.port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto reply = held.Take();
  ASSERT_TRUE(reply);
  reply->BeginEvents();
  reply->SendEvent("{\"a\": 1}");
  ASSERT_TRUE(client.ReceiveUntil("data: {\"a\": 1}\n\n\r\n")) << "before the end";
  reply->SendComment("wait");
  reply->SendEvent("two\nlines");
  reply->End();
  reply->SendEvent("after the end");
  reply->Send(500, "text/plain", "after the end");
  const HttpAnswer answer = client.Answer();
  EXPECT_TRUE(answer.is_complete);
  EXPECT_EQ(answer.body, "data: {\"a\": 1}\n\n: wait\n\ndata: two\ndata: lines\n\n");
  for (const char* field :
       {"Content-Type: text/event-stream", "Cache-Control: no-store", "X-Accel-Buffering: no"})
    EXPECT_NE(answer.head.find(std::string("\r\n") + field + "\r\n"), std::string::npos) << field;
  EXPECT_EQ(answer.head.find("Content-Length"), std::string::npos);
  ASSERT_TRUE(client.Send(Get("/")));  // the connection is kept
  held.Take()->Send(204, "", "");
  EXPECT_EQ(client.Answer(false).status, 204);
}

TEST(HttpServer, Http10IsAnsweredAndClosed) {
  HeldReplies held;
  RunningServer server(held.Handler());
  HttpClient whole(server.port());
  ASSERT_TRUE(whole.Send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
  held.Take()->Send(200, "text/plain", "whole");
  EXPECT_EQ(whole.Answer().body, "whole");
  EXPECT_TRUE(whole.ReceiveEnd());
  HttpClient events(server.port());
  ASSERT_TRUE(events.Send("GET / HTTP/1.0\r\n\r\n"));
  const auto reply = held.Take();
  reply->BeginEvents();
  reply->SendEvent("x");
  reply->End();
  const HttpAnswer answer = events.Answer();
  EXPECT_EQ(answer.head.find("Transfer-Encoding"), std::string::npos);
  EXPECT_EQ(answer.body, "data: x\n\n");
}

TEST(HttpServer, HeadIsAnsweredWithoutABody) {
  RunningServer server(EchoRequest);
  HttpClient client(server.port());
  ASSERT_TRUE(client.Send("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n" + Get("/next")));
  const HttpAnswer answer = client.Answer(false);
  EXPECT_NE(answer.head.find("\r\nContent-Length: 8\r\n"), std::string::npos);
  EXPECT_EQ(client.Answer().body, "GET /next  ");
}

TEST(HttpServer, FieldsOfTheAnswerCannotForgeOthers) {
  RunningServer server([](const HttpRequest&, std::shared_ptr<HttpReply> reply) {
    reply->Send(405, "text/plain", "no",
                {{"Allow", "GET"}, {"X-Forged", "a\r\nSet-Cookie: b"}, {"X\r\nY", "c"}});
  });
  HttpClient client(server.port());
  ASSERT_TRUE(client.Send("BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  const HttpAnswer answer = client.Answer();
  EXPECT_EQ(answer.status, 405);
  EXPECT_NE(answer.head.find("\r\nAllow: GET\r\n"), std::string::npos);
  EXPECT_EQ(answer.head.find("Forged"), std::string::npos);
  EXPECT_EQ(answer.head.find("Cookie"), std::string::npos);
}

TEST(HttpServer, HandlerThatFailsIsAnError) {
  RunningServer server([](const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
    if (request.path == "/events") reply->BeginEvents();
    if (request.path == "/events") reply->SendEvent("begun");
    if (request.path == "/throws") throw std::runtime_error("it broke");
    if (request.path == "/odd") throw 7;
    if (request.path == "/answers") reply->Send(200, "text/plain", "answered");
    if (request.path == "/answers") throw std::runtime_error("too late");
  });
  HttpClient client(server.port());
  for (const char* path : {"/throws", "/drops", "/odd"}) {
    ASSERT_TRUE(client.Send(Get(path)));
    const HttpAnswer answer = client.Answer();
    EXPECT_EQ(answer.status, 500) << path;
    const auto error = nlohmann::json::parse(answer.body).at("error");
    EXPECT_EQ(error.at("type"), "server_error");
    if (std::string(path) == "/throws") {
      EXPECT_EQ(error.at("message"), "it broke");
    }
  }
  ASSERT_TRUE(client.Send(Get("/answers")));
  EXPECT_EQ(client.Answer().body, "answered");
  ASSERT_TRUE(client.Send(Get("/events")));
  const HttpAnswer cut = client.Answer();
  EXPECT_EQ(cut.status, 200);
  EXPECT_EQ(cut.body, "data: begun\n\n");
  EXPECT_FALSE(cut.is_complete) << "events that were cut off look so";
}

TEST(HttpServer, SlowHandlersLeaveTheConnectionsAlone) {
  std::atomic<bool> may_go{false};
  RunningServer server([&](const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
    if (request.path == "/slow") WaitFor([&] { return may_go.load(); });
    EchoRequest(request, reply);
  });
  HttpClient slow(server.port());
  ASSERT_TRUE(slow.Send(Get("/slow")));
  HttpClient quick(server.port());
  ASSERT_TRUE(quick.Send(Get("/quick")));
  EXPECT_EQ(quick.Answer().body, "GET /quick  ");
  HttpClient refused(server.port());
  ASSERT_TRUE(refused.Send("garbage\r\n\r\n"));
  EXPECT_EQ(refused.Answer().status, 400);
  may_go = true;
  EXPECT_EQ(slow.Answer().body, "GET /slow  ");
}

TEST(HttpServer, SaysWhyItCannotStart) {
  const auto why = [](const HttpOptions& options) -> std::string {
    try {
      HttpServer::Create(options, EchoRequest);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  };
  RunningServer server(EchoRequest);
  HttpOptions options;
  options.port = server.port();
  EXPECT_NE(why(options).find("port " + std::to_string(server.port()) + " of 127.0.0.1 is in use: "),
            std::string::npos)
      << why(options);
  options.port = 0;
  options.host = "no-such-host.invalid";
  EXPECT_NE(why(options).find("the host \"no-such-host.invalid\" is not known: "), std::string::npos)
      << why(options);
  options.host = "";
  EXPECT_NE(why(options).find("is not known: "), std::string::npos) << why(options);
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1"}) {
    options.host = host;
    EXPECT_NE(why(options).find("a key is required: --api-key-file"), std::string::npos) << why(options);
  }
  options.api_key = "sk-1";  // 192.0.2.1 is nobody's
  EXPECT_NE(why(options).find("is not an address of this machine"), std::string::npos) << why(options);
  options.host = "127.0.0.1";
  for (const std::string& key : {std::string("a b"), std::string("a\n"), std::string(513, 'k')}) {
    options.api_key = key;
    EXPECT_NE(why(options).find("cannot be sent"), std::string::npos) << why(options);
  }
  for (const char* host : {"localhost", "127.0.0.2"}) {
    options.api_key = "";
    options.host = host;
    EXPECT_EQ(why(options), "");
  }
  options.host = "0.0.0.0";
  options.api_key = "sk-1";
  EXPECT_EQ(why(options), "");
}

TEST(HttpServer, StopLetsRepliesEnd) {
  HeldReplies held;
  RunningServer server(held.Handler());
  HttpClient whole(server.port());
  HttpClient events(server.port());
  HttpClient idle(server.port());
  HttpClient half(server.port());
  ASSERT_TRUE(whole.Send(Get("/")));
  const auto whole_reply = held.Take();
  ASSERT_TRUE(events.Send(Get("/")));
  const auto events_reply = held.Take();
  events_reply->BeginEvents();
  ASSERT_TRUE(half.Send("POST / HTTP/1.1\r\n"));
  ASSERT_TRUE(WaitFor([&] { return server->n_connections() == 4; }));
  server->Stop(100);
  EXPECT_TRUE(idle.ReceiveEnd());
  EXPECT_TRUE(half.ReceiveEnd());
  EXPECT_FALSE(HttpClient(server.port()).is_connected());
  EXPECT_FALSE(server.has_ended());
  whole_reply->Send(200, "text/plain", std::string(5'000'000, 'x'));
  const HttpAnswer answer = whole.Answer();
  EXPECT_EQ(answer.body.size(), 5'000'000U);
  EXPECT_NE(answer.head.find("\r\nConnection: close\r\n"), std::string::npos);
  EXPECT_FALSE(server.has_ended());
  events_reply->SendEvent("x");
  events_reply->End();
  EXPECT_TRUE(events.Answer().is_complete);
  EXPECT_TRUE(WaitFor([&] { return server.has_ended(); }));
  EXPECT_FALSE(whole_reply->is_gone());
}

TEST(HttpServer, StopEndsPatience) {
  HeldReplies held;
  RunningServer server(held.Handler());
  HttpClient client(server.port());
  ASSERT_TRUE(client.Send(Get("/")));
  const auto reply = held.Take();
  std::atomic<int> n_gone{0};
  reply->OnGone([&] { ++n_gone; });
  server->Stop(100);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(server.has_ended());
  server->Stop(1);
  EXPECT_TRUE(WaitFor([&] { return server.has_ended(); }));
  EXPECT_TRUE(reply->is_gone());
  EXPECT_EQ(n_gone, 1);
  EXPECT_TRUE(client.ReceiveEnd());
}

HttpServer* g_stopped = nullptr;

TEST(HttpServer, StopsInASignalHandler) {
  RunningServer server(EchoRequest);
  g_stopped = &*server;
  const auto before = signal(SIGUSR1, [](int) { g_stopped->Stop(0); });
  raise(SIGUSR1);
  EXPECT_TRUE(WaitFor([&] { return server.has_ended(); }));
  signal(SIGUSR1, before);
}

TEST(HttpServer, EndsInAnyOrder) {
  HttpOptions options;
  options.port = 0;
  HttpServer::Create(options, EchoRequest);  // never run
  {
    const auto server = HttpServer::Create(options, EchoRequest);
    HttpClient client(server->port());
    client.Send(Get("/"));
    server->Stop(100);
    server->Run();  // has nothing to do
    EXPECT_EQ(server->n_connections(), 0U);
  }
  // Replies outlive it.
  std::shared_ptr<HttpReply> reply;
  HeldReplies held;
  std::atomic<int> n_gone{0};
  {
    RunningServer server(held.Handler());
    HttpClient client(server.port());
    client.Send(Get("/"));
    reply = held.Take();
    reply->OnGone([&] { ++n_gone; });
  }
  EXPECT_EQ(n_gone, 1);
  EXPECT_TRUE(reply->is_gone());
  reply->OnGone([&] { ++n_gone; });
  EXPECT_EQ(n_gone, 2) << "at once";
  reply->BeginEvents();
  reply->SendEvent("x");
  reply->End();
  reply.reset();
  // Run has not returned when the server ends.
  auto server = HttpServer::Create(options, EchoRequest);
  std::atomic<bool> runs{false};
  std::thread runner([&, raw = server.get()] {
    runs = true;
    raw->Run();
  });
  ASSERT_TRUE(WaitFor([&] { return runs.load(); }));
  HttpClient client(server->port());
  client.Send(Get("/"));
  EXPECT_EQ(client.Answer().status, 200);
  server.reset();
  runner.join();
}

}  // namespace
}  // namespace kvrun::serve
