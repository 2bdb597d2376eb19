// A stand-in for the library behind the C API, for tests of the command-line program: a toy "model" that is
// deterministic and needs neither a file nor a device. What it does wrong is chosen by the model's path:
//   missing, corrupt       kvrun_model_open fails         nobos        the file asks for no BOS
//   nodevice               kvrun_engine_create fails      nochat       the chat form is unknown
//   roomy                  trained with 4 Mi tokens        advising     its file advises how to sample
//   small                  trained with 64 tokens         slow         loading, prefill, decoding take time
//   devicefail             feeding fails                  transcript   answers with its whole context
//   endless                generates for long             loud         says on standard error that it decodes
//   lossy                  its vocabulary is ASCII         foreign      only kvrun_model_open_any takes it
//   wordy                  its file's name for it is long   words     a vocabulary alone
//   pondering              thinks "Hm: 1 + 1." first
// Tokens 0..255 are bytes; the control tokens follow.
#include "tests/support/fake_kvrun.h"

#include <fmt/format.h>
#include <kvrun/kvrun.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

using kvrun::fake::Fail;
using kvrun::fake::HandOut;

namespace {

constexpr int32_t kBos = 256;
[[maybe_unused]] constexpr int32_t kStart = 257;
constexpr int32_t kEnd = 258;  // the end-of-generation token
constexpr uint32_t kVocabSize = 259;
constexpr const char* kForeign = "foreign: the architecture is not supported";
constexpr const char* kWords = "words: it holds no tensors";
constexpr std::string_view kControl[] = {"<bos>", "<start>", "<end>"};

thread_local std::string last_error;

std::string TextOf(int32_t token) {
  if (token >= kBos) return std::string(kControl[token - kBos]);
  return std::string(1, static_cast<char>(token));
}

// Bytes at the end of `text` that are the beginning of an unfinished UTF-8 character.
size_t UnfinishedBytes(const std::string& text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    if (byte >= 0xC0) return back < (byte >= 0xF0 ? 4U : byte >= 0xE0 ? 3U : 2U) ? back : 0;
  }
  return 0;
}

}  // namespace

kvrun_status kvrun::fake::Fail(kvrun_status status, const std::string& message) {
  last_error = message;
  return status;
}

kvrun_status kvrun::fake::HandOut(const std::string& text, char** out) {
  *out = strdup(text.c_str());
  return KVRUN_OK;
}

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

  void Pause() const {
    if (engine->model->Is("slow")) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
};

const char* kvrun_version(void) { return "0.1.0 (fake)"; }
const char* kvrun_last_error(void) { return last_error.c_str(); }
void kvrun_string_free(char* text) { std::free(text); }

const char* kvrun_status_name(kvrun_status status) {
  static constexpr const char* kNames[] = {"ok",           "invalid argument", "not found",     "corrupt",
                                           "unsupported",  "out of memory",    "context full",  "io error",
                                           "device error", "cancelled",        "internal error"};
  return kNames[status];
}

kvrun_status kvrun_devices_json(char** json) {
  if (std::getenv("FAKE_NO_DEVICE") != nullptr) return HandOut("[]", json);
  return HandOut(R"([{"index": 0, "name": "Fake GPU", "kind": "cpu", "api_version": "1.1", "driver": "fake 1",
                      "memory_bytes": 1073741824, "usable": true, "reason": ""},
                     {"index": 1, "name": "Fake CPU", "kind": "cpu", "api_version": "", "driver": "fake host",
                      "memory_bytes": 2147483648, "usable": true, "reason": ""},
                     {"index": null, "name": "/icd.d/fake.json", "kind": "driver", "api_version": "",
                      "driver": "", "memory_bytes": null, "usable": false, "reason": "it crashed"}])",
                 json);
}

// Says that it was called: a handler may call write.
void kvrun_interrupt_trials(void) {
  if (std::getenv("FAKE_LOUD_TRIALS") == nullptr) return;
  static constexpr std::string_view kText = "the toy's trials are interrupted\n";
  (void)!write(STDERR_FILENO, kText.data(), kText.size());
}

kvrun_status kvrun_retry_drivers(void) {
  std::fputs("the toy's drivers are tried again\n", stderr);
  return KVRUN_OK;
}

