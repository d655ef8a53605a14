// SPDX-License-Identifier: Apache-2.0
#include "controller/store/etcd/fields.h"

#include <zlib.h>

#include <charconv>
#include <cstdio>
#include <cstring>

namespace weir {
namespace {

constexpr size_t kPackFrom = 512;           // shorter values hardly become smaller
constexpr size_t kUnpackedMax = 256 << 20;  // of a value, which nobody wrote that is longer
constexpr char kPlain = 'p', kPacked = 'z';

void AppendLength(size_t length, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>(length >> shift));
}

size_t LengthAt(std::string_view bytes) {
  size_t length = 0;
  for (size_t i = 0; i < 4; ++i) {
    length |= static_cast<size_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return length;
}

std::string Pack(std::string plain) {
  if (plain.size() < kPackFrom) return kPlain + std::move(plain);
  uLongf size = compressBound(plain.size());
  std::string out;
  out.push_back(kPacked);
  AppendLength(plain.size(), &out);
  const size_t head = out.size();
  out.resize(head + size);
  if (compress2(reinterpret_cast<Bytef*>(out.data() + head), &size,
                reinterpret_cast<const Bytef*>(plain.data()), plain.size(), Z_BEST_SPEED) != Z_OK) {
    return kPlain + std::move(plain);
  }
  out.resize(head + size);
  return out;
}

StatusOr<std::string> Unpack(std::string_view value) {
  if (!value.empty() && value[0] == kPlain) return std::string(value.substr(1));
  if (value.size() < 5 || value[0] != kPacked) return DataLoss("a value in etcd is not Weir's");
  uLongf size = LengthAt(value.substr(1));
  if (size > kUnpackedMax) return DataLoss(StrCat("a value in etcd claims ", size, " bytes"));
  std::string plain(size, '\0');
  const std::string_view packed = value.substr(5);
  if (uncompress(reinterpret_cast<Bytef*>(plain.data()), &size,
                 reinterpret_cast<const Bytef*>(packed.data()), packed.size()) != Z_OK ||
      size != plain.size()) {
    return DataLoss("a value in etcd is damaged");
  }
  return plain;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

}  // namespace

std::string JoinFields(const std::vector<std::string_view>& fields) {
  std::string out;
  for (const std::string_view field : fields) {
    AppendLength(field.size(), &out);
    out += field;
  }
  return Pack(std::move(out));
}

StatusOr<std::vector<std::string>> SplitFields(std::string_view value, size_t count) {
  WEIR_ASSIGN_OR_RETURN(const std::string plain, Unpack(value));
  std::vector<std::string> fields;
  std::string_view rest = plain;
  while (fields.size() < count) {
    if (rest.size() < 4 || rest.size() - 4 < LengthAt(rest)) {
      return DataLoss(
          StrCat("a value in etcd has ", fields.size(), " fields, expected at least ", count));
    }
    const size_t length = LengthAt(rest);
    fields.emplace_back(rest.substr(4, length));
    rest.remove_prefix(4 + length);
  }
  return fields;
}

std::string KeyPart(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '/' || c == '%') {
      char escaped[4];
      std::snprintf(escaped, sizeof(escaped), "%%%02X", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out;
}

std::string KeyPart(uint64_t number) {
  char digits[24];
  std::snprintf(digits, sizeof(digits), "%020llu", static_cast<unsigned long long>(number));
  return digits;
}

StatusOr<std::string> LastKeyPart(std::string_view key) {
  const std::string_view part = key.substr(key.rfind('/') + 1);
  std::string out;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] != '%') {
      out += part[i];
      continue;
    }
    const int high = i + 2 < part.size() ? HexDigit(part[i + 1]) : -1;
    const int low = high < 0 ? -1 : HexDigit(part[i + 2]);
    if (low < 0) return DataLoss("a key in etcd is not Weir's");
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

std::string FieldText(double number) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), number);
  return error == std::errc() ? std::string(text, end) : "0";
}

double NumberOf(std::string_view text) {
  double number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

uint64_t CountOf(std::string_view text) {
  uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace weir
