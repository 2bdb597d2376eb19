# Install rules: filled in with the CMake package and the pkg-config file.