kvrun_status kvrun_doctor_within_json(const char* device, uint32_t max_ms, kvrun_progress_fn progress,
                                      void* user, char** json) {
  if (device != nullptr && std::string_view(device) == "none") {
    return Fail(KVRUN_NOT_FOUND, "no device is named none");
  }
  if (progress(user, KVRUN_PHASE_SELF_TEST, 1, 2) != 0) return Fail(KVRUN_CANCELLED, "cancelled");
  progress(user, KVRUN_PHASE_SELF_TEST, 2, 2);
  if (std::getenv("FAKE_NO_DEVICE") != nullptr) return HandOut(R"({"passed": false, "devices": []})", json);
  const bool passed = std::getenv("FAKE_BAD_KERNEL") == nullptr;
  const bool is_slow = std::getenv("FAKE_SLOW_TESTS") != nullptr;
  const nlohmann::json test = {{"name", "matvec_q4_1"}, {"passed", passed}, {"detail", "error 0.5"}};
  return HandOut(nlohmann::json{{"passed", passed},
                                {"devices",
                                 {{{"name", "Fake GPU"},
                                   {"driver", "fake 1"},
                                   {"limits", {{"max_binding_bytes", 134217728}}},
                                   {"plan", {{"tile", 4}}},
                                   {"tests", {test}},
                                   {"n_left_out", is_slow && max_ms != 0 ? max_ms / 1000 : 0}}}}}
                     .dump(),
                 json);
}

kvrun_status kvrun_model_open(const char* path, kvrun_model** model) {
  const kvrun_model opened{path};
  if (opened.Is("missing")) return Fail(KVRUN_NOT_FOUND, opened.path + ": no such file");
  if (opened.Is("corrupt")) return Fail(KVRUN_CORRUPT, opened.path + ": bad magic");
  if (opened.Is("foreign")) return Fail(KVRUN_UNSUPPORTED, kForeign);
  if (opened.Is("words")) return Fail(KVRUN_UNSUPPORTED, kWords);
  *model = new kvrun_model(opened);
  return KVRUN_OK;
}
kvrun_status kvrun_model_open_any(const char* path, kvrun_model** model) {
  const kvrun_model opened{path};
  if (!opened.Is("foreign") && !opened.Is("words")) return kvrun_model_open(path, model);
  *model = new kvrun_model(opened);
  return KVRUN_OK;
}
void kvrun_model_close(kvrun_model* model) { delete model; }

static nlohmann::json SamplingInfo(const kvrun_model& model) {
  if (!model.Is("advising")) {
    return {{"temperature", nullptr}, {"top_k", nullptr}, {"top_p", nullptr}, {"min_p", nullptr}};
  }
  return {{"temperature", 0.25},
          {"top_k", 20},
          {"top_p", nullptr},
          {"min_p", nullptr},
          {"ignored", {"general.sampling.min_p is nan"}}};
}

