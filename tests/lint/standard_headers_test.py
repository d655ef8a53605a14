#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Shows what standard_headers.py finds and what it lets pass."""

import unittest

import standard_headers


class StandardHeadersTest(unittest.TestCase):
    def test_a_name_without_its_header_is_found_once(self):
        self.assertEqual(standard_headers.findings({"a.cc": "std::vector<int> a;\nstd::vector<int> b;\n"}),
                         ["a.cc:1: std::vector without <vector>"])

    def test_headers_of_ours_bring_what_they_include(self):
        texts = {"a.cc": '#include "a.h"\nstd::vector<int> a;\n', "a.h": '#include "b.h"\n', "b.h": "#include <vector>\n"}
        self.assertEqual(standard_headers.findings(texts), [])

    def test_headers_that_bring_others_pass(self):
        self.assertEqual(standard_headers.findings({"a.cc": "#include <string>\nstd::string_view a;\n"}), [])

    def test_comments_and_unknown_names_pass(self):
        self.assertEqual(standard_headers.findings({"a.cc": "// std::vector\nstd::byte a;\n"}), [])

    def test_headers_that_include_each_other_end(self):
        texts = {"a.h": '#include "b.h"\n', "b.h": '#include "a.h"\nstd::map<int, int> a;\n'}
        self.assertEqual(standard_headers.findings(texts), ["b.h:2: std::map without <map>"])


if __name__ == "__main__":
    unittest.main()
