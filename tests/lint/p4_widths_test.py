#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that each check of p4_widths.py can fail: the tree's own programs with one thing changed."""
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import p4_widths  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
V1, TNA, HEADERS = "p4/v1model/aggregator.p4", "p4/tna/aggregator.p4", "p4/include/headers.p4"


class P4WidthsTest(unittest.TestCase):
    def tree(self, path=None, before="", after=""):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        root = pathlib.Path(directory.name)
        shutil.copytree(ROOT / "p4", root / "p4", ignore=shutil.ignore_patterns("__pycache__"))
        words = root / "p4/include/words.p4"  # one of sixteen is as good, and sooner read
        words.write_text(re.sub(r"(F\(G, 0\)).*?(?=\n\n)", r"\1", words.read_text(), flags=re.S))
        (root / "proto").mkdir()
        shutil.copy(ROOT / "proto/WIRE.md", root / "proto/WIRE.md")
        if path is not None:
            text = (root / path).read_text()
            self.assertIn(before, text)
            (root / path).write_text(text.replace(before, after, 1))
        return root

    def found(self, *change):
        return "\n".join(p4_widths.check(self.tree(*change)))

    def test_clean_tree_has_no_findings(self):
        self.assertEqual(self.found(), "")

    def test_other_bytes_than_wire_md_are_found(self):
        for change, message in (
                ((HEADERS, "bit<16> slot;\n    bit<16> lanes;", "bit<16> lanes;\n    bit<16> slot;"),
                 "packet_h.lanes: WIRE.md has slot here"),
                ((HEADERS, "bit<64> cookie", "bit<48> cookie"),
                 "packet_h.cookie: bits 96 .. 143, WIRE.md has octets 12"),
                ((HEADERS, "    bit<32> checksum;\n", ""), "16 fields, WIRE.md has 17"),
                (("proto/WIRE.md", "| 22 | 2 | lanes |", "| 22 | 4 | lanes |"), "packet_h.lanes"),
                (("p4/include/parameters.p4", "FLAG_NOTICE = 16", "FLAG_NOTICE = 32"), "FLAG_NOTICE is 32"),
                (("p4/include/parameters.p4", "MODE_TABLE = 3", "MODE_TABLE = 5"), "MODE_TABLE is 5"),
                (("p4/include/parameters.p4", "PACKET_START = 0x57410200", "PACKET_START = 0x57410300"),
                 "PACKET_START is"),
                (("proto/WIRE.md", "| `WA` |", "| WA |"), "are not written as expected")):
            with self.subTest(message=message):
                self.assertIn(message, self.found(*change))

    def test_a_second_use_of_a_register_is_found(self):
        for change, message in (
                ((V1, "progress.read(slot_state, meta.slot_index);",
                  "progress.read(slot_state, meta.slot_index); progress.read(slot_state, meta.slot_index);"),
                 "a path has 2 times read of progress"),
                ((V1, "exponent.write(meta.set_index, greatest);\n                    }",
                  "exponent.write(meta.set_index, greatest);\n } exponent.write(meta.set_index, greatest);"),
                 "a path has 2 times write of exponent"),
                ((V1, "columns.read(columns_before, meta.set_index);",
                  "columns.write(meta.set_index, 0); columns.read(columns_before, meta.set_index);"),
                 "columns is read after it was written"),
                ((TNA, "compare_agreement();", "compare_agreement(); advance_progress.execute(meta.slot_index);"),
                 "a path has 2 times write of progress"),
                ((TNA, "action measure_room() {", "action measure_room() { meta.tag_before = "
                  "look_round.execute(meta.set_index);"), "a path has 2 times write of opened")):
            with self.subTest(message=message):
                self.assertIn(message, self.found(*change))

    def test_names_that_are_not_declared_are_found(self):
        for change, message in (
                ((V1, "meta.opening = 0;", "meta.opened = 0;"), "has no field opened"),
                ((V1, "actions = { set_worker; NoAction; }", "actions = { set_workers; NoAction; }"),
                 "no action set_workers"),
                ((V1, "keep_none();", "keep_nothing();"), "no function keep_nothing"),
                ((TNA, "meta.opening = 0;", "meta.opened = 0;"), "metadata_t has no field opened"),
                ((TNA, "actions = { set_worker; NoAction; }", "actions = { set_workers; NoAction; }"),
                 "no action set_workers"),
                ((TNA, "measure_room();", "measure_rooms();"), "nothing is called measure_rooms"),
                (("p4/tna/parser.p4", "default: parse_ethernet;", "default: parse_ether;"), "no state parse_ether"),
                ((TNA, "hdr.packet.exponent = 0;", "hdr.packet.exponents = 0;"), "packet_h has no field exponents")):
            with self.subTest(message=message):
                self.assertIn(message, self.found(*change))

    def test_wrong_widths_and_lost_braces_are_found(self):
        self.assertIn("expected ('bit', 32), found ('bit', 16)",
                      self.found(V1, "meta.index = index;", "meta.index = meta.slots;"))
        self.assertIn("expected", self.found(V1, "action drop() {", "action drop() {{"))

    def test_compiled_files_are_found(self):
        root = self.tree()
        (root / "p4/v1model/aggregator.json").write_text("{}")
        self.assertEqual(p4_widths.check(root),
                         ["p4/v1model/aggregator.json: made by a compiler, not for the repository"])

    def test_missing_programs_are_found(self):
        root = self.tree()
        (root / TNA).unlink()
        self.assertIn("p4/tna/aggregator.p4: missing", p4_widths.check(root))


if __name__ == "__main__":
    unittest.main()