kvrun_status kvrun_model_info_json(const kvrun_model* model, uint32_t context, char** json) {
  const uint32_t at = context == 0 ? kvrun_model_context_train(model) : context;
  if (model->Is("foreign")) {
    return HandOut(nlohmann::json{{"architecture", "foreign"},
                                  {"file_bytes", 1048576},
                                  {"n_layers", nullptr},
                                  {"n_vocab", kVocabSize},
                                  {"tensor_types", {{"F32", 1}, {"type 39", 2}}},
                                  {"kv_bytes", nullptr},
                                  {"unsupported", kForeign}}
                       .dump(),
                   json);
  }
  if (model->Is("words")) {
    return HandOut(
        nlohmann::json{{"architecture", "fake"},
                       {"file_bytes", 1024},
                       {"vocabulary", {{"tokens", kVocabSize}, {"merges", nullptr}, {"bos", kBos}}},
                       {"tensor_types", nlohmann::json::object()},
                       {"parameters", 0},
                       {"unsupported", kWords}}
            .dump(),
        json);
  }
  return HandOut(nlohmann::json{{"architecture", "fake"},
                                {"name", std::string(model->Is("wordy") ? 100000 : 4, 'x')},
                                {"file_bytes", 1048576},
                                {"n_layers", 2},
                                {"chat_form", nullptr},
                                {"sampling", SamplingInfo(*model)},
                                {"tensor_types", {{"F32", 3}}},
                                {"parameters", model->Is("tiny") ? 100'000'000 : 2'000'000'000},
                                {"kv_bytes_per_token", 1024},
                                {"kv_bytes", uint64_t{1024} * at},
                                {"context", at},
                                {"unsupported", nullptr}}
                     .dump(),
                 json);
}

uint32_t kvrun_model_vocab_size(const kvrun_model*) { return kVocabSize; }
uint32_t kvrun_model_context_train(const kvrun_model* model) {
  return model->Is("small") ? 64 : model->Is("endless") ? 1U << 20 : model->Is("roomy") ? 1U << 22 : 4096;
}
int kvrun_model_adds_bos(const kvrun_model* model) { return model->Is("nobos") ? 0 : 1; }
int kvrun_model_is_end_of_generation(const kvrun_model*, int32_t token) { return token == kEnd; }

kvrun_status kvrun_tokenize(const kvrun_model* model, const char* text, size_t text_bytes, uint32_t flags,
                            int32_t* ids, size_t* count) {
  std::vector<int32_t> tokens;
  const bool asked = (flags & KVRUN_ENCODE_BOS_IF_ASKED) != 0 && kvrun_model_adds_bos(model) != 0;
  if (asked || (flags & KVRUN_ENCODE_ADD_BOS) != 0) tokens.push_back(kBos);
  std::string_view rest(text, text_bytes);
  while (!rest.empty()) {
    int32_t token = static_cast<unsigned char>(rest[0]);
    for (int32_t i = 0; i < 3 && (flags & KVRUN_ENCODE_PARSE_SPECIAL) != 0; ++i) {
      if (rest.starts_with(kControl[i])) token = kBos + i;
    }
    // A "coarse" model's tokens have 64 KiB.
    rest.remove_prefix(model->Is("coarse") ? std::min<size_t>(rest.size(), 65536) : TextOf(token).size());
    tokens.push_back(token);
  }
  if (tokens.size() <= *count) std::copy(tokens.begin(), tokens.end(), ids);
  *count = tokens.size();
  return KVRUN_OK;
}

kvrun_status kvrun_detokenize(const kvrun_model*, const int32_t* ids, size_t count, char* text,
                              size_t* bytes) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += TextOf(ids[i]);
  if (all.size() <= *bytes) std::copy(all.begin(), all.end(), text);
  *bytes = all.size();
  return KVRUN_OK;
}

// A "lossy" model cannot say what is not ASCII.
kvrun_status kvrun_count_lost_bytes(const kvrun_model* model, const char* text, size_t text_bytes, uint32_t,
                                    uint64_t* lost_bytes) {
  const auto lost = [](char c) { return (static_cast<unsigned char>(c) & 0x80) != 0; };
  *lost_bytes = model->Is("lossy") ? std::count_if(text, text + text_bytes, lost) : 0;
  return KVRUN_OK;
}

kvrun_status kvrun_chat_format(const kvrun_model* model, const kvrun_chat_message* messages, size_t count,
                               int continued, char** text) {
  if (model->Is("nochat")) return Fail(KVRUN_UNSUPPORTED, "the chat form of this model is not known");
  std::string out =
      continued != 0 || std::string_view(messages[0].role) == "system" ? "" : "<start>system:be good<end>";
  for (size_t i = 0; i < count; ++i) {
    out += fmt::format("<start>{}:{}<end>", messages[i].role, messages[i].content);
  }
  return HandOut(out + "<start>assistant:", text);
}

void kvrun_chat_options_init(kvrun_chat_options* options) {
  *options = {};
  options->struct_size = sizeof *options;
}

const char* const* kvrun_chat_template_names(void) {
  static constexpr const char* kNames[] = {"toy-form", "other-form", nullptr};
  return kNames;
}

