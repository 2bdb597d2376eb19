// The C API with owners, exceptions and C++ strings: what the commands use.
#pragma once

#include <kvrun/kvrun.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace kvrun::cli {

using Json = nlohmann::ordered_json;

struct ModelCloser {
  void operator()(kvrun_model* model) const { kvrun_model_close(model); }
};
struct EngineDestroyer {
  void operator()(kvrun_engine* engine) const { kvrun_engine_destroy(engine); }
};
struct SessionDestroyer {
  void operator()(kvrun_session* session) const { kvrun_session_destroy(session); }
};
using Model = std::unique_ptr<kvrun_model, ModelCloser>;
using Engine = std::unique_ptr<kvrun_engine, EngineDestroyer>;
using Session = std::unique_ptr<kvrun_session, SessionDestroyer>;

// Throws what kvrun_last_error() says (an Interruption where the call was cancelled) unless status is
// KVRUN_OK.
void Check(kvrun_status status);

Model OpenModel(const std::string& path);
Model OpenAnyModel(const std::string& path);  // kvrun_model_open_any
Engine CreateEngine(const Model& model, const kvrun_engine_options& options);
Session CreateSession(const Engine& engine, const kvrun_session_options& options);

std::vector<int32_t> Tokenize(const Model& model, std::string_view text, uint32_t flags);
std::string Detokenize(const Model& model, const std::vector<int32_t>& ids);
// As inside a text: alone, some tokens lose the space that they begin with.
std::string TextOfToken(const Model& model, int32_t id);
// How many bytes of the text are not in the model's vocabulary.
uint64_t CountLostBytes(const Model& model, std::string_view text, uint32_t flags);
std::vector<int32_t> EncodeMessages(const Model& model, const std::vector<kvrun_chat_message>& messages,
                                    const kvrun_chat_options& options);

// Take over, parse and free what the API handed out.
std::string TakeText(char* text);
Json TakeJson(char* text);

Json ModelInfo(const Model& model);
// What a session would make of its budget (kvrun_kv_plan_json).
Json KvPlan(const Model& model, const kvrun_session_options& options);
Json EngineInfo(const Engine& engine);
Json SessionStats(const Session& session);

// Of a sequence.
std::vector<int32_t> TokensOf(const Session& session, uint32_t sequence);
// How many tokens both begin with.
size_t CommonLength(const std::vector<int32_t>& a, const std::vector<int32_t>& b);
// Feeds ids to sequence 0, whose first `kept` tokens are the first of them and stay. Where these are damaged,
// or cannot be cut there, all are fed; answers why, or an empty text.
std::string FeedFrom(const Session& session, const std::vector<int32_t>& ids, size_t kept);
// The same, keeping what the sequence has in common with them; something is fed in any case.
std::string FeedRest(const Session& session, const std::vector<int32_t>& ids);

// A save point, where the session is kept. False: it could not be made, which is said.
bool Keep(const Session& session);

const char* FinishName(kvrun_finish finish);

// Parsing and writing live in one file because they take seconds to compile.
// is_discarded() if the text is not JSON, or beyond the usual limits (json_limits.h); what is wrong with it
// goes into `why`: "column 3: ..." of its line.
Json ParseJson(std::string_view text, std::string* why = nullptr);
// On one line; bytes that are not UTF-8 become U+FFFD.
std::string DumpJson(const Json& json);
// The same, and the end of the line.
std::string JsonLine(const Json& json);
// A string as it is, anything else as DumpJson().
std::string TextOf(const Json& value);

}  // namespace kvrun::cli
