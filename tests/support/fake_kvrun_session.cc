// The toy's sessions: feeding, answers as the context has them, statistics.
#include <fmt/format.h>
#include <kvrun/kvrun.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/fake_kvrun.h"

using kvrun::fake::Fail;
using kvrun::fake::HandOut;
using kvrun::fake::kEnd;
using kvrun::fake::kVocabSize;
using kvrun::fake::TextOf;

struct Sequence {
  std::vector<int32_t> tokens;
  int32_t pending = -1;  // generated, but not in the context yet; the end token too
};

struct kvrun_session {
  kvrun_engine* engine;
  kvrun_session_options options;
  kvrun::fake::KvOptions kv;
  std::vector<Sequence> sequences;
  uint64_t prefill_tokens = 0;
  uint64_t decode_tokens = 0;
  uint64_t cached_tokens = 0;
  std::string path = {};  // where it is kept: a file of JSON; empty: nowhere
  std::string note = {};

  void Pause() const {
    if (engine->model->Is("slow")) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
};

void kvrun_session_options_init(kvrun_session_options* options) {
  *options = {};
  options->struct_size = sizeof *options;
  options->n_sequences = 1;
}

namespace {

// What is called by a name lies right in the folder for state.
std::string PathOf(const std::string& session) {
  const char* folder = std::getenv("XDG_STATE_HOME");
  const bool is_path = session.empty() || session.find('/') != session.npos;
  return is_path || folder == nullptr ? session : fmt::format("{}/{}.session", folder, session);
}

}  // namespace

kvrun_status kvrun_session_create(kvrun_engine* engine, const kvrun_session_options* options,
                                  kvrun_session** session) {
  if (options->struct_size != sizeof *options || options->n_sequences < 1 ||
      options->n_sequences > KVRUN_MAX_SEQUENCES) {
    return Fail(KVRUN_INVALID_ARGUMENT, "session options");
  }
  const kvrun::fake::KvOptions kv = kvrun::fake::ReadKvOptions(*options);
  if (const auto adapter = kv.find("adapter"); adapter != kv.end() && adapter->second.ends_with("nope")) {
    return Fail(KVRUN_NOT_FOUND, fmt::format("cannot open {}", adapter->second));
  }
  if (kv.contains("dir") && kv.at("dir") == "/full") return Fail(KVRUN_IO_ERROR, "/full: no space");
  *session = new kvrun_session{engine, *options, kvrun::fake::ReadKvOptions(*options),
                               std::vector<Sequence>(options->n_sequences)};
  if (options->session != nullptr) (*session)->path = PathOf(options->session);
  if (std::ifstream file((*session)->path); file) {
    const nlohmann::json kept = nlohmann::json::parse(file);
    (*session)->sequences[0].tokens = kept["tokens"].get<std::vector<int32_t>>();
    (*session)->note = kept["note"];
  }
  if (options->n_ctx == 0) (*session)->options.n_ctx = kvrun_model_context_train(engine->model);
  return KVRUN_OK;
}
void kvrun_session_destroy(kvrun_session* session) { delete session; }
uint32_t kvrun_session_context(const kvrun_session* session) { return session->options.n_ctx; }
uint32_t kvrun_session_length(const kvrun_session* session, uint32_t sequence) {
  return static_cast<uint32_t>(session->sequences[sequence].tokens.size());
}

kvrun_status kvrun_session_save(kvrun_session* session) {
  if (session->path.empty()) return Fail(KVRUN_INVALID_ARGUMENT, "it is not kept");
  std::vector<int32_t> tokens = session->sequences[0].tokens;
  if (session->sequences[0].pending >= 0) tokens.push_back(session->sequences[0].pending);
  std::ofstream(session->path) << nlohmann::json{{"tokens", tokens}, {"note", session->note}};
  return KVRUN_OK;
}
int kvrun_session_is_kept(const kvrun_session* session) {
  return session->path.empty() || session->options.session_read_only != 0 ? 0 : 1;
}
size_t kvrun_session_tokens(const kvrun_session* session, uint32_t sequence, int32_t* ids, size_t room) {
  const std::vector<int32_t>& tokens = session->sequences[sequence].tokens;
  std::copy_n(tokens.begin(), std::min(room, tokens.size()), ids);
  return tokens.size();
}
kvrun_status kvrun_session_set_note(kvrun_session* session, const char* note, size_t size) {
  session->note.assign(note, size);
  return KVRUN_OK;
}
kvrun_status kvrun_session_note(const kvrun_session* session, char** note, size_t* size) {
  if (size != nullptr) *size = session->note.size();
  return HandOut(session->note, note);
}

namespace {

nlohmann::json FakeInfo(const std::string& name) {
  return {{"name", name},
          {"path", "/state/" + name + ".session"},
          {"model", "Toy"},
          {"fingerprint", "00"},
          {"method", name == "broken" ? nlohmann::json() : nlohmann::json("kvswap")},
          {"tokens", {7639}},
          {"context", 8192},
          {"words", "Once upon a time"},
          {"bytes", uint64_t{3} << 30},
          {"used", 1000000000},
          {"written", uint64_t{5} << 30},
          {"written_days", {{{"date", "2001-09-09"}, {"bytes", uint64_t{5} << 30}}}},
          {"options", {{"budget", "1/13"}}},
          {"form", {{"method", "kvswap"}}},
          {"encrypted", false},
          {"trouble", name == "broken" ? nlohmann::json("its end is missing") : nlohmann::json()}};
}

}  // namespace

kvrun_status kvrun_sessions_json(const char*, char** json) {
  nlohmann::json sessions = nlohmann::json::array();
  if (std::getenv("FAKE_NO_SESSIONS") == nullptr)
    sessions = {FakeInfo("new"), FakeInfo("old"), FakeInfo("broken")};
  return HandOut(sessions.dump(), json);
}
kvrun_status kvrun_written_json(char** json) {
  nlohmann::json days = nlohmann::json::array();
  if (std::getenv("FAKE_NO_SESSIONS") == nullptr)
    days = {{{"date", "2001-09-09"}, {"bytes", uint64_t{7} << 30}}};
  return HandOut(nlohmann::json{{"written_today", uint64_t{1} << 30}, {"days", days}}.dump(), json);
}
kvrun_status kvrun_sessions_info_json(const char* session, char** json) {
  if (std::string(session) == "nope") return Fail(KVRUN_NOT_FOUND, "there is no session nope");
  return HandOut(FakeInfo(session).dump(), json);
}
// "locked" is encrypted; of documents none is known.
kvrun_status kvrun_sessions_info_with_key_json(const char* session, const char* key, char** json) {
  if (std::string(session).starts_with("document-")) return Fail(KVRUN_NOT_FOUND, "there is none");
  if (std::string(session) != "locked") return kvrun_sessions_info_json(session, json);
  nlohmann::json info = FakeInfo(session);
  info["encrypted"] = true;
  if (*key == '\0') {
    for (const char* unknown : {"model", "fingerprint", "method", "tokens", "context", "words", "written",
                                "written_days", "options", "form"})
      info[unknown] = nullptr;
  } else if (std::string(key) != "right.key") {
    info["trouble"] = "is encrypted under another key";
  }
  return HandOut(info.dump(), json);
}
kvrun_encryption kvrun_session_encryption(void) {
  return std::getenv("FAKE_AES") != nullptr ? KVRUN_ENCRYPTION_FAST : KVRUN_ENCRYPTION_SLOW;
}
kvrun_status kvrun_session_key_destroy(const char* key) {
  return std::string(key) == "link.key" ? Fail(KVRUN_INVALID_ARGUMENT, "it is a symbolic link") : KVRUN_OK;
}
kvrun_status kvrun_sessions_remove(const char* session) {
  if (std::string(session).find("broken") != std::string::npos)
    return Fail(KVRUN_INVALID_ARGUMENT, "process 7 has it");
  return std::string(session) == "nope" ? Fail(KVRUN_NOT_FOUND, "there is no session nope") : KVRUN_OK;
}
kvrun_status kvrun_sessions_copy(const char*, const char* to) {
  return std::string(to) == "old" ? Fail(KVRUN_INVALID_ARGUMENT, "old is there already") : KVRUN_OK;
}

kvrun_status kvrun_session_truncate(kvrun_session* session, uint32_t sequence, uint32_t length) {
  Sequence& target = session->sequences[sequence];
  if (length > target.tokens.size()) return Fail(KVRUN_INVALID_ARGUMENT, "truncate beyond the end");
  if (length < target.tokens.size() || length == 0) target.pending = -1;
  target.tokens.resize(length);
  return KVRUN_OK;
}

kvrun_status kvrun_session_feed(kvrun_session* session, uint32_t sequence, const int32_t* ids, size_t count) {
  Sequence& target = session->sequences[sequence];
  const size_t extra = target.pending >= 0 ? 1 : 0;
  if (count == 0) return Fail(KVRUN_INVALID_ARGUMENT, "nothing to feed");
  if (session->engine->model->Is("devicefail")) return Fail(KVRUN_DEVICE_ERROR, "the device was lost");
  if (session->engine->model->Is("keptfail") && !session->path.empty())
    return Fail(KVRUN_IO_ERROR, "the disk is full");
  if (target.tokens.size() + extra + count > session->options.n_ctx) {
    return Fail(KVRUN_CONTEXT_FULL, "the context is full");
  }
  if (extra != 0) target.tokens.push_back(target.pending);
  target.pending = -1;
  session->cached_tokens += target.tokens.size();
  for (size_t i = 0; i < count; ++i) {
    session->Pause();
    target.tokens.push_back(ids[i]);
    ++session->prefill_tokens;
    if (session->options.progress(session->options.progress_user, KVRUN_PHASE_PREFILL, i + 1, count) != 0) {
      return Fail(KVRUN_CANCELLED, "cancelled");
    }
  }
  return KVRUN_OK;
}

// The logit of token v at position p is ((p + v) mod 7) / 2.
kvrun_status kvrun_session_feed_logits(kvrun_session* session, uint32_t sequence, const int32_t* ids,
                                       size_t count, size_t last, kvrun_logits_fn logits, void* user) {
  const kvrun_status status = kvrun_session_feed(session, sequence, ids, count);
  if (status != KVRUN_OK) return status;
  for (size_t p = last == 0 ? 0 : count - last; p < count; ++p) {
    std::vector<float> row(kVocabSize);
    for (size_t v = 0; v < row.size(); ++v) row[v] = static_cast<float>((p + v) % 7) / 2.0F;
    if (logits(user, static_cast<uint32_t>(p), 1, row.data()) != 0) return Fail(KVRUN_CANCELLED, "cancelled");
  }
  return KVRUN_OK;
}

void kvrun_generate_options_init(kvrun_generate_options* options) {
  *options = {};
  options->struct_size = sizeof *options;
  options->top_p = 1;
  options->repetition_penalty = 1;
  options->repetition_window = 64;
}

namespace {

// Bytes at the end of `text` that are the beginning of an unfinished UTF-8 character.
size_t UnfinishedBytes(const std::string& text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    if (byte >= 0xC0) return back < (byte >= 0xF0 ? 4U : byte >= 0xE0 ? 3U : 2U) ? back : 0;
  }
  return 0;
}

// "12:" and the end of the context; sampling shows in the answer.
std::string PlainReply(const kvrun_session& session, const Sequence& sequence,
                       const kvrun_generate_options& options) {
  std::string context;
  for (const int32_t token : sequence.tokens) context += TextOf(token);
  if (session.engine->model->Is("endless")) return std::string(100000, 'x');
  if (session.engine->model->Is("transcript")) return "[" + context + "]";
  std::string reply = fmt::format("{}:", sequence.tokens.size());
  if (options.temperature > 0) {
    reply +=
        fmt::format("t={},k={},p={},m={},r={},w={},s={};", options.temperature, options.top_k, options.top_p,
                    options.min_p, options.repetition_penalty, options.repetition_window, options.seed);
  }
  if (options.presence_penalty != 0 || options.frequency_penalty != 0) {
    reply += fmt::format("pp={},fp={};", options.presence_penalty, options.frequency_penalty);
  }
  return reply + context.substr(context.size() - std::min<size_t>(context.size(), 12));
}

std::string Reply(const kvrun_session& session, const Sequence& sequence,
                  const kvrun_generate_options& options) {
  const bool thinks = session.engine->model->Is("pondering") &&
                      (sequence.tokens.empty() || sequence.tokens.back() != ')');  // "(do not think)"
  return (thinks ? "<think>\nHm: 1 + 1.\n</think>\n\n" : "") + PlainReply(session, sequence, options);
}

class Generator final : public kvrun::fake::ToyAnswer {
 public:
  Generator(kvrun_session* session, uint32_t id, const kvrun_generate_options* options, kvrun_token_fn token,
            void* user)
      : session_(session), id_(id), options_(options), token_(token), user_(user) {}