// A template given shows as {template} at the start, variables as they are after it, a choice about thinking
// at the end, and what else a message has as (key value). What was thought before earlier answers is left
// out.
kvrun_status kvrun_chat_encode(const kvrun_model* model, const kvrun_chat_message* messages, size_t count,
                               const kvrun_chat_options* options, int32_t* ids, size_t* id_count) {
  if (options->struct_size != sizeof *options) return Fail(KVRUN_INVALID_ARGUMENT, "struct_size");
  if (model->Is("nochat") && options->chat_template == nullptr) {
    return Fail(KVRUN_UNSUPPORTED, "the chat form of this model is not known");
  }
  std::vector<int32_t> all;
  const auto add = [&](std::string_view text, bool special) {
    std::vector<int32_t> tokens(text.size());
    size_t n_tokens = tokens.size();
    kvrun_tokenize(model, text.data(), text.size(), special ? KVRUN_ENCODE_PARSE_SPECIAL : 0, tokens.data(),
                   &n_tokens);
    all.insert(all.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n_tokens));
  };
  if (options->continued != 0) {
    all.push_back(kEnd);
  } else if (kvrun_model_adds_bos(model) != 0) {
    all.push_back(kBos);
  }
  if (options->chat_template != nullptr) add(fmt::format("{{{}}}", options->chat_template), false);
  using Json = nlohmann::ordered_json;
  Json variables = options->variables == nullptr ? Json::object() : Json::parse(options->variables);
  Json said = variables.value("messages", Json::array());
  variables.erase("messages");
  if (!variables.empty()) add(variables.dump(), false);
  for (size_t i = 0; i < count; ++i)
    said.push_back({{"role", messages[i].role}, {"content", messages[i].content}});
  if (options->continued == 0 && said[0]["role"] != "system") add("<start>system:be good<end>", true);
  for (const Json& message : said) {
    add(fmt::format("<start>{}:", message["role"].get<std::string>()), true);
    add(message["content"].get<std::string>(), options->parse_special != 0);
    for (const auto& [key, value] : message.items()) {
      if (key == "role" || key == "content" || key == "reasoning_content") continue;
      add(fmt::format("({} {})", key, value.dump()), false);
    }
    add("<end>", true);
  }
  constexpr const char* kThinking[] = {"", "(think)", "(do not think)"};
  add(fmt::format("<start>assistant:{}", kThinking[options->thinking]), true);
  if (all.size() <= *id_count) std::copy(all.begin(), all.end(), ids);
  *id_count = all.size();
  return KVRUN_OK;
}

kvrun_status kvrun_template_render(const char* chat_template, const char* variables, int64_t now_s,
                                   char** text) {
  if (std::string_view(chat_template).find("{% fail %}") != std::string_view::npos)
    return Fail(KVRUN_INVALID_ARGUMENT, "the chat template, line 1: it failed");
  return HandOut(fmt::format("{}|{}|{}", chat_template, variables, now_s), text);
}

void kvrun_engine_options_init(kvrun_engine_options* options) {
  *options = {};
  options->struct_size = sizeof *options;
}

kvrun_status kvrun_engine_create(const kvrun_model* model, const kvrun_engine_options* options,
                                 kvrun_engine** engine) {
  if (options->struct_size != sizeof *options) return Fail(KVRUN_INVALID_ARGUMENT, "struct_size");
  if (model->Is("nodevice")) return Fail(KVRUN_NOT_FOUND, "no Vulkan device was found");
  for (uint64_t done = 0; done <= 10; ++done) {
    if (model->Is("slow")) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (options->progress(options->progress_user, KVRUN_PHASE_LOAD, done << 20, 10 << 20) != 0) {
      return Fail(KVRUN_CANCELLED, "cancelled");
    }
  }
  *engine = new kvrun_engine{model,
                             options->device == nullptr ? "auto" : options->device,
                             options->profile != 0,
                             options->exact_activations != 0,
                             options->n_threads,
                             options->instruction_set == nullptr ? "" : options->instruction_set,
                             options->remeasure != 0};
  return KVRUN_OK;
}
void kvrun_engine_destroy(kvrun_engine* engine) { delete engine; }

kvrun_status kvrun_engine_info_json(const kvrun_engine* engine, char** json) {
  nlohmann::json notes = {"tiles of 4"};
  if (engine->n_threads != 0) notes.push_back(fmt::format("{} threads", engine->n_threads));
  if (!engine->instruction_set.empty()) notes.push_back("computing with " + engine->instruction_set);
  if (engine->exact_activations) notes.push_back("float activations");
  if (engine->remeasure) notes.push_back("devices are measured again");
  return HandOut(
      nlohmann::json{{"device", "Fake " + engine->device}, {"is_cpu", true}, {"notes", notes}}.dump(), json);
}

