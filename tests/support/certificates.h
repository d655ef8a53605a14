// SPDX-License-Identifier: Apache-2.0
#pragma once
// Certificates for tests of TLS, made by openssl when a test runs.

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace weir {

/// Makes a certificate authority and certificates for 127.0.0.1 that it signs: in `directory`,
/// which exists, `authority`.pem and .key, and NAME.pem and .key for each of `names`, whose CN is
/// NAME. `alternative`: their subjectAltName. False: openssl failed or is absent.
inline bool MakeCertificates(const std::string& directory, const std::string& authority,
                             const std::vector<std::string>& names,
                             const std::string& alternative = "IP:127.0.0.1") {
  std::ofstream(directory + "/san") << "subjectAltName=" + alternative + "\n";
  const auto run = [&](const std::string& arguments) {
    const std::string command = "cd " + directory + " && openssl " + arguments + " 2> /dev/null";
    return std::system(command.c_str()) == 0;
  };
  const std::string key = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes ";
  if (!run(key + "-x509 -days 2 -subj /CN=" + authority + " -keyout " + authority + ".key -out " +
           authority + ".pem")) {
    return false;
  }
  for (const std::string& name : names) {
    if (!run(key + "-subj /CN=" + name + " -keyout " + name + ".key -out " + name + ".csr") ||
        !run("x509 -req -days 2 -in " + name + ".csr -CA " + authority + ".pem -CAkey " +
             authority + ".key -CAcreateserial -extfile san -out " + name + ".pem")) {
      return false;
    }
  }
  return true;
}

inline std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace weir
