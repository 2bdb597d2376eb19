// The server over the library's scheduler, with a device that is a fake: many clients at once, some of which
// go away, and an end in the midst of it. ThreadSanitizer looks at this one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "apps/common/api.h"
#include "apps/kvserve/service.h"
#include "tests/support/capi_fixture.h"
#include "tests/support/http_client.h"

namespace kvrun::serve {
namespace {

class ServiceLoadTest : public testing::CapiFixture {
 protected:
  void SetUp() override {
    testing::CapiFixture::SetUp();
    model_owner_.reset(model_);
    kvrun_scheduler_options options;
    kvrun_scheduler_options_init(&options);
    options.folder = "";
    options.n_ctx = 2048;
    options.most_queued = 8;
    ASSERT_EQ(kvrun_scheduler_create(engine_, &options, &scheduler_), KVRUN_OK) << testing::LastError();
    Backend backend;
    backend.model = &model_owner_;
    backend.scheduler = scheduler_;
    backend.model_name = "tiny";
    backend.n_ctx = 2048;
    backend.most_answer = 100;
    kvrun_generate_options_init(&backend.defaults);
    backend.defaults.ignore_end = 1;
    backend.text_defaults = backend.defaults;
    service_ = std::make_unique<Service>(std::move(backend));
    HttpOptions http;
    http.port = 0;
    server_ =
        HttpServer::Create(http, [this](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
          service_->Handle(request, reply);
        });
    serving_ = std::thread([this] {
      server_->Run();
      has_ended_ = true;
    });
    stepping_ = std::thread([this] {
      while (!has_ended_) {
        EXPECT_EQ(kvrun_scheduler_step(scheduler_, 5, nullptr), KVRUN_OK);
        service_->Tick();
      }
    });
  }

  // In the order of kvrun serve.
  void End(uint32_t patience_s) {
    if (server_ == nullptr) return;
    server_->Stop(patience_s);
    serving_.join();
    stepping_.join();
    server_.reset();
    kvrun_scheduler_destroy(scheduler_);
    service_.reset();
  }

  void TearDown() override {
    End(0);
    (void)model_owner_.release();
    testing::CapiFixture::TearDown();
  }

  // Each prompt has its own, of up to 200 tokens.
  static std::string Body(int prompt, bool stream, uint32_t n_tokens) {
    std::string ids;
    for (int i = 0; i < 1 + prompt * 37 % 200; ++i)
      ids += fmt::format("{}{}", i == 0 ? "" : ",", (i * 31 + prompt * 7 + 5) % 250);
    return fmt::format(
        R"({{"prompt": [{}], "temperature": 0, "max_tokens": {}, "stream": {}, "logprobs": 1}})", ids,
        n_tokens, stream);
  }
  static std::string Post(const std::string& body, const char* path = "/v1/completions") {
    return fmt::format("POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n{}", path,
                       body.size(), body);
  }
  HttpAnswer Ask(const std::string& request) const {
    HttpClient client(server_->port());
    EXPECT_TRUE(client.Send(request));
    return client.Answer();
  }
  // The ids of the tokens cannot be seen: their log-probabilities are as good.
  static std::string Told(const HttpAnswer& answer, bool stream) {
    std::string told;
    const auto add = [&told](const std::string& text) {
      const cli::Json json = cli::ParseJson(text);
      if (json.is_discarded()) return;  // the end of a stream
      for (const cli::Json& choice : json.value("choices", cli::Json::array())) {
        if (!choice.value("logprobs", cli::Json()).is_object()) continue;
        for (const cli::Json& logprob : choice["logprobs"]["token_logprobs"])
          told += cli::DumpJson(logprob) + " ";
      }
    };
    if (!stream) add(answer.body);
    for (size_t at = 0; stream && (at = answer.body.find("data: ", at)) != std::string::npos;) {
      const size_t end = answer.body.find('\n', at);
      add(answer.body.substr(at + 6, end - at - 6));
      at = end;
    }
    return told;
  }

