#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that each check of source_tree.py can fail, on small trees made for it."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import source_tree  # noqa: E402


class SourceTreeTest(unittest.TestCase):
    def tree(self, files):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        root = pathlib.Path(directory.name)
        files.setdefault("tests/CMakeLists.txt", "weir_tests(datapath/codec LIBS weir_codec)\n")
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return source_tree.check(root, with_format=False, with_licence=False)

    def test_clean_tree_has_no_findings(self):
        self.assertEqual(self.tree({"datapath/wire/a.cc": '#include "datapath/base/status.h"\n'}), [])

    def test_source_without_a_licence_is_found(self):
        line = "SPDX-License-Identifier: Apache-2.0\n"
        with tempfile.TemporaryDirectory() as directory:
            root = pathlib.Path(directory)
            (root / "tests").mkdir()
            (root / "tests/CMakeLists.txt").write_text("# " + line)
            for name, text in (("a.cc", "// " + line), ("b.cc", "int x;\n"), ("c.py", "#!/bin/python3\n# " + line),
                               ("run", "#!/bin/bash\n"), ("d.md", "words\n")):
                (root / name).write_text(text)
            found = source_tree.check(root, with_format=False)
        self.assertEqual(sorted(found), ["b.cc:1: no SPDX-License-Identifier", "run:1: no SPDX-License-Identifier"])

    def test_upward_include_is_found(self):
        found = self.tree({"datapath/codec/a.cc": '#include "datapath/transport/transport.h"\n'})
        self.assertEqual(len(found), 1)
        self.assertIn("datapath/codec may not include", found[0])

    def test_messages_are_the_servers_business(self):
        found = self.tree({"controller/fleet/a.cc": '#include "weir/v1/admin.pb.h"\n#include "controller/store/store.h"\n',
                           "controller/server/a.cc": '#include "weir/v1/admin.pb.h"\n'})
        self.assertEqual([finding.split(":")[0] for finding in found], 2 * ["controller/fleet/a.cc"])

    def test_controller_may_not_link_the_datapath(self):
        found = self.tree({"controller/solver/CMakeLists.txt": "weir_library(weir_solver DEPS weir_codec)"})
        self.assertEqual(len(found), 1)

    def test_unlisted_plugin_is_found(self):
        found = self.tree({
            "datapath/codec/builtin_codecs.def": "WEIR_CODEC(Identity, 1)\n// WEIR_CODEC(TopK, 4)\n",
            "datapath/codec/builtin/identity.cc": "void RegisterIdentity(Registry<Codec>& r) {}\n",
            "datapath/codec/builtin/top_k.cc": "void RegisterTopK(Registry<Codec>& r) {}\n",
        })
        self.assertEqual(len(found), 1)
        self.assertIn("RegisterTopK", found[0])

    def test_orphan_test_file_is_found(self):
        found = self.tree({"tests/elsewhere/a_test.cc": "int x;\n",
                           "tests/datapath/codec/builtin/b_test.cc": "int x;\n"})
        self.assertEqual(found, ["tests/elsewhere/a_test.cc: not built by any CMakeLists.txt"])

    def test_rows_without_a_test_are_found(self):
        tests = {"tests/a_test.py": "class A:\n    def test_x(self):\n        pass\n",
                 "tests/datapath/codec/b_test.cc": "TEST_F(BTest, Y) {\n}\n"}
        table = "| Fault | Test |\n|---|---|\n| one | `BTest.Y`, `a_test.test_x` |\n"
        self.assertEqual(self.tree({**tests, "README.md": table}), [])
        wrong = table + "| two | `BTest.Z` |\n| three | by hand |\n\n| Test | Other |\n|---|---|\n| x | y |\n"
        self.assertEqual(self.tree({**tests, "README.md": wrong}),
                         ["README.md:4: there is no test BTest.Z", "README.md:5: no test holds this row"])

    def test_clock_that_jumps_is_found(self):
        line = "auto now = std::chrono::system_clock::now();\n"
        found = self.tree({"datapath/wire/a.cc": "int x;\n" + line, "datapath/base/log.cc": line,
                           "agent/a.cc": line, "datapath/wire/b.cc": "int t = time(nullptr);\n"})
        self.assertEqual([f.split(": ")[0] for f in sorted(found)],
                         ["datapath/wire/a.cc:2", "datapath/wire/b.cc:1"])

    def test_comments_that_are_no_sentences_are_found(self):
        wrong, right = "What" " it returns.", "The result."
        found = self.tree({
            "datapath/wire/a.cc": f"// SPDX-License-Identifier: Apache-2.0\n// {wrong}\n\n/// {right}\n/// {wrong}\n"
                                  f"///\n/// {wrong}\nint x;  // {wrong}\n",
            "agent/a.h": f"  // {wrong}\nconst char* url = \"http://{wrong}\";\n",
            "deploy/a.py": f'"""{wrong}"""\n# {right}\n# {wrong}\nx = 1  # {wrong}\n',
            "deploy/a.md": f"# {wrong}\n",
        })
        self.assertEqual([f.split(": ")[0] for f in sorted(found)],
                         ["agent/a.h:1", "datapath/wire/a.cc:2", "datapath/wire/a.cc:7", "datapath/wire/a.cc:8",
                          "deploy/a.py:1", "deploy/a.py:4"])

    def test_retired_words_are_found(self):
        word = "a" "new"
        found = self.tree({"agent/a.cc": f"// It begins {word}.\nint {word};\n",
                           "agent/README.md": f"It begins {word}.\n",
                           "agent/CMakeLists.txt": f"# A sentence.\n# It begins {word}.\n"})
        self.assertEqual([f.split(": ")[0] for f in sorted(found)],
                         ["agent/CMakeLists.txt:2", "agent/README.md:1", "agent/a.cc:1"])

    def test_long_file_and_unfinished_mark_are_found(self):
        found = self.tree({"datapath/base/long.cc": "int x;\n" * 601,
                           "datapath/base/mark.cc": "// TO" "DO: later\n"})
        self.assertEqual(len(found), 2)


if __name__ == "__main__":
    unittest.main()
