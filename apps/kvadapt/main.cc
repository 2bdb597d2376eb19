// kvadapt, the command-line program that adapts kvrun to a model and a machine. It uses the public C header
// and offline/.
#include "apps/kvadapt/commands.h"

int main(int argc, char** argv) { return kvrun::cli::RunProgram(kvrun::cli::ThisProgram(), argc, argv); }
