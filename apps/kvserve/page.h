// The files of the page at "/" (apps/kvserve/page), which are part of the program.
#pragma once

#include <string_view>

namespace kvrun::serve {

struct PageFile {
  std::string_view path;  // "/", "/page.css"
  std::string_view content_type;
  std::string_view bytes;
};

// What the page may load and ask: this server, and nothing within the page's own text.
inline constexpr std::string_view kPagePolicy =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// nullptr: the page has no such file. None of them is secret: a browser asks for them before it knows the
// key.
const PageFile* FindPageFile(std::string_view path);

}  // namespace kvrun::serve
