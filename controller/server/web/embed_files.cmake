# SPDX-License-Identifier: Apache-2.0
# cmake -DROOT=dir -DOUTPUT=file.cc -DFILES=a|b|c -P embed_files.cmake: writes WebFiles() with the contents
# of FILES, which are named relative to ROOT.
string(REPLACE "|" ";" files "${FILES}")
set(arrays "")
set(table "")
set(index 0)
foreach(file IN LISTS files)
  file(READ "${ROOT}/${file}" hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(................................................................................)"
         "\\1\n" bytes "${bytes}")
  get_filename_component(extension "${file}" LAST_EXT)
  if(extension STREQUAL ".html")
    set(type "text/html; charset=utf-8")
  elseif(extension STREQUAL ".js" OR extension STREQUAL ".mjs")
    set(type "text/javascript; charset=utf-8")
  elseif(extension STREQUAL ".css")
    set(type "text/css; charset=utf-8")
  elseif(extension STREQUAL ".svg")
    set(type "image/svg+xml")
  elseif(extension STREQUAL ".png")
    set(type "image/png")
  elseif(extension STREQUAL ".woff2")
    set(type "font/woff2")
  else()
    set(type "text/plain; charset=utf-8")
  endif()
  file(SHA256 "${ROOT}/${file}" digest)
  string(SUBSTRING "${digest}" 0 16 digest)
  # An empty file still needs an array: the span leaves the terminator out.
  string(APPEND arrays "constexpr unsigned char kFile${index}[] = {\n${bytes}0};\n")
  string(APPEND table "    {\"/${file}\", \"${type}\", \"\\\"${digest}\\\"\", {kFile${index}, sizeof(kFile${index}) - 1}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUTPUT}" "// Generated from dashboards/web/dist.
#include \"controller/server/web/web_files.h\"

namespace weir {
namespace {
${arrays}
const WebFile kFiles[] = {
${table}};
}  // namespace

std::span<const WebFile> WebFiles() { return kFiles; }
}  // namespace weir
")
