#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""tests/support/p4 on small programs: each rule of the language and of the switch that the traces rely on."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support/p4"))
import syntax  # noqa: E402
from switch import Switch  # noqa: E402

FRAME = """
#include <core.p4>
#include <v1model.p4>
header h_t { bit<8> a; bit<8> b; bit<16> c; }
struct headers_t { h_t h; h_t other; }
struct metadata_t { bit<8> m; }
parser P(packet_in packet, out headers_t hdr, inout metadata_t meta,
         inout standard_metadata_t standard_metadata) {
    state start { packet.extract(hdr.h); transition select(hdr.h.a) { %(select)s } }
    state more { packet.extract(hdr.other); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    %(locals)s
    apply { standard_metadata.egress_spec = standard_metadata.ingress_port; %(apply)s }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { %(egress)s }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.h); packet.emit(hdr.other); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""


class LanguageTest(unittest.TestCase):
    def program(self, apply="", locals_="", egress="", select="default: accept;"):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = pathlib.Path(directory.name, "program.p4")
        path.write_text(FRAME % {"apply": apply, "locals": locals_, "egress": egress, "select": select})
        return Switch(path)

    def result(self, expression, frame=b"\x05\x07\x12\x34"):
        """c after c = expression."""
        sent = self.program(f"hdr.h.c = {expression};").send(3, frame)
        return int.from_bytes(sent[0][1][2:4], "big")

    def test_arithmetic_is_modulo_the_width(self):
        for expression, value in (
                ("hdr.h.c + 0xFFFF", 0x1233), ("hdr.h.c - 0x2000", 0xF234), ("~hdr.h.c", 0xEDCB),
                ("-hdr.h.c", 0xEDCC), ("hdr.h.c << 8", 0x3400), ("hdr.h.c >> 8", 0x12),
                ("hdr.h.a ++ hdr.h.b", 0x0507),
                ("(bit<16>)(hdr.h.a + 0xFF)", 4), ("(bit<16>)hdr.h.a + 0xFF", 0x104),
                ("hdr.h.c[15:12] ++ 12w1", 0x1001),
                ("(bit<16>)hdr.h.c[3:0]", 4), ("(hdr.h.a > hdr.h.b ? 16w1 : 16w2)", 2), ("hdr.h.c * 16", 0x2340),
                ("(bit<16>)(hdr.h.c[7:0] << 4)", 0x40)):
            with self.subTest(expression=expression):
                self.assertEqual(self.result(expression), value)

    def test_operators_bind_as_in_p4_not_as_in_c(self):
        self.assertEqual(self.result("(hdr.h.c & 0x30 == 0x30 ? 16w1 : 16w2)"), 1)
        self.assertEqual(self.result("(hdr.h.a == 5 && hdr.h.b == 8 || hdr.h.b == 7 ? 16w1 : 16w2)"), 1)
        self.assertEqual(self.result("16w1 | 16w2 ^ 16w2 & 16w3 + 1"), 3)

    def test_mistakes_are_found(self):
        for apply, message in (
                ("hdr.h.c = hdr.h.a;", "expected \\('bit', 16\\), found \\('bit', 8\\)"),
                ("hdr.h.a = 256;", "256 does not fit"), ("hdr.h.d = 1;", "no field d"), ("x = 1;", "nothing can be"),
                ("hdr.h.c = hdr.h.c + hdr.h.a;", "expected"), ("if (hdr.h.a) { }", "expected \\('bool',\\)"),
                ("hdr.h.a = hdr.h.a[8:1];", "no bits"), ("r.read(hdr.h.a, 0);", "no r"), ("act(1);", "no function act"),
                ("t.apply();", "no t"), ("hdr.h.c = hdr.h.a ++ 3;", "without width"), ("hdr.h.a = 8s1;", "signed"),
                ("hdr.h = hdr.other;", "assignment of")):
            with self.subTest(apply=apply), self.assertRaisesRegex(syntax.P4Error, message):
                self.program(apply)

    def test_a_parser_selects_the_first_case_that_fits(self):
        both = b"\x05\x07\x12\x34\x01\x02\x03\x04rest"
        for select, length in (("5: more; default: accept;", 8), ("4: more; default: accept;", 4),
                               ("4 &&& 6: more; default: accept;", 8), ("_: accept; 5: more;", 4)):
            with self.subTest(select=select):
                program = self.program("hdr.other.setInvalid();", select=select)
                self.assertEqual(program.send(3, both), [(3, both[:4] + both[length:])])

    def test_a_short_frame_is_an_error_of_the_parser(self):
        program = self.program("if (standard_metadata.parser_error != error.NoError) {"
                               " hdr.h.setValid(); hdr.h.a = 1; hdr.h.b = 2; hdr.h.c = 3; }",
                               select="default: more;")
        self.assertEqual(program.send(3, b"\x05\x07\x12\x34\x01"), [(3, b"\x01\x02\x00\x03\x01")])
        self.assertEqual(program.send(3, bytes(8)), [(3, bytes(8))])

    def test_registers_are_used_once_for_a_packet(self):
        registers = "register<bit<16>>(4) r;"
        good = self.program("bit<16> x; r.read(x, 1); x = hdr.h.c; r.write(1, x);", registers)
        good.send(3, bytes(4))
        good.send(3, bytes(4))
        for apply in ("r.read(hdr.h.c, 1); r.read(hdr.h.c, 1);", "r.write(1, 2); r.write(1, 2);",
                      "r.write(1, 2); r.read(hdr.h.c, 1);", "r.read(hdr.h.c, 1); r.write(2, 1);",
                      "r.read(hdr.h.c, 4);"):
            with self.subTest(apply=apply), self.assertRaises(AssertionError):
                self.program(apply, registers).send(3, bytes(4))

    def test_registers_keep_what_was_written(self):
        program = self.program("bit<16> x; r.read(x, (bit<32>)hdr.h.a); r.write((bit<32>)hdr.h.a, hdr.h.c);"
                               "hdr.h.c = x;", "register<bit<16>>(4) r;")
        program.send(3, b"\x01\x00\x00\x2a")
        program.send(3, b"\x02\x00\x00\x2b")
        self.assertEqual(program.send(3, b"\x01\x00\x00\x00")[0][1], b"\x01\x00\x00\x2a")

    def test_unassigned_values_are_random(self):
        for apply in ("bit<16> x; hdr.h.c = x;", "hdr.h.c = hdr.other.c;", "hdr.h.b = meta.m; hdr.h.c = 0;",
                      "hdr.h.setInvalid(); hdr.h.setValid();"):
            program = self.program(apply)
            with self.subTest(apply=apply):
                self.assertGreater(len({program.send(3, bytes(4))[0][1] for _ in range(50)}), 10)

    def test_tables_run_the_action_of_their_entry(self):
        program = self.program(
            "if (t.apply().hit) { hdr.h.b = 1; }",
            "action put(bit<16> v) { hdr.h.c = v; } action none() { hdr.h.c = 9; }"
            "table t { key = { hdr.h.a: exact; } actions = { put; none; } default_action = none(); size = 2; }")
        self.assertIn("handle 0", program.command("table_add I.t I.put 5 => 77"))
        self.assertEqual(program.send(3, b"\x05\0\0\0")[0][1], b"\x05\x01\x00\x4d")
        self.assertEqual(program.send(3, b"\x06\0\0\0")[0][1], b"\x06\x00\x00\x09")
        self.assertIn("DUPLICATE_ENTRY", program.cli(["table_add I.t I.put 5 => 78"]))
        self.assertIn("Error", program.cli(["table_add I.t I.put 5 6 => 78"]))
        self.assertIn("Error", program.cli(["table_add I.t I.other 5 => 78"]))
        self.assertIn("does not fit", program.cli(["table_add I.t I.put 256 => 78"]))
        program.command("table_add I.t I.none 6 =>")
        self.assertIn("TABLE_FULL", program.cli(["table_add I.t I.put 7 => 78"]))
        program.command("table_delete I.t 0")
        self.assertEqual(program.send(3, b"\x05\0\0\0")[0][1], b"\x05\x00\x00\x09")

    def test_copies_pass_egress_on_their_own(self):
        program = self.program(
            "mark_to_drop(standard_metadata); if (hdr.h.a == 1) { standard_metadata.mcast_grp = 2; }", egress=
            "hdr.h.b = hdr.h.b + (bit<8>)standard_metadata.egress_rid;"
            "if (standard_metadata.egress_rid == 8) { mark_to_drop(standard_metadata); }")
        program.cli(["mc_mgrp_create 2", "mc_node_create 7 4", "mc_node_create 8 5", "mc_node_create 9 6",
                     "mc_node_associate 2 0", "mc_node_associate 2 1", "mc_node_associate 2 2"])
        self.assertEqual(program.send(3, b"\x01\0\0\0"), [(4, b"\x01\x07\0\0"), (6, b"\x01\x09\0\0")])
        self.assertEqual(program.send(3, b"\x02\0\0\0"), [])

    def test_parts_that_the_programs_do_not_need_are_refused(self):
        for locals_, message in (
                ("action a(inout bit<8> x) { x = 1; }", "actions that return something"),
                ("action a(in h_t x) { }", "only parameters of bits"),
                ("table t { key = { hdr.h.a: lpm; } actions = { NoAction; } }", "only exact keys"),
                ("table t { actions = { NoAction; } default_action = a(); }", "a is not among the actions"),
                ("register<bool>(4) r;", "expected bit<W>"), ("meter(1, MeterType.bytes) m;", "meter|not understood")):
            with self.subTest(locals=locals_), self.assertRaisesRegex(syntax.P4Error, message):
                self.program("", locals_)

    def test_unknown_syntax_is_an_error(self):
        for text, message in (("control X(", "expected"), ("header h { bit<8> a }", "expected ';'"),
                              ("enum X { A }", "expected"), ("const bit<8> x = ;", "a name")):
            with self.subTest(text=text), self.assertRaisesRegex(syntax.P4Error, message):
                syntax.Reader(syntax.tokens_of(text)).program()


if __name__ == "__main__":
    unittest.main()
