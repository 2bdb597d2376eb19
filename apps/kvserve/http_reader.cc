#include "apps/kvserve/http_reader.h"

#include <cstdint>
#include <utility>

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace kvrun::serve {
namespace {

namespace http = boost::beast::http;

Refusal HeadTooLong(const HttpOptions& options) {
  return {431,
          "the header of the request is over " + std::to_string(options.most_header_bytes) + " bytes",
          "",
          {}};
}

Refusal ParseRefusal(const boost::system::error_code& error, const HttpOptions& options) {
  if (error == http::error::header_limit) return HeadTooLong(options);
  if (error == http::error::body_limit)
    return {
        413, "the body of the request is over " + std::to_string(options.most_body_bytes) + " bytes", "", {}};
  return {400, "this is not HTTP/1.1: " + error.message(), "", {}};
}

}  // namespace

struct RequestReader::Parser {
  http::request_parser<http::string_body> parser;
};

RequestReader::RequestReader(const HttpOptions& options)
    : options_(options), parser_(std::make_unique<Parser>()) {
  parser_->parser.header_limit(static_cast<uint32_t>(options.most_header_bytes));
  parser_->parser.body_limit(options.most_body_bytes);
}

RequestReader::~RequestReader() = default;

RequestReader::State RequestReader::Read(std::string* input) {
  // Some clients end a body with a line that is not counted.
  while (!has_begun_ && input->compare(0, 2, "\r\n") == 0) input->erase(0, 2);
  if (!has_begun_ && *input == "\r") return state_;
  while (!input->empty() && (state_ == State::kHead || state_ == State::kBody)) {
    const size_t before = input->size();
    const State state = state_;
    Parse(input);
    if (input->size() == before && state_ == state) break;  // the rest is awaited
  }
  return state_;
}

void RequestReader::Parse(std::string* input) {
  auto& parser = parser_->parser;
  boost::system::error_code error;
  const size_t n = parser.put(boost::asio::buffer(*input), error);
  input->erase(0, n);
  has_begun_ = true;
  // Beast's limit is for the first line and for the fields apart; of a chunk's own header and of trailers it
  // has none.
  if (state_ == State::kHead) head_bytes_ += n;
  const size_t pending_bytes = error == http::error::need_more ? input->size() : 0;
  if (head_bytes_ + pending_bytes > options_.most_header_bytes) return Refuse(HeadTooLong(options_));
  if (error && error != http::error::need_more) return Refuse(ParseRefusal(error, options_));
  if (state_ == State::kHead && parser.is_header_done()) {
    FinishHead();
    if (state_ == State::kRefused) return;
    head_bytes_ = 0;
    state_ = State::kBody;
    parser.eager(true);
  }
  if (state_ == State::kBody && parser.is_done()) state_ = State::kDone;
}

// The fields are those of now: trailers, which Beast adds to them, come after all checks.
void RequestReader::FinishHead() {
  const auto& message = parser_->parser.get();
  is_http_1_1_ = message.version() == 11;
  is_kept_alive_ = is_http_1_1_ && parser_->parser.keep_alive();
  request_.method = std::string(message.method_string());
  for (const auto& field : message)
    request_.fields.emplace_back(std::string(field.name_string()), std::string(field.value()));
  is_of_head_ = request_.method == "HEAD";
  is_waiting_ = is_http_1_1_ && !request_.Field("Expect").empty();
  const boost::beast::string_view target = message.target();
  if (std::optional<Refusal> refusal =
          CheckHead({target.data(), target.size()}, is_http_1_1_, options_, &request_))
    Refuse(*std::move(refusal));
}

void RequestReader::Refuse(Refusal refusal) {
  refusal_ = std::move(refusal);
  state_ = State::kRefused;
}

bool RequestReader::TakeWaiting() {
  return std::exchange(is_waiting_, false) && state_ == State::kBody && body_bytes() == 0;
}

size_t RequestReader::body_bytes() const {
  return state_ == State::kHead ? 0 : parser_->parser.get().body().size();
}

HttpRequest RequestReader::Take() {
  request_.body = std::move(parser_->parser.get().body());
  return std::move(request_);
}

}  // namespace kvrun::serve
