// SPDX-License-Identifier: Apache-2.0
#include "deploy/program/tls/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <utility>
#include <vector>

#include "datapath/base/check.h"
#include "datapath/base/log.h"

namespace weir {

// The deleters of a pair's members.
namespace tls {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;

}  // namespace tls

struct TlsPair {
  std::vector<tls::Certificate> chain;  // the program's own first
  std::unique_ptr<EVP_PKEY, tls::Freed<EVP_PKEY_free>> key;
};

namespace {

using tls::Certificate;
using tls::Freed;
struct FreedStack {
  void operator()(STACK_OF(X509) * stack) const { sk_X509_free(stack); }  // keeps its elements
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;

std::string TakeCause() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  std::string cause = reason == nullptr ? "no cause given" : reason;
  ERR_clear_error();  // later users of this thread's queue must not find this error
  return cause;
}

StatusOr<std::string> ReadPemFile(const std::string& path) {
  if (path.empty()) return std::string();
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text(kTlsFileBytesMax + 1, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in && !in.eof()) {
    return Unavailable(StrCat("cannot read TLS file '", path, "': ", std::strerror(errno)));
  }
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kTlsFileBytesMax) {
    return InvalidArgument(
        StrCat("TLS file '", path, "' has more than ", kTlsFileBytesMax, " bytes"));
  }
  return text;
}

// All certificates of a file, in its order; at least one.
StatusOr<std::vector<Certificate>> ParseCertificates(const std::string& pem,
                                                     const std::string& path) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  std::vector<Certificate> found;
  while (Certificate next{PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)}) {
    found.push_back(std::move(next));
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string cause = TakeCause();
  if (found.empty() || !at_end) {
    return InvalidArgument(StrCat("TLS file '", path, "': expected certificates, found ",
                                  found.size(), " and then: ", cause));
  }
  return found;
}

std::string DateOf(const ASN1_TIME* time) {
  std::tm parts = {};
  char text[32] = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1 ||
      std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) {
    ERR_clear_error();
    return "a time that cannot be read";
  }
  return text;
}

// OK while the certificate is valid by its dates: peers would refuse it without saying why.
Status CheckDates(const X509* certificate, const std::string& path) {
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) <= 0) {
    return InvalidArgument(StrCat("the certificate in '", path, "' expired at ",
                                  DateOf(X509_get0_notAfter(certificate))));
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    return InvalidArgument(StrCat("the certificate in '", path, "' is not valid before ",
                                  DateOf(X509_get0_notBefore(certificate)),
                                  "; is this machine's clock right?"));
  }
  return OkStatus();
}

StatusOr<std::shared_ptr<const TlsPair>> ParsePair(const TlsMaterial& material,
                                                   const TlsPaths& paths) {
  auto pair = std::make_shared<TlsPair>();
  WEIR_ASSIGN_OR_RETURN(pair->chain, ParseCertificates(material.cert, paths.cert));
  WEIR_RETURN_IF_ERROR(CheckDates(pair->chain.front().get(), paths.cert));
  const Bio bio(BIO_new_mem_buf(material.key.data(), static_cast<int>(material.key.size())));
  // The key must have no passphrase, because nobody could enter it.
  pair->key.reset(PEM_read_bio_PrivateKey(
      bio.get(), nullptr, [](char*, int, int, void*) { return 0; }, nullptr));
  if (pair->key == nullptr) {
    return InvalidArgument(
        StrCat("TLS file '", paths.key, "': expected a private key: ", TakeCause()));
  }
  if (X509_check_private_key(pair->chain.front().get(), pair->key.get()) != 1) {
    ERR_clear_error();
    return InvalidArgument(StrCat("the key in '", paths.key,
                                  "' is not that of the certificate in '", paths.cert, "'"));
  }
  return std::shared_ptr<const TlsPair>(std::move(pair));
}

bool Show(SSL* connection, const TlsPair& pair) {
  const std::unique_ptr<STACK_OF(X509), FreedStack> rest(sk_X509_new_null());
  for (size_t i = 1; i < pair.chain.size(); ++i) {
    if (sk_X509_push(rest.get(), pair.chain[i].get()) == 0) return false;
  }
  return SSL_use_cert_and_key(connection, pair.chain.front().get(), pair.key.get(), rest.get(),
                              1) == 1;
}

