// kvrun, the command-line program. It uses the public C header and nothing else of kvrun.
#include "apps/kvrun/commands.h"

int main(int argc, char** argv) { return kvrun::cli::RunProgram(kvrun::cli::ThisProgram(), argc, argv); }
