# SPDX-License-Identifier: Apache-2.0
# cmake -DINPUT=file.desc -DOUTPUT=file.cc -P embed_protos.cmake: writes ProtoFiles() with the bytes of INPUT.
file(READ "${INPUT}" hex HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)"
       "\\1\n" bytes "${bytes}")
file(WRITE "${OUTPUT}" "// Generated from proto/weir/v1.
#include \"controller/server/rest/api_comments.h\"

namespace weir {
namespace {
constexpr unsigned char kProtoFiles[] = {
${bytes}};
}  // namespace

std::span<const unsigned char> ProtoFiles() { return kProtoFiles; }
}  // namespace weir
")