  bool Step() override {
    if (n_ == 0) Begin();
    if (GoesOn()) return true;
    if (!held_.empty()) Deliver(-1, std::exchange(held_, ""));
    return false;
  }
  kvrun_generate_result result() const override { return result_; }

 private:
  Sequence& sequence() { return session_->sequences[id_]; }

  void Begin() {
    reply_ = Reply(*session_, sequence(), *options_);
    if (session_->engine->model->Is("loud")) std::fputs("the toy decodes\n", stderr);
    for (size_t i = 0; i < options_->n_stop; ++i) stop_ = std::min(stop_, reply_.find(options_->stop[i]));
  }

  // The token itself is the likeliest, those that follow it come next.
  bool Deliver(int32_t value, const std::string& text) {
    if (options_->n_logprobs > 0 && value >= 0) {
      std::vector<kvrun_token_logprob> likeliest;
      for (uint32_t k = 0; k < options_->n_logprobs; ++k) {
        likeliest.push_back({(value + static_cast<int32_t>(k)) % 256, -0.5F - static_cast<float>(k)});
      }
      options_->logprobs(options_->logprobs_user, id_, likeliest.front(), likeliest.data(), likeliest.size());
    }
    return token_(user_, id_, value, text.data(), text.size()) == 0;
  }

  bool Ends(kvrun_finish finish) {
    result_.finish = finish;
    return false;
  }