  cli::Model model_owner_;
  kvrun_scheduler* scheduler_ = nullptr;
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> server_;
  std::atomic<bool> has_ended_ = false;
  std::thread serving_;
  std::thread stepping_;
};

TEST_F(ServiceLoadTest, NothingIsLostOrMixedUp) {
  constexpr int kPrompts = 10;
  constexpr int kClients = 24;
  constexpr int kTurns = 12;
  std::vector<std::string> alone;
  for (int i = 0; i < kPrompts; ++i) {
    const HttpAnswer answer = Ask(Post(Body(i, false, 20)));
    ASSERT_EQ(answer.status, 200) << answer.body;
    alone.push_back(Told(answer, false));
    ASSERT_FALSE(alone.back().empty());
  }
  EXPECT_NE(alone[0], alone[1]);
  std::atomic<int> n_answered = 0;
  const auto client = [&](int number) {
    for (int turn = 0; turn < kTurns; ++turn) {
      const int prompt = (number * 7 + turn) % kPrompts;
      const bool stream = (number + turn) % 2 == 0;
      const int kind = (number + turn * 5) % 6;
      HttpClient http(server_->port());
      if (kind == 0) {  // goes at any time
        http.Send(Post(Body(prompt, stream, 500)));
        if (turn % 3 == 0) http.Receive(5);
        if (turn % 2 == 0) http.Reset();
      } else if (kind == 1) {
        http.Send(turn % 2 == 0 ? Post("{\"prompt\": [1, 5000]}") : Post("{\"prompt\": }"));
        EXPECT_EQ(http.Answer().status, 400);
      } else if (kind == 2) {
        http.Send(fmt::format("GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
                              turn % 2 == 0 ? "/status" : "/metrics"));
        EXPECT_EQ(http.Answer().status, 200);
      } else {
        http.Send(Post(Body(prompt, stream, 20)));
        const HttpAnswer answer = http.Answer();
        EXPECT_TRUE(answer.is_complete);
        if (answer.status == 503) {
          EXPECT_NE(answer.head.find("\r\nRetry-After: "), std::string::npos);
          continue;
        }
        ++n_answered;
        EXPECT_EQ(answer.status, 200) << answer.body;
        EXPECT_EQ(Told(answer, stream), alone[static_cast<size_t>(prompt)]);
      }
    }
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) clients.emplace_back(client, i);
  for (std::thread& one : clients) one.join();
  EXPECT_GT(n_answered, kClients);
  EXPECT_TRUE(WaitFor([&] {
    const cli::Json status = cli::ParseJson(Ask("GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").body);
    return status["requests"].empty() && status["n_queued"] == 0;
  }));
  EXPECT_TRUE(WaitFor([&] { return server_->n_connections() == 0; }));
}

// Who waits is told; what is under way uses nothing that is gone.
TEST_F(ServiceLoadTest, EndsInTheMidstOfIt) {
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server_->port()));
    ASSERT_TRUE(clients.back()->Send(Post(Body(i, i % 2 == 0, 1800))));
  }
  clients[0]->ReceiveUntil("data: ");
  End(0);
  for (const auto& client : clients) EXPECT_TRUE(client->ReceiveEnd());
}

// A request of several answers is refused as one: those that were begun end.
TEST_F(ServiceLoadTest, WhatDoesNotAllFitIsRefused) {
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 7; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server_->port()));
    ASSERT_TRUE(clients.back()->Send(Post(Body(i, true, 1800))));
    ASSERT_TRUE(clients.back()->ReceiveUntil("HTTP/1.1 200"));
  }
  std::string many = Body(8, false, 20);
  many.insert(1, "\"n\": 16, ");
  const HttpAnswer answer = Ask(Post(many));
  EXPECT_EQ(answer.status, 503) << answer.body;
  EXPECT_NE(answer.head.find("\r\nRetry-After: "), std::string::npos);
  clients.clear();
  EXPECT_TRUE(WaitFor([&] {
    return cli::ParseJson(Ask("GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").body)["requests"].empty();
  }));
}

}  // namespace
}  // namespace kvrun::serve
