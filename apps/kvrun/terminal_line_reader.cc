#include "apps/kvrun/terminal_line_reader.h"

#include <unistd.h>

int kvrun::cli::TerminalOutput() {
  return isatty(STDERR_FILENO) == 1 ? STDERR_FILENO : isatty(STDOUT_FILENO) == 1 ? STDOUT_FILENO : -1;
}

#ifdef KVRUN_WITHOUT_LIBEDIT

bool kvrun::cli::CanEditLines() { return false; }
kvrun::cli::TerminalLines kvrun::cli::OpenTerminalLines(const std::string&) { return {}; }

#else

#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "apps/common/files.h"
#include "apps/common/interrupt.h"
#include "apps/kvrun/chat_history.h"
#include "apps/kvrun/terminal_modes.h"
#include "apps/kvrun/wide_text.h"

namespace kvrun::cli {
namespace {

constexpr int kEntriesInMemory = 1000;
constexpr std::string_view kPasteEnd = "\033[201~";

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
struct EditLineEnder {
  void operator()(EditLine* editor) const { el_end(editor); }
};
struct HistoryEnder {
  void operator()(HistoryW* history) const { history_wend(history); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

std::atomic<bool> g_resized{false};
void OnResize(int) { g_resized.store(true); }

// Characters are shown as the locale has them; one that has no more than ASCII would show them as numbers.
void UseUtf8() {
  (void)std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) (void)std::setlocale(LC_CTYPE, "C.UTF-8");
}

// Terminals send the line ends of a paste as \r, some as they are.
std::string WithPlainLineEnds(std::string_view text) {
  std::string plain;
  plain.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    plain += text[i] == '\r' ? '\n' : text[i];
  }
  return plain;
}

// What was read of the terminal and is not used yet.
class TypedBytes {
 public:
  std::string_view rest() const { return std::string_view(bytes_).substr(used_); }
  bool ended() const { return ended_; }

  void Use(size_t n_bytes) {
    used_ += n_bytes;
    if (used_ < bytes_.size()) return;
    bytes_.clear();
    used_ = 0;
  }

  // What was read too far.
  void PutBack(std::string_view bytes) { bytes_.insert(used_, bytes); }

  // Waits for more. `on_event` is called when a signal came that ends nothing. False: it ended, or a signal
  // that ends something came.
  template <typename OnEvent>
  bool Read(const OnEvent& on_event) {
    if (ended_ || !Wait(on_event)) return false;
    char chunk[64 * 1024];
    const ssize_t size = ::read(STDIN_FILENO, chunk, sizeof chunk);
    if (size > 0) bytes_.append(chunk, static_cast<size_t>(size));
    if (size == 0 || (size < 0 && errno != EINTR && errno != EAGAIN)) ended_ = true;
    return !ended_;
  }

 private:
  // As WaitReadable, which does not come back for other signals.
  template <typename OnEvent>
  static bool Wait(const OnEvent& on_event) {
    sigset_t blocked;
    sigset_t original;
    sigemptyset(&blocked);
    for (const int number : {SIGINT, SIGTERM, SIGWINCH, SIGTSTP}) sigaddset(&blocked, number);
    pthread_sigmask(SIG_BLOCK, &blocked, &original);
    bool readable = false;
    while (!Interrupted() && !readable) {
      on_event();
      pollfd entry = {STDIN_FILENO, POLLIN, 0};
      const int ready = ppoll(&entry, 1, nullptr, &original);
      readable = ready > 0 || (ready < 0 && errno != EINTR);
    }
    pthread_sigmask(SIG_SETMASK, &original, nullptr);
    return readable;
  }

