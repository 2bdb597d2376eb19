#include "apps/kvserve/http_rules.h"

#include <gtest/gtest.h>

#include <string>

#include <nlohmann/json.hpp>

namespace kvrun::serve {
namespace {

TEST(HttpRules, PathIsDecodedAndCannotLeave) {
  const auto decoded = [](const char* path) { return DecodedPath(path).value_or("none"); };
  EXPECT_EQ(decoded("/"), "/");
  EXPECT_EQ(decoded("/v1/models"), "/v1/models");
  EXPECT_EQ(decoded("/a%20b%C3%a4/"), "/a b\xC3\xA4/");
  EXPECT_EQ(decoded("/..."), "/...");
  EXPECT_EQ(decoded("/a%23b"), "/a#b");
  for (const char* path :
       {"",       "a",         "*",    "/..",     "/../etc",     "/a/../b", "/.",       "/a/.",
        "/a/./b", "/%2e%2e/x", "/%2E", "/a/%2e.", "/x%2f..%2fy", "/%00",    "/a%0",     "/a%",
        "/%zz",   "/a\\b",     "/%5c", "/a#b",    "/%0a",        "/%7f",    "http://x/"})
    EXPECT_EQ(decoded(path), "none") << path;
}

TEST(HttpRules, HostIsThisMachine) {
  for (const char* host : {"localhost", "LocalHost:8080", "127.0.0.1", "127.0.0.1:1", "127.255.3.9", "[::1]",
                           "[::1]:8080", "mybox", "MyBox:80", "localhost:"})
    EXPECT_TRUE(IsOwnHost(host, "mybox")) << host;
  for (const char* host : {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                           "128.0.0.1", "127.1", "10.0.0.1", "[::2]", "[::1", "::1", "localhost:80a",
                           "a@localhost", "local host", "localhost/x", "0.0.0.0", "mybox2", ":80"})
    EXPECT_FALSE(IsOwnHost(host, "mybox")) << host;
  EXPECT_TRUE(IsOwnHost("[::1]:80", "::1"));
}

TEST(HttpRules, OriginIsTheHost) {
  EXPECT_TRUE(IsSameOrigin("http://localhost:8080", "localhost:8080"));
  EXPECT_TRUE(IsSameOrigin("https://kv.example", "kv.example"));
  EXPECT_TRUE(IsSameOrigin("http://127.0.0.1", "127.0.0.1:80"));
  EXPECT_TRUE(IsSameOrigin("https://kv.example", "KV.example:443"));
  EXPECT_TRUE(IsSameOrigin("http://[::1]:8080", "[::1]:8080"));
  for (const char* origin :
       {"null", "", "http://", "http://localhost", "http://localhost:80801", "http://127.0.0.1:8080",
        "https://evil.example", "file://localhost:8080", "http://localhost:8080/",
        "http://localhost:8080.evil.example", "http://x@localhost:8080", "localhost:8080",
        "http://localhost:8080 http://evil"})
    EXPECT_FALSE(IsSameOrigin(origin, "localhost:8080")) << origin;
  EXPECT_FALSE(IsSameOrigin("http://localhost", "")) << "no host";
}

TEST(HttpRules, Secrets) {
  EXPECT_TRUE(IsSameSecret("sk-1", "sk-1"));
  EXPECT_FALSE(IsSameSecret("", "sk-1"));
  EXPECT_FALSE(IsSameSecret("sk-", "sk-1"));
  EXPECT_FALSE(IsSameSecret("sk-11", "sk-1"));
  EXPECT_FALSE(IsSameSecret("sk-2", "sk-1"));
  EXPECT_FALSE(IsSameSecret(std::string("sk-1\0", 5), "sk-1")) << "zeroes behind it do not count as an end";
  const std::string longest(kLongestKeyBytes, 'k');
  EXPECT_TRUE(IsSameSecret(longest, longest));
  EXPECT_FALSE(IsSameSecret(longest + "k", longest));
}

TEST(HttpRules, KeyInEitherField) {
  const auto has = [](const char* name, const char* value) {
    HttpRequest request;
    request.fields = {{name, value}};
    return HasKey(request, "sk-1");
  };
  EXPECT_TRUE(has("Authorization", "Bearer sk-1"));
  EXPECT_TRUE(has("AUTHORIZATION", "bearer  sk-1"));
  EXPECT_TRUE(has("X-API-Key", "sk-1"));
  EXPECT_FALSE(has("Authorization", "sk-1"));
  EXPECT_FALSE(has("Authorization", "Basic sk-1"));
  EXPECT_FALSE(has("Authorization", "Bearer"));
  EXPECT_FALSE(has("Authorization", "Bearer sk-1 "));
  EXPECT_FALSE(has("x-api-key", "Bearer sk-1"));
  EXPECT_FALSE(has("Cookie", "sk-1"));
}

TEST(HttpRules, WhatNeedsNoKey) {
  for (const char* path : {"/", "/health", "/page.css", "/page.js", "/api.js", "/icon.svg"}) {
    EXPECT_FALSE(NeedsKey("GET", path)) << path;
    EXPECT_TRUE(NeedsKey("POST", path)) << path;
    EXPECT_TRUE(NeedsKey("get", path)) << path;
  }
  for (const char* path : {"/v1/models", "/metrics", "/health/", "//", "", "/Health"})
    EXPECT_TRUE(NeedsKey("GET", path)) << path;
}

// The status of CheckHead; 0 where it lets go on.
unsigned StatusOf(const std::string& target, HttpFields fields, const std::string& key = "",
                  bool is_http_1_1 = true, const std::string& method = "GET") {
  HttpOptions options;
  options.api_key = key;
  HttpRequest request;
  request.method = method;
  request.fields = std::move(fields);
  const auto refusal = CheckHead(target, is_http_1_1, options, &request);
  return refusal ? refusal->status : 0;
}

TEST(HttpRules, HeadIsChecked) {
  EXPECT_EQ(StatusOf("/x", {{"Host", "localhost"}}), 0U);
  EXPECT_EQ(StatusOf("/x", {}), 400U) << "no Host in HTTP/1.1";
  EXPECT_EQ(StatusOf("/x", {}, "", false), 0U) << "HTTP/1.0 has none";
  EXPECT_EQ(StatusOf("/x", {{"Host", "localhost"}, {"host", "localhost"}}), 400U);
  EXPECT_EQ(StatusOf("/x", {{"Host", "local host"}}), 400U);
  EXPECT_EQ(StatusOf("/x", {{"Host", ""}}), 400U);
  EXPECT_EQ(StatusOf("/x", {{"Host", "evil.example"}}), 403U);
  EXPECT_EQ(StatusOf("/x", {{"Host", "evil.example"}}, "", false), 403U);
  EXPECT_EQ(StatusOf("/x", {{"Host", "localhost"}, {"Origin", "null"}}), 403U);
  EXPECT_EQ(StatusOf("/x", {{"Host", "localhost"}, {"Origin", ""}}), 403U);
  EXPECT_EQ(StatusOf("/x", {{"Host", "localhost"}, {"Origin", "http://localhost"}}), 0U);
  EXPECT_EQ(StatusOf("/x", {{"Origin", "http://localhost"}}, "", false), 403U);
  EXPECT_EQ(StatusOf("/..", {{"Host", "localhost"}}), 400U);
  EXPECT_EQ(StatusOf("x", {{"Host", "localhost"}}), 400U);
  EXPECT_EQ(StatusOf("*", {{"Host", "localhost"}}), 400U);
  EXPECT_EQ(StatusOf("*", {{"Host", "localhost"}}, "", true, "OPTIONS"), 0U);
  EXPECT_EQ(StatusOf("http://localhost/x", {{"Host", "localhost"}}), 0U);
  EXPECT_EQ(StatusOf("http://evil.example/x", {{"Host", "localhost"}}), 400U);
  EXPECT_EQ(StatusOf("/x", {{"Host", "localhost"}, {"Expect", "100-Continue"}}), 0U);
  EXPECT_EQ(StatusOf("/x", {{"Host", "localhost"}, {"Expect", "tea"}}), 417U);
  for (const char* encoding : {"gzip", "chunked, chunked", "gzip, chunked", "xchunked", ""})
    EXPECT_EQ(StatusOf("/x", {{"Host", "localhost"}, {"Transfer-Encoding", encoding}}), 400U) << encoding;
  EXPECT_EQ(StatusOf("/x", {{"Host", "localhost"}, {"Transfer-Encoding", "chunked"}}), 0U);
  EXPECT_EQ(StatusOf("/x", {{"Transfer-Encoding", "chunked"}}, "", false), 400U) << "HTTP/1.0 has no chunks";
  for (const char* length : {"", "+1", "-1", "1, 1", "0x1", "1 1"})
    EXPECT_EQ(StatusOf("/x", {{"Host", "localhost"}, {"Content-Length", length}}), 400U) << length;
}

TEST(HttpRules, HeadIsCheckedWithAKey) {
  EXPECT_EQ(StatusOf("/x", {{"Host", "kv.example"}}, "sk-1"), 401U);
  EXPECT_EQ(StatusOf("/health", {{"Host", "kv.example"}}, "sk-1"), 0U) << "any host";
  EXPECT_EQ(StatusOf("/%68ealth?x=1", {{"Host", "kv.example"}}, "sk-1"), 0U) << "the decoded path counts";
  EXPECT_EQ(StatusOf("/x", {{"Host", "kv.example"}, {"Authorization", "Bearer sk-1"}}, "sk-1"), 0U);
  EXPECT_EQ(StatusOf("/x", {{"Host", "kv.example"}, {"Authorization", "Bearer sk-2"}}, "sk-1"), 401U);
  EXPECT_EQ(
      StatusOf("/x",
               {{"Host", "kv.example"}, {"Authorization", "Bearer sk-1"}, {"Origin", "https://evil.example"}},
               "sk-1"),
      403U);
  EXPECT_EQ(
      StatusOf("/x",
               {{"Host", "kv.example"}, {"Authorization", "Bearer x"}, {"authorization", "Bearer sk-1"}},
               "sk-1"),
      400U);
}

TEST(HttpRules, TargetIsSplit) {
  HttpRequest request;
  request.fields = {{"Host", "localhost:80"}};
  for (const char* target :
       {"/a%62?q=%20?&x", "http://localhost:80/a%62?q=%20?&x", "HTTP://LOCALHOST:80/a%62?q=%20?&x"}) {
    request.method = "GET";
    EXPECT_FALSE(CheckHead(target, true, {}, &request)) << target;
    EXPECT_EQ(request.path, "/ab");
    EXPECT_EQ(request.query, "q=%20?&x");
  }
}

TEST(HttpRules, ErrorIsOpenAis) {
  const auto error = nlohmann::json::parse(ErrorBody(401, "a \"key\" \xff", "invalid_api_key")).at("error");
  EXPECT_EQ(error.at("message"), "a \"key\" \xEF\xBF\xBD");
  EXPECT_EQ(error.at("type"), "invalid_request_error");
  EXPECT_EQ(error.at("code"), "invalid_api_key");
  EXPECT_TRUE(error.at("param").is_null());
  const auto own = nlohmann::json::parse(ErrorBody(503, "no")).at("error");
  EXPECT_EQ(own.at("type"), "server_error");
  EXPECT_TRUE(own.at("code").is_null());
}

}  // namespace
}  // namespace kvrun::serve