  // A token; false: there is none.
  bool GoesOn() {
    if (n_ == reply_.size() && options_->ignore_end != 0) reply_ += '!';
    if (n_ == reply_.size()) {
      if (n_ > 0) sequence().tokens.push_back(sequence().pending);
      sequence().pending = kEnd;
      return false;
    }
    if (n_ == stop_) return Ends(KVRUN_FINISH_STOP);
    if (options_->repeat_limit == 4 && n_ == 3 && session_->engine->model->Is("loop"))
      return Ends(KVRUN_FINISH_REPEATS);
    if (options_->max_tokens != 0 && n_ == options_->max_tokens) return Ends(KVRUN_FINISH_LENGTH);
    if (sequence().tokens.size() + (n_ > 0 ? 1 : 0) > session_->options.n_ctx)
      return Ends(KVRUN_FINISH_CONTEXT_FULL);
    if (n_ > 0) sequence().tokens.push_back(sequence().pending);
    session_->Pause();
    sequence().pending = static_cast<unsigned char>(reply_[n_]);
    ++result_.n_tokens;
    ++session_->decode_tokens;
    held_ += reply_[n_];
    ++n_;
    const std::string certain = held_.substr(0, held_.size() - UnfinishedBytes(held_));
    held_.erase(0, certain.size());
    return Deliver(sequence().pending, certain) || Ends(KVRUN_FINISH_CANCELLED);
  }

