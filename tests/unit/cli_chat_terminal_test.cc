// kvrun chat on a terminal: line editing, pastes, history, and the terminal's modes.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/cli_fixture.h"
#include "tests/support/terminal_program.h"

namespace kvrun {
namespace {

using testing::Contains;

// The toy "transcript" answers with all it was told. The lines of a history go into a folder of the test's.
class CliChatTerminal : public ::testing::Test {
 protected:
  std::vector<std::string> Environment(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> environment = {"HOME=" + home_.Path("")};
    environment.insert(environment.end(), more.begin(), more.end());
    return environment;
  }
  TerminalProgram Chat(const std::string& model) const {
    return TerminalProgram(KVRUN_FAKE_PROGRAM, {"chat", "-m", model, "--quiet", "--temp", "0", "-n", "-1"},
                           Environment());
  }
  // As the toy gets a conversation's first message.
  static std::string First(const std::string& message) {
    return fmt::format("[<bos><start>system:be good<end><start>user:{}<end><start>assistant:]", message);
  }
  std::string HistoryPath() const { return home_.Path(".local/state/kvrun/chat_history"); }

  // What a terminal shows of a line end in an answer.
  static std::string OnTerminal(const std::string& text) {
    std::string shown;
    for (const char c : text) shown += c == '\n' ? std::string("\r\n") : std::string(1, c);
    return shown;
  }
  // "00000 00006 ...", so that a part that is missing shows.
  static std::string Numbers(size_t n_bytes) {
    std::string text;
    while (text.size() < n_bytes) text += fmt::format("{:05} ", text.size());
    return text;
  }
  static std::string Pasted(const std::string& text) { return "\033[200~" + text + "\033[201~"; }