void kvrun_session_options_init(kvrun_session_options* options) {
  *options = {};
  options->struct_size = sizeof *options;
  options->n_sequences = 1;
}

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
  if (options->n_ctx == 0) (*session)->options.n_ctx = kvrun_model_context_train(engine->model);
  return KVRUN_OK;
}
void kvrun_session_destroy(kvrun_session* session) { delete session; }
uint32_t kvrun_session_context(const kvrun_session* session) { return session->options.n_ctx; }
uint32_t kvrun_session_length(const kvrun_session* session, uint32_t sequence) {
  return static_cast<uint32_t>(session->sequences[sequence].tokens.size());
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
  if (target.tokens.size() + extra + count > session->options.n_ctx) {
    return Fail(KVRUN_CONTEXT_FULL, "the context is full");
  }
  if (extra != 0) target.tokens.push_back(target.pending);
  target.pending = -1;
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

struct Generator {
  kvrun_session* session;
  const kvrun_generate_options* options;
  kvrun_token_fn token;
  void* user;
  std::string reply;
  std::string held;
  kvrun_generate_result result{0, KVRUN_FINISH_END};

  // The token itself is the likeliest, those that follow it come next.
  bool Deliver(uint32_t id, int32_t value, const std::string& text) {
    if (options->n_logprobs > 0 && value >= 0) {
      std::vector<kvrun_token_logprob> likeliest;
      for (uint32_t k = 0; k < options->n_logprobs; ++k) {
        likeliest.push_back({(value + static_cast<int32_t>(k)) % 256, -0.5F - static_cast<float>(k)});
      }
      options->logprobs(options->logprobs_user, id, likeliest.front(), likeliest.data(), likeliest.size());
    }
    return token(user, id, value, text.data(), text.size()) == 0;
  }

  void Run(uint32_t id, Sequence& sequence) {
    reply = Reply(*session, sequence, *options);
    if (session->engine->model->Is("loud")) std::fputs("the toy decodes\n", stderr);
    size_t stop = std::string::npos;
    for (size_t i = 0; i < options->n_stop; ++i) stop = std::min(stop, reply.find(options->stop[i]));
    for (size_t i = 0;; ++i) {
      if (i == reply.size() && options->ignore_end != 0) reply += '!';
      if (i == reply.size()) {
        if (i > 0) sequence.tokens.push_back(sequence.pending);
        sequence.pending = kEnd;
        return;
      }
      if (i == stop) return void(result.finish = KVRUN_FINISH_STOP);
      if (options->repeat_limit == 4 && i == 3 && session->engine->model->Is("loop"))
        return void(result.finish = KVRUN_FINISH_REPEATS);
      if (options->max_tokens != 0 && i == options->max_tokens)
        return void(result.finish = KVRUN_FINISH_LENGTH);
      if (sequence.tokens.size() + (i > 0 ? 1 : 0) > session->options.n_ctx) {
        return void(result.finish = KVRUN_FINISH_CONTEXT_FULL);
      }
      if (i > 0) sequence.tokens.push_back(sequence.pending);
      session->Pause();
      sequence.pending = static_cast<unsigned char>(reply[i]);
      ++result.n_tokens;
      ++session->decode_tokens;
      held += reply[i];
      const size_t unfinished = UnfinishedBytes(held);
      const std::string certain = held.substr(0, held.size() - unfinished);
      held.erase(0, certain.size());
      if (!Deliver(id, sequence.pending, certain)) return void(result.finish = KVRUN_FINISH_CANCELLED);
    }
  }
};

}  // namespace

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
    Generator generator{session, options[i], token, user, {}, {}};
    generator.Run(sequences[i], session->sequences[sequences[i]]);
    if (!generator.held.empty()) generator.Deliver(sequences[i], -1, generator.held);
    results[i] = generator.result;
  }
  return KVRUN_OK;
}

kvrun_status kvrun_session_stats_json(const kvrun_session* session, char** json) {
  const auto kv_type = session->kv.find("type");
  const bool is_f32 = kv_type != session->kv.end() && kv_type->second == "f32";
  nlohmann::json stats = {
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
