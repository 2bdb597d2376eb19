// Clients that go, that end their sending, that are silent, and that do not read.
#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "tests/support/http_client.h"

namespace kvrun::serve {
namespace {

using Clock = std::chrono::steady_clock;

enum class Leaving { kClose, kReset, kCloseAfterHalf };

struct Waiting {
  std::atomic<bool> has_come{false};
  std::atomic<int> n_gone{0};
  std::mutex mutex;
  std::shared_ptr<HttpReply> reply;
};

HttpHandler Wait(Waiting* waiting, bool begins_events) {
  return [waiting, begins_events](const HttpRequest&, std::shared_ptr<HttpReply> reply) {
    reply->OnGone([waiting] { ++waiting->n_gone; });
    if (begins_events) reply->BeginEvents();
    const std::lock_guard lock(waiting->mutex);
    waiting->reply = std::move(reply);
    waiting->has_come = true;
  };
}

// How long it takes to be seen, in ms; -1: it is not.
int64_t LeaveMs(Leaving leaving, bool in_events) {
  Waiting waiting;
  RunningServer server(Wait(&waiting, in_events));
  HttpClient client(server.port());
  client.Send(PostText("/", "body"));
  if (!WaitFor([&] { return waiting.has_come.load(); })) return -1;
  if (in_events && !client.ReceiveUntil("\r\n\r\n")) return -1;
  if (leaving == Leaving::kCloseAfterHalf) {
    client.EndSending();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_FALSE(waiting.reply->is_gone());
  }
  const auto begin = Clock::now();
  leaving == Leaving::kReset ? client.Reset() : client.Close();
  if (!WaitFor([&] { return waiting.n_gone == 1; })) return -1;
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
  EXPECT_TRUE(waiting.reply->is_gone());
  EXPECT_TRUE(WaitFor([&] { return server->n_connections() == 0; }));
  waiting.reply->SendEvent("dropped");
  waiting.reply->End();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(waiting.n_gone, 1) << "once";
  return ms;
}

TEST(HttpGone, LeavingIsSeenSoon) {
  for (const Leaving leaving : {Leaving::kClose, Leaving::kReset, Leaving::kCloseAfterHalf}) {
    for (const bool in_events : {false, true}) {
      int64_t least_ms = 1'000'000;  // of a few, as the machine may be loaded
      for (int i = 0; i < 3; ++i) {
        const int64_t ms = LeaveMs(leaving, in_events);
        ASSERT_GE(ms, 0) << "not seen at all";
        least_ms = std::min(least_ms, ms);
      }
      EXPECT_LT(least_ms, 300) << static_cast<int>(leaving)
                               << (in_events ? " in events" : " before the answer");
    }
  }
}

// When probes have become rare, a reset is still seen at once. (The next probe is half a second away.)
TEST(HttpGone, LateResetIsSeenSoon) {
  int64_t ms = 1'000'000;
  for (int i = 0; i < 3 && ms >= 300; ++i) {  // the machine may be loaded
    Waiting waiting;
    RunningServer server(Wait(&waiting, false));
    HttpClient client(server.port());
    client.Send(Get("/"));
    client.EndSending();
    std::this_thread::sleep_for(std::chrono::milliseconds(2600));
    const auto begin = Clock::now();
    client.Reset();
    ASSERT_TRUE(WaitFor([&] { return waiting.n_gone == 1; }));
    ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
  }
  EXPECT_LT(ms, 300);
}

// One that comes ahead of its turn, with more than is read ahead, does not hide it.
TEST(HttpGone, LeavingIsSeenBehindAnotherRequest) {
  Waiting waiting;
  RunningServer server(Wait(&waiting, false));
  HttpClient client(server.port());
  client.Send(Get("/") + PostText("/next", std::string(100'000, 'x')));
  ASSERT_TRUE(WaitFor([&] { return waiting.has_come.load(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_FALSE(waiting.reply->is_gone());
  client.Close();
  EXPECT_TRUE(WaitFor([&] { return waiting.n_gone == 1; }));
}

TEST(HttpGone, EndOfSendingIsNotGone) {
  for (const bool in_events : {false, true}) {
    Waiting waiting;
    RunningServer server(Wait(&waiting, in_events));
    HttpClient client(server.port());
    client.Send(Get("/"));
    client.EndSending();
    ASSERT_TRUE(WaitFor([&] { return waiting.has_come.load(); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // the probes become rare
    EXPECT_FALSE(waiting.reply->is_gone());
    if (in_events) {
      waiting.reply->SendEvent("still");
      waiting.reply->End();
    } else {
      waiting.reply->Send(200, "text/plain", "still");
    }
    const HttpAnswer answer = client.Answer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.is_complete);
    EXPECT_NE(answer.body.find("still"), std::string::npos);
    if (!in_events) {
      EXPECT_GT(client.n_interim(), 5);
      EXPECT_LT(client.n_interim(), 40);
    }
    EXPECT_TRUE(client.ReceiveEnd());
    EXPECT_EQ(waiting.n_gone, 0);
  }
}

TEST(HttpGone, QuickAnswerAfterTheEndOfSendingComesAlone) {
  RunningServer server(EchoRequest);
  HttpClient client(server.port());
  client.Send(Get("/1") + Get("/2"));
  client.EndSending();
  EXPECT_EQ(client.Answer().body, "GET /1  ");
  EXPECT_EQ(client.Answer().body, "GET /2  ");
  EXPECT_TRUE(client.ReceiveEnd());
}

TEST(HttpGone, SilenceIsNotGone) {
  HttpOptions options;
  options.request_timeout_s = options.idle_timeout_s = options.send_timeout_s = 1;
  Waiting waiting;
  RunningServer server(Wait(&waiting, false), options);
  HttpClient client(server.port());
  client.Send(Get("/"));
  ASSERT_TRUE(WaitFor([&] { return waiting.has_come.load(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_FALSE(waiting.reply->is_gone());
  waiting.reply->Send(200, "text/plain", "late");
  EXPECT_EQ(client.Answer().body, "late");
  EXPECT_EQ(client.n_interim(), 0) << "a client that has not ended its sending is not probed";
}

TEST(HttpGone, AfterTheEndNobodyGoes) {
  Waiting waiting;
  RunningServer server(Wait(&waiting, false));
  HttpClient client(server.port());
  client.Send(Get("/"));
  ASSERT_TRUE(WaitFor([&] { return waiting.has_come.load(); }));
  const auto owned = std::make_shared<int>(1);
  waiting.reply->OnGone([&waiting, owned] { ++waiting.n_gone; });
  EXPECT_EQ(owned.use_count(), 2);
  waiting.reply->Send(200, "text/plain", "x");
  EXPECT_EQ(owned.use_count(), 1) << "let go";
  waiting.reply->OnGone([&waiting] { ++waiting.n_gone; });
  EXPECT_EQ(client.Answer().body, "x");
  client.Reset();
  EXPECT_TRUE(WaitFor([&] { return server->n_connections() == 0; }));
  EXPECT_EQ(waiting.n_gone, 0);
}

// Its handler is spared the work.
TEST(HttpGone, ClientThatGoesBeforeItsTurnIsNotHandled) {
  std::atomic<int> n_begun{0};
  std::atomic<bool> may_go{false};
  RunningServer server([&](const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
    ++n_begun;
    if (request.path == "/slow") WaitFor([&] { return may_go.load(); });
    EchoRequest(request, reply);
  });
  HttpClient first(server.port());
  HttpClient second(server.port());
  first.Send(Get("/slow"));
  second.Send(Get("/slow"));
  ASSERT_TRUE(WaitFor([&] { return n_begun == 2; }));
  HttpClient third(server.port());
  third.Send(Get("/third"));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  third.Reset();
  ASSERT_TRUE(WaitFor([&] { return server->n_connections() == 2; }));
  may_go = true;
  EXPECT_EQ(first.Answer().status, 200);
  EXPECT_EQ(second.Answer().status, 200);
  first.Send(Get("/last"));
  EXPECT_EQ(first.Answer().status, 200);
  EXPECT_EQ(n_begun, 3);
}

TEST(HttpGone, SlowReaderIsDroppedAndBlocksNobody) {
  Waiting waiting;
  std::atomic<uint64_t> sent_bytes{0};
  RunningServer server([&](const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
    if (request.path != "/events") return EchoRequest(request, reply);
    reply->OnGone([&] { ++waiting.n_gone; });
    reply->BeginEvents();
    const std::string event(10'000, 'e');
    while (!reply->is_gone() && sent_bytes < 1'000'000'000) {
      reply->SendEvent(event);
      sent_bytes += event.size();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  HttpClient slow(server.port(), INADDR_LOOPBACK, 4096);
  slow.Send(Get("/events"));
  ASSERT_TRUE(WaitFor([&] { return sent_bytes > 100'000; }));
  HttpClient other(server.port());
  other.Send(Get("/other"));
  EXPECT_EQ(other.Answer().body, "GET /other  ");
  EXPECT_TRUE(WaitFor([&] { return waiting.n_gone == 1; }, 60'000));
  EXPECT_GE(sent_bytes, 8'000'000U);
  EXPECT_LT(sent_bytes, 100'000'000U);
  other.Send(Get("/again"));
  EXPECT_EQ(other.Answer().body, "GET /again  ");
}

TEST(HttpGone, ClientThatTakesNothingIsDropped) {
  HttpOptions options;
  options.send_timeout_s = 1;
  RunningServer server(
      [](const HttpRequest&, std::shared_ptr<HttpReply> reply) {
        reply->Send(200, "text/plain", std::string(64'000'000, 'x'));
      },
      options);
  HttpClient client(server.port(), INADDR_LOOPBACK, 4096);
  client.Send(Get("/"));
  ASSERT_TRUE(client.ReceiveUntil("\r\n\r\n"));
  EXPECT_EQ(server->n_connections(), 1U);
  EXPECT_TRUE(WaitFor([&] { return server->n_connections() == 0; }));
  // One that takes a little at a time is not.
  HttpClient patient(server.port());
  patient.Send(Get("/"));
  for (int i = 0; i < 25; ++i) {
    ASSERT_TRUE(patient.Receive());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(patient.Answer().is_complete);
}

size_t CountDescriptors() {
  size_t n = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++n;
  closedir(folder);
  return n;
}

TEST(HttpGone, NoDescriptorIsLeftBehind) {
  const size_t before = CountDescriptors();
  {
    RunningServer server(EchoRequest);
    const size_t with_server = CountDescriptors();
    for (int i = 0; i < 300; ++i) {
      HttpClient client(server.port());
      if (i % 5 != 0) client.Send(i % 3 == 0 ? "garbage\r\n\r\n" : Get("/"));
      if (i % 2 == 0) client.Receive(i % 5 == 0 ? 0 : 5000);
      i % 7 == 0 ? client.Reset() : client.Close();
    }
    EXPECT_TRUE(WaitFor([&] { return server->n_connections() == 0; }));
    EXPECT_TRUE(WaitFor([&] { return CountDescriptors() == with_server; }));
  }
  EXPECT_EQ(CountDescriptors(), before);
}

}  // namespace
}  // namespace kvrun::serve
