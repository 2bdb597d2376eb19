#include "apps/kvrun/long_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/kvrun/token_json.h"

namespace kvrun::cli {
namespace {

// Of fewer tokens of each nothing can be made.
constexpr uint32_t kLeastOfAnswer = 32;

std::string WithoutOuterBlanks(const std::string& text) {
  constexpr const char* kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

class PartsAsker {
 public:
  explicit PartsAsker(const PartsJob& job) : job_(job), generation_(job.generation) {
    // An answer that is longer would leave no room for the others'.
    uint32_t& max_tokens = generation_.values.max_tokens;
    max_tokens = max_tokens == 0 ? job.space.room : std::min(max_tokens, job.space.room);
    generation_.values.n_logprobs = 0;
  }

  AskedParts Ask(const std::vector<std::string>& parts) {
    AskedParts asked;
    std::vector<std::string> answers;
    CheckRoomToJoin();  // better now than when all parts are asked
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string what = fmt::format("part {} of {}", i + 1, parts.size());
      const std::vector<int32_t> ids =
          job_.encode(std::vector<Document>{Document{"", parts[i]}}, job_.question);
      const Answer answer = Generated(what, ids);
      asked.answers.push_back(AnswerJson(answer, ids.size(), job_.shows_reasoning));
      answers.push_back(WithoutOuterBlanks(answer.text));
    }
    while (true) {
      asked.ids = Joining(answers);
      if (asked.ids.size() <= job_.space.limit() || answers.size() <= 2) break;
      answers = Fewer(answers);
    }
    if (asked.ids.size() > job_.space.limit()) asked.ids = JoiningTwo(answers);
    Say(fmt::format("joining {} answers: {} tokens", answers.size(), Grouped(asked.ids.size())));
    return asked;
  }

 private:
  void CheckRoomToJoin() const {
    const size_t n_around = Joining(std::vector<std::string>(2)).size();
    const uint32_t of_answers = 2 * std::min(kLeastOfAnswer, generation_.values.max_tokens);
    if (n_around + of_answers <= job_.space.limit()) return;
    throw Failure(
        KVRUN_CONTEXT_FULL,
        fmt::format("--long split: the prompt that joins two answers has {} tokens without them; with "
                    "an answer of {} that leaves them {} tokens in the context of {}, and {} are "
                    "the least that it takes: give a larger --ctx, or a shorter question",
                    n_around, job_.space.room,
                    job_.space.limit() - std::min<size_t>(job_.space.limit(), n_around), job_.space.n_ctx,
                    of_answers));
  }

  void Say(const std::string& text) const {
    if (!job_.quiet) PrintMessage(text);
  }

  Answer Generated(const std::string& what, const std::vector<int32_t>& ids) {
    Say(fmt::format("{}: {} tokens", what, Grouped(ids.size())));
    job_.progress->SetLabel(what);
    Check(kvrun_session_truncate(job_.session.get(), 0, 0));
    Check(kvrun_session_feed(job_.session.get(), 0, ids.data(), ids.size()));
    job_.progress->Clear();
    Answer answer = Generate(job_.session, generation_, BeginReasoning(job_.model, ids), {});
    if (answer.finish == KVRUN_FINISH_CANCELLED) throw Interruption();
    return answer;
  }

  std::string JoiningQuestion(size_t n) const {
    return fmt::format(
        "These are answers from {} parts of one text, in its order, to the same question. Join them into one "
        "answer to it. The question: {}",
        n, job_.question);
  }

  static std::vector<Document> AsDocuments(std::span<const std::string> answers) {
    std::vector<Document> documents;
    for (const std::string& answer : answers) {
      documents.push_back({fmt::format("the answer from part {}", documents.size() + 1),
                           fmt::format("The answer from part {}:\n{}", documents.size() + 1, answer)});
    }
    return documents;
  }

  std::vector<int32_t> Joining(std::span<const std::string> answers) const {
    return job_.encode(AsDocuments(answers), JoiningQuestion(answers.size()));
  }

  // Where even two do not fit, their middles are left out.
  std::vector<int32_t> JoiningTwo(std::span<const std::string> answers) const {
    std::vector<Document> documents = AsDocuments(answers);
    const std::string question = JoiningQuestion(answers.size());
    const EncodeDocuments encode = [&](const std::vector<Document>& some) {
      return job_.encode(some, question);
    };
    const std::vector<LeftOut> left_out =
        CutDocuments(job_.model, job_.parse_special, job_.space, encode, &documents);
    if (!job_.quiet) SayLeftOut(left_out, job_.space);
    return encode(documents);
  }

  // As many together as fit, at least two: fewer come of it.
  std::vector<std::string> Fewer(const std::vector<std::string>& answers) {
    std::vector<std::string> fewer;
    for (size_t begin = 0; begin < answers.size();) {
      const auto rest = std::span(answers).subspan(begin);
      size_t n = std::min<size_t>(2, rest.size());
      while (n < rest.size() && Joining(rest.first(n + 1)).size() <= job_.space.limit()) ++n;
      begin += n;
      if (n == 1) {
        fewer.push_back(rest.front());
        break;
      }
      std::vector<int32_t> ids = Joining(rest.first(n));
      if (ids.size() > job_.space.limit()) ids = JoiningTwo(rest.first(n));
      const std::string what = fmt::format("answers {} to {} of {}", begin - n + 1, begin, answers.size());
      fewer.push_back(WithoutOuterBlanks(Generated(what, ids).text));
    }
    return fewer;
  }

  const PartsJob& job_;
  GenerationOptions generation_;  // of the parts
};

}  // namespace

AskedParts AskParts(const PartsJob& job, const std::vector<std::string>& parts) {
  return PartsAsker(job).Ask(parts);
}

}  // namespace kvrun::cli
