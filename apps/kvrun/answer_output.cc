#include "apps/kvrun/answer_output.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "apps/common/colour.h"
#include "apps/common/files.h"

namespace kvrun::cli {
namespace {

class AnswerWriter {
 public:
  explicit AnswerWriter(bool shows_reasoning) : shows_reasoning_(shows_reasoning) {}

  // 0, or the errno of a write that failed.
  int Write(const GeneratedPiece& piece) {
    if (piece.text.empty() || (piece.is_reasoning && !shows_reasoning_)) return 0;
    std::string out;
    if (piece.is_reasoning && !in_reasoning_) out += Opening();
    if (!piece.is_reasoning && in_reasoning_) out += Closing() + "\n\n";
    in_reasoning_ = piece.is_reasoning;
    has_written_ = true;
    out += Coloured(piece.text, piece.is_reasoning ? Tone::kDim : Tone::kPlain, STDOUT_FILENO);
    return TryWriteStdout(out);
  }

  // Thoughts may never have ended.
  void End() const {
    if (in_reasoning_) WriteStdout(Closing());
  }

 private:
  std::string Opening() const { return std::string(has_written_ ? "\n\n" : "") + (dims_ ? "" : "<think>\n"); }
  std::string Closing() const { return dims_ ? "" : "\n</think>"; }

  const bool shows_reasoning_;
  const bool dims_ = TakesColour(STDOUT_FILENO);
  bool in_reasoning_ = false;
  bool has_written_ = false;
};

}  // namespace

Answer GenerateOnStdout(const Session& session, const GenerationOptions& generation, Reasoning reasoning,
                        bool shows_reasoning) {
  AnswerWriter writer(shows_reasoning);
  Answer answer = Generate(session, generation, std::move(reasoning),
                           [&writer](const GeneratedPiece& piece) { return writer.Write(piece); });
  writer.End();
  return answer;
}

}  // namespace kvrun::cli