  kvrun_session* session_;
  const uint32_t id_;
  const kvrun_generate_options* options_;
  const kvrun_token_fn token_;
  void* user_;
  std::string reply_;
  std::string held_;
  size_t stop_ = std::string::npos;
  size_t n_ = 0;  // tokens that are there
  kvrun_generate_result result_{0, KVRUN_FINISH_END};
};

}  // namespace

std::unique_ptr<kvrun::fake::ToyAnswer> kvrun::fake::BeginAnswer(kvrun_session* session,
                                                                 const kvrun_generate_options* options,
                                                                 kvrun_token_fn token, void* user) {
  return std::make_unique<Generator>(session, 0, options, token, user);
}

kvrun_status kvrun_session_generate(kvrun_session* session, const uint32_t* sequences, size_t n,
                                    const kvrun_generate_options* options, kvrun_token_fn token, void* user,
                                    kvrun_generate_result* results) {
  if (options->struct_size != sizeof *options) return Fail(KVRUN_INVALID_ARGUMENT, "struct_size");
  const std::vector<const kvrun_generate_options*> same(n, options);
  return kvrun_session_generate_each(session, sequences, n, same.data(), token, user, results);
}

kvrun_status kvrun_session_generate_each(kvrun_session* session, const uint32_t* sequences, size_t n,
                                         const kvrun_generate_options* const* options, kvrun_token_fn token,
                                         void* user, kvrun_generate_result* results) {
  for (size_t i = 0; i < n; ++i) {
    if (options[i]->struct_size != sizeof *options[i]) return Fail(KVRUN_INVALID_ARGUMENT, "struct_size");
    Generator generator(session, sequences[i], options[i], token, user);
    while (generator.Step()) {
    }
    results[i] = generator.result();
  }
  return KVRUN_OK;
}

