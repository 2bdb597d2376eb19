// How many functions the classes of a header offer: what a reader has to learn of each.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace kvrun::testing {

// Public member functions of each class and struct that the header defines, overloads and operators one by
// one, by name ("Outer::Inner"). Not counted: constructors, destructors, what is deleted, what a base has.
// Knows C++ as this repository writes it: no macros that open a brace, no raw strings.
std::map<std::string, size_t> PublicFunctions(std::string_view header);

}  // namespace kvrun::testing