  std::string bytes_;
  size_t used_ = 0;
  bool ended_ = false;
};

class TerminalLineReader : public LineReader {
 public:
  TerminalLineReader(File output, EditLine* editor, const std::string& history_path)
      : output_(std::move(output)), editor_(editor), history_(history_winit()), kept_(history_path) {
    el_wset(editor, EL_CLIENTDATA, this);
    el_wset(editor, EL_GETCFN, ReadCharacter);
    el_wset(editor, EL_PROMPT, Prompt);
    el_wset(editor, EL_SIGNAL, 0);  // signals are the program's
    // Between lines the modes stay TerminalModes', and line ends come as they are typed.
    el_wset(editor, EL_SETTY, L"-x", L"-icanon", L"-echo", L"-icrnl", L"-inlcr", nullptr);
    el_wset(editor, EL_SETTY, L"-d", L"-icrnl", L"-inlcr", nullptr);
    if (history_ != nullptr) {
      HistEventW event;
      history_w(history_.get(), &event, H_SETSIZE, kEntriesInMemory);
      el_wset(editor, EL_HIST, history_w, history_.get());
      for (const std::string& entry : kept_.earlier()) EnterHistory(entry);
    }
    el_wset(editor, EL_EDITOR, L"emacs");
    (void)el_source(editor, nullptr);  // a person's own keys: ~/.editrc
    BindKeys();
  }

  const std::string& problem() const { return kept_.problem(); }

  std::optional<std::string> Next() override {
    struct sigaction resize = {};
    struct sigaction before = {};
    resize.sa_handler = OnResize;
    sigemptyset(&resize.sa_mask);
    sigaction(SIGWINCH, &resize, &before);
    std::optional<std::string> message = NextMessage();
    sigaction(SIGWINCH, &before, nullptr);
    return message;
  }

 private:
  enum class Outcome { kLine, kInterrupted, kEnd };

  std::optional<std::string> NextMessage() {
    bool interrupted_before = false;
    while (true) {
      std::string message;
      switch (ReadMessage(&message)) {
        case Outcome::kLine: Remember(message); return message;
        case Outcome::kEnd: Show("\n"); return std::nullopt;
        case Outcome::kInterrupted: break;
      }
      if (TerminationAsked() || (interrupted_before && message.empty())) {
        Show("\n");
        return std::nullopt;
      }
      interrupted_before = true;
      ClearInterrupt();
      Show("^C\nCtrl-C again, or Ctrl-D, ends the chat\n");
    }
  }

  // A line, and those that follow it where it ends with a backslash.
  Outcome ReadMessage(std::string* message) {
    continues_ = false;
    while (true) {
      std::string line;
      const Outcome outcome = ReadLine(&line);
      *message += line;
      if (outcome != Outcome::kLine || !message->ends_with('\\')) return outcome;
      message->back() = '\n';
      continues_ = true;
    }
  }

  Outcome ReadLine(std::string* line) {
    int n_characters = 0;
    const wchar_t* typed = el_wgets(editor_.get(), &n_characters);
    if (typed == nullptr || n_characters <= 0) {
      if (!Interrupted()) return Outcome::kEnd;
      const LineInfoW* unfinished = el_wline(editor_.get());
      *line =
          NarrowText({unfinished->buffer, static_cast<size_t>(unfinished->lastchar - unfinished->buffer)});
      return Outcome::kInterrupted;
    }
    std::wstring_view text(typed, static_cast<size_t>(n_characters));
    if (text.ends_with(L'\n')) text.remove_suffix(1);
    *line = NarrowText(text);
    return Outcome::kLine;
  }

  void Remember(const std::string& message) {
    if (message.find_first_not_of(" \t\r\n") == std::string::npos || message == last_) return;
    last_ = message;
    EnterHistory(message);
    kept_.Add(message);
  }

  void EnterHistory(const std::string& entry) {
    HistEventW event;
    if (history_ != nullptr) history_w(history_.get(), &event, H_ENTER, WideText(entry).c_str());
  }

  void Show(std::string_view text) {
    (void)std::fwrite(text.data(), 1, text.size(), output_.get());
    (void)std::fflush(output_.get());
  }

  void BindKeys() {
    EditLine* editor = editor_.get();
    el_wset(editor, EL_ADDFN, L"kvrun-paste", L"Insert what is pasted as it is", InsertPaste);
    el_wset(editor, EL_ADDFN, L"kvrun-newline", L"Go on in a new line", InsertNewline);
    el_wset(editor, EL_BIND, L"\\e[200~", L"kvrun-paste", nullptr);
    for (const wchar_t* keys : {L"\\e\\r", L"\\e\\n"}) {
      el_wset(editor, EL_BIND, keys, L"kvrun-newline", nullptr);
    }
    el_wset(editor, EL_BIND, L"^R", L"em-inc-search-prev", nullptr);
    el_wset(editor, EL_BIND, L"\\e[3~", L"ed-delete-next-char", nullptr);
    el_wset(editor, EL_BIND, L"\\e[H", L"ed-move-to-beg", nullptr);
    el_wset(editor, EL_BIND, L"\\e[F", L"ed-move-to-end", nullptr);
    el_wset(editor, EL_BIND, L"\\e[1;5C", L"em-next-word", nullptr);
    el_wset(editor, EL_BIND, L"\\e[1;5D", L"ed-prev-word", nullptr);
  }