kvrun_status kvrun_session_stats_json(const kvrun_session* session, char** json) {
  const auto kv_type = session->kv.find("type");
  const bool is_f32 = kv_type != session->kv.end() && kv_type->second == "f32";
  nlohmann::json stats = {
      {"cached_tokens", session->cached_tokens},
      {"prefill_tokens", session->prefill_tokens},
      {"prefill_tps", 100.0},
      {"answer_tokens", session->decode_tokens},
      {"decode_tokens", session->decode_tokens},
      {"decode_tps", 10.0},
      {"ttft_ms", 5.0},
      {"last", {{"prefill_tokens", 2}, {"prefill_tps", 50.0}, {"answer_tokens", 1}, {"ttft_ms", 4000.0}}},
      {"memory",
       {{"weights", 1048576},
        {"kv", session->options.n_ctx * (is_f32 ? 8 : 4)},
        {"total", 2097152},
        {"process_peak", 3145728},
        {"all", 3145728}}}};
  if (kvrun::fake::MethodOf(session->kv) != "full") {
    stats["kv"] = kvrun::fake::KvStatistics(
        session->kv, kvrun::fake::PlanLine(session->kv, session->options.n_sequences, session->options.n_ctx),
        session->engine->profile);
    stats["details"] = {"a token attends to 8 of 15 entries"};
  }
  if (session->engine->profile) stats["operations"] = {{{"name", "matvec"}, {"count", 3}, {"ms", 1.5}}};
  return HandOut(stats.dump(), json);
}
void kvrun_session_stats_reset(kvrun_session* session) {
  session->prefill_tokens = 0;
  session->decode_tokens = 0;
}