  TemporaryFolder home_;
};

TEST_F(CliChatTerminal, ALongLineArrivesWhole) {
  TerminalProgram program = Chat("transcript-roomy");
  const std::string message = Numbers(10000);
  ASSERT_TRUE(program.WaitFor("> "));
  program.Type(message + "\r");
  EXPECT_TRUE(program.WaitFor(First(message))) << program.Output();
}

TEST_F(CliChatTerminal, ALineThatIsTypedWhileTheModelAnswersArrivesWholeToo) {
  TerminalProgram program = Chat("slow-endless");
  ASSERT_TRUE(program.WaitFor("> "));
  program.Type("hello\r");
  ASSERT_TRUE(program.WaitFor("xxx"));
  program.Type(Numbers(9000) + "\r");
  program.Signal(SIGINT);
  EXPECT_TRUE(program.WaitFor("\n> ")) << "the answer is stopped";
  EXPECT_TRUE(program.WaitFor("08994")) << "the line is edited up to its end\n" << program.Output();
}

TEST_F(CliChatTerminal, APasteOfSeveralLinesIsOneMessage) {
  TerminalProgram program = Chat("transcript");
  ASSERT_TRUE(program.WaitFor("\033[?2004h")) << "pastes are marked";
  ASSERT_TRUE(program.WaitFor("> "));
  // Terminals send line ends as \r, some as they are.
  program.Type(Pasted("one\rtwo\nthree\r\n\r/exit") + " and more\r");
  EXPECT_TRUE(program.WaitFor(OnTerminal(First("one\ntwo\nthree\n\n/exit and more")))) << program.Output();
  program.Type("/exit\r");
  EXPECT_EQ(program.Finish(), 0);
  EXPECT_PRED2(Contains, program.Output(), "\033[?2004l");
}

TEST_F(CliChatTerminal, APasteThatBeginsWithASlashIsAMessage) {
  TerminalProgram program = Chat("transcript");
  ASSERT_TRUE(program.WaitFor("> "));
  program.Type(Pasted("/usr/bin\r/reset\rwhat are these?") + "\r");
  EXPECT_TRUE(program.WaitFor(OnTerminal(First("/usr/bin\n/reset\nwhat are these?")))) << program.Output();
}

TEST_F(CliChatTerminal, APasteOfAMebibyteArrivesWhole) {
  TerminalProgram program = Chat("roomy");
  ASSERT_TRUE(program.WaitFor("> "));
  std::string text;
  while (text.size() < (1U << 20)) text += "A line of a long document, as people paste them into a chat.\r";
  program.Type(Pasted(text) + "\r");
  // The toy says how many tokens it got: 35 of its form, and a byte of the message each.
  const std::string length = fmt::format("{}:", 35 + text.size());
  EXPECT_TRUE(program.WaitFor(length)) << length;
}

TEST_F(CliChatTerminal, ABackslashAtTheEndOrAltEnterBeginsALine) {
  TerminalProgram program = Chat("transcript");
  ASSERT_TRUE(program.WaitFor("> "));
  program.Type("one\\\rtwo\033\rthree\r");
  EXPECT_TRUE(program.WaitFor(OnTerminal(First("one\ntwo\nthree")))) << program.Output();
}

TEST_F(CliChatTerminal, Utf8AndBytesThatAreNoneArriveAsTheyAre) {
  for (const char* locale : {"LC_ALL=C", "LC_ALL=C.UTF-8"}) {
    TerminalProgram program(KVRUN_FAKE_PROGRAM, {"chat", "-m", "transcript", "-q", "--temp", "0"},
                            Environment({locale}));
    ASSERT_TRUE(program.WaitFor("> "));
    program.Type("gr\u00FC\u00DFe \u4F60\u597D \U0001F600 \xFF\xC3!\r");
    EXPECT_TRUE(program.WaitFor(First("gr\u00FC\u00DFe \u4F60\u597D \U0001F600 \xFF\xC3!")))
        << locale << "\n"
        << program.Output();
  }
}

TEST_F(CliChatTerminal, ControlCharactersOfAPasteAreShownAndNotCarriedOut) {
  TerminalProgram program = Chat("roomy");
  ASSERT_TRUE(program.WaitFor("> "));
  program.Type(Pasted("a\033]0;title\007b\033[2Jc"));
  EXPECT_TRUE(program.WaitFor("a^[]0;title^Gb^[[2Jc")) << program.Output();
}

TEST_F(CliChatTerminal, HistoryComesBackByArrowUpInTheNextChatToo) {
  {
    TerminalProgram program = Chat("transcript");
    ASSERT_TRUE(program.WaitFor("> "));
    program.Type("first\r");
    ASSERT_TRUE(program.WaitFor(":]\r\n> "));
    program.Type(Pasted("second\rmore") + "\r");
    ASSERT_TRUE(program.WaitFor(":]\r\n> "));
    program.Type("/reset\r\033[A\033[A\033[A\r");
    ASSERT_TRUE(program.WaitFor(First("first"))) << program.Output();
    program.Type("/exit\r");
    EXPECT_EQ(program.Finish(), 0);
  }
  struct stat facts = {};
  ASSERT_EQ(::stat(HistoryPath().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  TerminalProgram program = Chat("transcript");
  ASSERT_TRUE(program.WaitFor("> "));
  program.Type("\033[A\033[A\033[A\033[A\r");  // /exit, first, /reset, second
  EXPECT_TRUE(program.WaitFor(OnTerminal(First("second\nmore")))) << program.Output();
}

TEST_F(CliChatTerminal, NoHistoryIsKeptWhereNoneIsWanted) {
  TerminalProgram program(KVRUN_FAKE_PROGRAM, {"chat", "-m", "transcript", "-q"},
                          Environment({"KVRUN_NO_HISTORY=1"}));
  ASSERT_TRUE(program.WaitFor("> "));
  program.Type("secret\r/exit\r");
  EXPECT_EQ(program.Finish(), 0);
  EXPECT_NE(::access(HistoryPath().c_str(), F_OK), 0);
}

TEST_F(CliChatTerminal, AHistoryThatCannotBeKeptIsSaidAndTheChatGoesOn) {
  const std::string target = home_.Write("notes.txt", "my notes\n");
  ASSERT_EQ(::mkdir(home_.Path("kvrun").c_str(), 0700), 0);
  ASSERT_EQ(::symlink(target.c_str(), home_.Path("kvrun/chat_history").c_str()), 0);
  for (const std::string& state : {home_.Path(""), std::string("/proc/none")}) {
    TerminalProgram program(KVRUN_FAKE_PROGRAM, {"chat", "-m", "transcript", "--temp", "0"},
                            {"XDG_STATE_HOME=" + state});
    ASSERT_TRUE(program.WaitFor("cannot keep what is typed in")) << program.Output();
    program.Type("hello\r");
    EXPECT_TRUE(program.WaitFor(First("hello"))) << program.Output();
    program.Type("/exit\r");
    EXPECT_EQ(program.Finish(), 0);
  }
  EXPECT_EQ(ReadWholeFile(target), "my notes\n");
}

TEST_F(CliChatTerminal, CtrlCClearsTheLineAndTwiceEnds) {
  TerminalProgram program = Chat("transcript");
  ASSERT_TRUE(program.WaitFor("> "));
  program.Type("wrong\003");
  ASSERT_TRUE(program.WaitFor("^C")) << program.Output();
  program.Type("right\r");
  EXPECT_TRUE(program.WaitFor(First("right"))) << program.Output();
  ASSERT_TRUE(program.WaitFor("> "));
  program.Type("\003");
  ASSERT_TRUE(program.WaitFor("Ctrl-C again"));
  program.Type("\003");
  EXPECT_EQ(program.Finish(), 130);
}

TEST_F(CliChatTerminal, ItsModesAreBackAtTheEnd) {
  const auto expect_usual = [](const termios& modes, const char* why) {
    constexpr tcflag_t kUsual = ICANON | ECHO | ISIG | IEXTEN;
    EXPECT_EQ(modes.c_lflag & kUsual, kUsual) << why;
    EXPECT_EQ(modes.c_iflag & ICRNL, tcflag_t{ICRNL}) << why;
  };
  for (const char* end : {"/exit\r", "\004"}) {
    TerminalProgram program = Chat("transcript");
    ASSERT_TRUE(program.WaitFor("> "));
    program.Type(end);
    EXPECT_EQ(program.Finish(), 0);
    expect_usual(program.Modes(), end);
    EXPECT_PRED2(Contains, program.Output(), "\033[?2004l");
  }
  const std::pair<int, int> kEnds[] = {{SIGTERM, 130}, {SIGHUP, 128 + SIGHUP}, {SIGQUIT, 128 + SIGQUIT}};
  for (const auto& [signal, exit_code] : kEnds) {
    for (const bool answering : {false, true}) {
      TerminalProgram program = Chat("slow-endless");
      ASSERT_TRUE(program.WaitFor("> "));
      program.Type(answering ? "hello\r" : "hello");
      ASSERT_TRUE(program.WaitFor(answering ? "xxx" : "hello"));
      program.Signal(signal);
      EXPECT_EQ(program.Finish(), exit_code);
      expect_usual(program.Modes(), strsignal(signal));
      EXPECT_PRED2(Contains, program.Output(), "\033[?2004l");
    }
  }
}

// By a shell with job control, as nothing else can stop and continue it.
TEST_F(CliChatTerminal, StoppedAndContinuedItGoesOn) {
  const std::string chat = ShellWords(KVRUN_FAKE_PROGRAM) + " chat -m transcript --quiet --temp 0";
  TerminalProgram program("/bin/sh", {"-c", "set -m; " + chat + "; stty -a; read line; fg"}, Environment());
  ASSERT_TRUE(program.WaitFor("> "));
  program.Type("hel");
  ASSERT_TRUE(program.WaitFor("hel"));
  program.Type("\032");
  ASSERT_TRUE(program.WaitFor(" icanon")) << "the shell finds the terminal as it was\n" << program.Output();
  program.Type("\n");
  ASSERT_TRUE(program.WaitFor("> hel")) << "it is shown again\n" << program.Output();
  program.Type("lo\r");
  EXPECT_TRUE(program.WaitFor(First("hello"))) << program.Output();
}

}  // namespace
}  // namespace kvrun
