#include "apps/common/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/json_limits.h"

namespace kvrun::cli {

void Check(kvrun_status status) {
  if (status == KVRUN_OK) return;
  if (status == KVRUN_CANCELLED) throw Interruption();
  throw Failure(status, kvrun_last_error());
}

Model OpenModel(const std::string& path) {
  kvrun_model* model = nullptr;
  Check(kvrun_model_open(path.c_str(), &model));
  return Model(model);
}

Model OpenAnyModel(const std::string& path) {
  kvrun_model* model = nullptr;
  Check(kvrun_model_open_any(path.c_str(), &model));
  return Model(model);
}

Engine CreateEngine(const Model& model, const kvrun_engine_options& options) {
  kvrun_engine* engine = nullptr;
  Check(kvrun_engine_create(model.get(), &options, &engine));
  return Engine(engine);
}

Session CreateSession(const Engine& engine, const kvrun_session_options& options) {
  kvrun_session* session = nullptr;
  Check(kvrun_session_create(engine.get(), &options, &session));
  return Session(session);
}

namespace {

// Calls `encode` with room for the ids, again with more where that did not suffice.
template <typename Encode>
std::vector<int32_t> EncodeWithRoom(size_t text_bytes, const Encode& encode) {
  std::vector<int32_t> ids(text_bytes / 2 + 64);
  while (true) {
    size_t count = ids.size();
    Check(encode(ids.data(), &count));
    const bool complete = count <= ids.size();
    ids.resize(count);
    if (complete) return ids;
  }
}

}  // namespace

std::vector<int32_t> Tokenize(const Model& model, std::string_view text, uint32_t flags) {
  return EncodeWithRoom(text.size(), [&](int32_t* ids, size_t* count) {
    return kvrun_tokenize(model.get(), text.data(), text.size(), flags, ids, count);
  });
}

std::string Detokenize(const Model& model, const std::vector<int32_t>& ids) {
  std::string text(ids.size() * 4, '\0');
  while (true) {
    size_t n_bytes = text.size();
    Check(kvrun_detokenize(model.get(), ids.data(), ids.size(), text.data(), &n_bytes));
    const bool is_complete = n_bytes <= text.size();
    text.resize(n_bytes);
    if (is_complete) return text;
  }
}

std::string TextOfToken(const Model& model, int32_t id) {
  const std::string alone = Detokenize(model, {id});
  const std::string twice = Detokenize(model, {id, id});
  return twice.size() < alone.size() ? alone : twice.substr(alone.size());
}

uint64_t CountLostBytes(const Model& model, std::string_view text, uint32_t flags) {
  uint64_t lost_bytes = 0;
  Check(kvrun_count_lost_bytes(model.get(), text.data(), text.size(), flags, &lost_bytes));
  return lost_bytes;
}

std::vector<int32_t> EncodeMessages(const Model& model, const std::vector<kvrun_chat_message>& messages,
                                    const kvrun_chat_options& options) {
  size_t text_bytes = options.variables == nullptr ? 0 : std::strlen(options.variables);
  for (const kvrun_chat_message& message : messages) text_bytes += std::strlen(message.content);
  return EncodeWithRoom(text_bytes, [&](int32_t* ids, size_t* count) {
    return kvrun_chat_encode(model.get(), messages.data(), messages.size(), &options, ids, count);
  });
}

std::string TakeText(char* text) {
  const std::unique_ptr<char, decltype(&kvrun_string_free)> owner(text, kvrun_string_free);
  return text == nullptr ? std::string() : std::string(text);
}

Json TakeJson(char* text) {
  Json json = ParseJson(TakeText(text));
  if (json.is_discarded()) throw Failure(KVRUN_INTERNAL_ERROR, "the library answered with malformed JSON");
  return json;
}

Json ModelInfo(const Model& model) {
  char* text = nullptr;
  Check(kvrun_model_info_json(model.get(), 0, &text));
  return TakeJson(text);
}

Json KvPlan(const Model& model, const kvrun_session_options& options) {
  char* text = nullptr;
  Check(kvrun_kv_plan_json(model.get(), &options, &text));
  return TakeJson(text);
}

Json EngineInfo(const Engine& engine) {
  char* text = nullptr;
  Check(kvrun_engine_info_json(engine.get(), &text));
  return TakeJson(text);
}

Json SessionStats(const Session& session) {
  char* text = nullptr;
  Check(kvrun_session_stats_json(session.get(), &text));
  return TakeJson(text);
}

std::vector<int32_t> TokensOf(const Session& session, uint32_t sequence) {
  std::vector<int32_t> ids(kvrun_session_tokens(session.get(), sequence, nullptr, 0));
  kvrun_session_tokens(session.get(), sequence, ids.data(), ids.size());
  return ids;
}

size_t CommonLength(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

std::string FeedFrom(const Session& session, const std::vector<int32_t>& ids, size_t kept) {
  const auto feed_from = [&](size_t begin) {
    Check(kvrun_session_truncate(session.get(), 0, static_cast<uint32_t>(begin)));
    Check(kvrun_session_feed(session.get(), 0, ids.data() + begin, ids.size() - begin));
  };
  try {
    feed_from(kept);
    return "";
  } catch (const Failure& failure) {
    // What has been read cannot be read back, or cannot be cut there.
    const kvrun_status status = failure.status();
    const bool may_be_of_kept =
        status == KVRUN_CORRUPT || status == KVRUN_IO_ERROR || status == KVRUN_UNSUPPORTED;
    if (kept == 0 || !may_be_of_kept) throw;
    feed_from(0);
    return failure.what();
  }
}

std::string FeedRest(const Session& session, const std::vector<int32_t>& ids) {
  const size_t common = CommonLength(TokensOf(session, 0), ids);
  if (common == 0) return FeedFrom(session, ids, 0);
  return FeedFrom(session, ids,
                  std::min<size_t>({common, ids.size() - 1, kvrun_session_length(session.get(), 0)}));
}

bool Keep(const Session& session) {
  if (kvrun_session_is_kept(session.get()) == 0 || kvrun_session_save(session.get()) == KVRUN_OK) return true;
  PrintMessage(
      fmt::format("the session could not be saved, and its last save point counts: {}", kvrun_last_error()));
  return false;
}

const char* FinishName(kvrun_finish finish) {
  switch (finish) {
    case KVRUN_FINISH_LENGTH: return "length";
    case KVRUN_FINISH_END: return "end";
    case KVRUN_FINISH_STOP: return "stop";
    case KVRUN_FINISH_CONTEXT_FULL: return "context_full";
    case KVRUN_FINISH_CANCELLED: return "cancelled";
    case KVRUN_FINISH_REPEATS: return "repeats";
  }
  return "unknown";
}

Json ParseJson(std::string_view text, std::string* why) {
  if (const std::string beyond = BeyondLimits(text, {}); !beyond.empty()) {
    if (why != nullptr) *why = "it " + beyond;
    return Json(Json::value_t::discarded);
  }
  try {
    return Json::parse(text, nullptr, /*allow_exceptions=*/why != nullptr);
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 3: syntax error while ...", or
    // "[json.exception.out_of_range.406] number overflow parsing '1e999'".
    const std::string_view said = error.what();
    const size_t place = said.find("column ");
    *why = said.substr(place != said.npos ? place : said.find("] ") + 2);
    return Json(Json::value_t::discarded);
  }
}

std::string DumpJson(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string JsonLine(const Json& json) { return DumpJson(json) + "\n"; }

std::string TextOf(const Json& value) {
  return value.is_string() ? value.get<std::string>() : DumpJson(value);
}

}  // namespace kvrun::cli