  static TerminalLineReader* Of(EditLine* editor) {
    void* self = nullptr;
    el_wget(editor, EL_CLIENTDATA, &self);
    return static_cast<TerminalLineReader*>(self);
  }

  // Called by libedit. Nothing may be thrown through it.
  static wchar_t* Prompt(EditLine* editor) {
    static wchar_t first[] = L"> ";
    static wchar_t next[] = L". ";
    return Of(editor)->continues_ ? next : first;
  }

  static int ReadCharacter(EditLine* editor, wchar_t* character) {
    try {
      return Of(editor)->ReadOne(character);
    } catch (...) {
      return -1;
    }
  }

  static unsigned char InsertPaste(EditLine* editor, wint_t) {
    try {
      const std::optional<std::string> text = Of(editor)->ReadPaste();
      if (!text) return CC_ERROR;
      if (!text->empty()) el_winsertstr(editor, WideText(WithPlainLineEnds(*text)).c_str());
      return CC_REFRESH;
    } catch (...) {
      return CC_ERROR;
    }
  }

  static unsigned char InsertNewline(EditLine* editor, wint_t) {
    el_winsertstr(editor, L"\n");
    return CC_REFRESH;
  }

  // 1; 0 at the end of the input; -1 if a signal came that ends the line.
  int ReadOne(wchar_t* character) {
    if (Interrupted()) return -1;
    while (true) {
      const WideCharacter first = FirstCharacter(typed_.rest(), typed_.ended());
      if (first.n_bytes > 0) {
        *character = first.value == kLoneByte ? L'\0' : first.value;  // Ctrl-@ is a key
        typed_.Use(first.n_bytes);
        return 1;
      }
      if (!ReadMore()) return Interrupted() ? -1 : 0;
    }
  }

  // All until the mark of its end. Nothing if a signal or the input's end came first.
  std::optional<std::string> ReadPaste() {
    std::string text;
    while (true) {
      // Where the mark may begin in what was there before, and end in what came.
      const size_t searched = text.size() - std::min(text.size(), kPasteEnd.size() - 1);
      text += typed_.rest();
      typed_.Use(typed_.rest().size());
      const size_t end = text.find(kPasteEnd, searched);
      if (end != std::string::npos) {
        typed_.PutBack(text.substr(end + kPasteEnd.size()));
        text.resize(end);
        return text;
      }
      if (!ReadMore()) return std::nullopt;
    }
  }

  bool ReadMore() {
    return typed_.Read([this] {
      if (g_resized.exchange(false)) el_resize(editor_.get());
      if (TerminalModes::TakeContinued()) el_wset(editor_.get(), EL_REFRESH);
    });
  }

  File output_;
  std::unique_ptr<EditLine, EditLineEnder> editor_;
  std::unique_ptr<HistoryW, HistoryEnder> history_;
  ChatHistory kept_;
  TypedBytes typed_;
  std::string last_;
  bool continues_ = false;
};

}  // namespace

bool CanEditLines() { return isatty(STDIN_FILENO) == 1 && TerminalOutput() >= 0; }

TerminalLines OpenTerminalLines(const std::string& history_path) {
  if (!CanEditLines()) return {};
  const int output = ::fcntl(TerminalOutput(), F_DUPFD_CLOEXEC, 3);
  if (output < 0) return {};
  File file(::fdopen(output, "w"));
  if (file == nullptr) {
    ::close(output);
    return {};
  }
  UseUtf8();
  EditLine* editor = el_init("kvrun", stdin, file.get(), file.get());
  if (editor == nullptr) return {};
  auto reader = std::make_unique<TerminalLineReader>(std::move(file), editor, history_path);
  const std::string note = reader->problem();
  return {std::move(reader), note};
}

}  // namespace kvrun::cli

#endif
