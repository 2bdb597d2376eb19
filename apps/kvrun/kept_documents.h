// Long documents of run and chat are kept without being asked for, so that whoever asks about one again waits
// for the question alone. Each is a session of the user's folder, under a key of the user's own, named after
// how its text begins: a text that differs later is the same document, of which what follows the difference
// is read again. What prevents it costs reading again, and never the answer.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "apps/common/api.h"
#include "apps/common/failure.h"
#include "apps/common/options.h"
#include "apps/common/progress.h"
#include "apps/common/session_plan.h"
#include "apps/common/shared_options.h"

namespace kvrun::cli {

// --keep and --no-keep.
struct Keeping {
  uint64_t most_bytes = uint64_t{20} << 30;  // of all documents together
  bool is_off = false;
  bool is_asked = false;  // what prevents it is said then

  bool is_on() const { return !is_off && most_bytes > 0; }
};
// The help of --keep and --no-keep.
struct KeepHelp {
  const char* keep =
      "keep long documents of -f, encrypted with a key of your own, and read of one that was read before "
      "only "
      "what differs and the question: at most so much in all, the least recently used go first (default 20G, "
      "where the processor has AES and --kv-dir is not given)";
  const char* no_keep = "keep no document, and use none that is kept (the same as --keep 0)";
};
void AddKeepOptions(OptionSet* set, Keeping* keeping, const KeepHelp& help = {});

// What the session is for. All of it outlives the document.
struct DocumentUse {
  const Keeping& keeping;
  const Model& model;
  const SharedOptions& shared;
  uint32_t n_ctx;
  uint64_t seed;
};

// The session of one text, kept as a document where that is possible and the user has named none. It has to
// outlive the sessions that it starts: what was begun and never saved goes with it. One thread.
class KeptDocument {
 public:
  // Plans as PlanSession does. ids: how the text begins that is to be kept; empty: none is.
  KeptDocument(const DocumentUse& use, std::span<const int32_t> ids);
  ~KeptDocument();
  KeptDocument(const KeptDocument&) = delete;
  KeptDocument& operator=(const KeptDocument&) = delete;

  // False: it is not kept, or by its user's name.
  bool is_chosen() const { return !name_.empty(); }

  // As StartSession. Where it cannot be kept, a session that is not.
  Session Start(const LoadedEngine& loaded, Progress* progress);
  // Whether what failed may go without a document.
  bool MayBeTheReason(const Failure& failure) const;
  // One that is not kept, after the failure of one that was, and which is gone.
  Session StartWithout(const LoadedEngine& loaded, Progress* progress, const std::string& why);

  // A save point, once: what follows the document is cut off at its next use. Others go, the least recently
  // used first, until all together take no more than they may.
  void Keep(const Session& session);

 private:
  struct Trial;

  void Choose(std::span<const int32_t> ids);
  void CheckPlan() const;
  Trial TryToStart(const LoadedEngine& loaded, Progress* progress);
  void GiveUp(const std::string& why);
  void SayFirstTime(const std::string& path) const;

  const DocumentUse use_;
  SharedOptions shared_;  // with the session that was chosen
  uint32_t n_ctx_;        // what is kept may have a longer one
  SessionPlan plan_;
  std::string name_;     // of the session; empty: none was chosen
  bool is_new_ = false;  // nothing lay there
  bool is_saved_ = false;
  bool is_too_large_ = false;  // it goes when the sessions have gone
};

}  // namespace kvrun::cli