double EndOf(const X509& certificate) {
  std::tm end = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &end) != 1) {
    ERR_clear_error();
    return 0;
  }
  return static_cast<double>(timegm(&end));
}

// OpenSSL calls this in a handshake, before it needs the certificate.
int ShowCurrent(SSL* connection, void* files) {
  const auto material = static_cast<TlsFiles*>(files)->Current();
  return material.ok() && (*material)->pair != nullptr && Show(connection, *(*material)->pair) ? 1
                                                                                               : 0;
}

}  // namespace

TlsFiles::States TlsFiles::Look() const {
  States seen = {};
  size_t at = 0;
  for (const std::string* path : {&paths_.cert, &paths_.key, &paths_.ca}) {
    if (!path->empty()) seen[at] = StateOf(*path);
    ++at;
  }
  return seen;
}

StatusOr<std::shared_ptr<const TlsMaterial>> TlsFiles::Read() const {
  auto material = std::make_shared<TlsMaterial>();
  WEIR_ASSIGN_OR_RETURN(material->cert, ReadPemFile(paths_.cert));
  WEIR_ASSIGN_OR_RETURN(material->key, ReadPemFile(paths_.key));
  WEIR_ASSIGN_OR_RETURN(material->ca, ReadPemFile(paths_.ca));
  if (!paths_.cert.empty()) {
    WEIR_ASSIGN_OR_RETURN(material->pair, ParsePair(*material, paths_));
    material->certificate_end_unix_s = EndOf(*material->pair->chain.front());
  }
  if (!paths_.ca.empty()) {
    WEIR_ASSIGN_OR_RETURN(const auto authorities, ParseCertificates(material->ca, paths_.ca));
    // One valid authority is enough, because a file may hold former ones.
    Status valid = CheckDates(authorities.front().get(), paths_.ca);
    for (const Certificate& each : authorities) {
      if (CheckDates(each.get(), paths_.ca).ok()) valid = OkStatus();
    }
    WEIR_RETURN_IF_ERROR(valid);
  }
  return std::shared_ptr<const TlsMaterial>(std::move(material));
}

void TlsFiles::Refresh() {
  // The state is taken before the files are read, so that a change in between is read at the next
  // call.
  const States now = Look();
  if (now == seen_ && (current_ != nullptr || !refused_.ok())) return;
  seen_ = now;
  auto read = Read();
  refused_ = read.status();
  if (!read.ok()) {
    ++refusals_;
    if (current_ == nullptr) return;
    Log(LogLevel::kError, "tls",
        StrCat("renewed TLS files are invalid, the previous ones stay in use: ",
               Message(refused_)));
    return;
  }
  if (current_ != nullptr) {
    Log(LogLevel::kInfo, "tls",
        StrCat("renewed TLS files are in use: ", paths_.cert.empty() ? paths_.ca : paths_.cert));
  }
  current_ = *std::move(read);
}

StatusOr<std::shared_ptr<const TlsMaterial>> TlsFiles::Current() {
  MutexLock lock(mutex_);
  Refresh();
  if (current_ == nullptr) return refused_;
  return current_;
}

TlsHealth TlsFiles::Health() {
  MutexLock lock(mutex_);
  Refresh();
  return {.renewed = refused_.ok(),
          .refused = refusals_,
          .certificate_end_unix_s = current_ == nullptr ? 0 : current_->certificate_end_unix_s};
}

bool ServeTls(ssl_ctx_st* context, TlsFiles* files) {
  if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1) return false;
  SSL_CTX_set_options(context, SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_cert_cb(context, ShowCurrent, files);
  return true;
}

x509_store_st* MakeAuthorityStore(const TlsMaterial& material) {
  X509_STORE* store = X509_STORE_new();
  const auto authorities = ParseCertificates(material.ca, "");  // was parsed before
  WEIR_CHECK(store != nullptr && authorities.ok());
  for (const Certificate& authority : *authorities) X509_STORE_add_cert(store, authority.get());
  return store;
}

}  // namespace weir
