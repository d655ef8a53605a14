# SPDX-License-Identifier: Apache-2.0
"""A v1model switch that runs a translated program: frames in at a port, frames out at ports.

As BMv2's simple_switch does it: a multicast group set in ingress comes before everything else, egress_spec 511
means drop, every copy passes egress on its own. Tables, multicast groups and counters are controlled by lines of
simple_switch_CLI, of which it answers those that p4/control uses, in its words.
"""
import random

import machine
import records
from records import Counter, Header, PacketIn, PacketOut, Record, Register, TooShort
from syntax import P4Error

DROP_PORT = 511
INSTANCE_REPLICATED = 5


class NoMatch(Exception):
    """select had no case."""


class WrongChecksum(Exception):
    """verify_checksum found another one."""


class CommandError(Exception):
    """A line that simple_switch_CLI would refuse."""


def parse_value(text, width):
    """A number, an IPv4 or a MAC address, as simple_switch_CLI reads action parameters and keys."""
    if width == 32 and text.count(".") == 3:
        value = int.from_bytes(bytes(int(part) for part in text.split(".")), "big")
    elif width == 48 and text.count(":") == 5:
        value = int(text.replace(":", ""), 16)
    else:
        value = int(text, 0)
    if not 0 <= value < 1 << width:
        raise CommandError(f"Invalid runtime data: {text} does not fit {width} bits")
    return value


class Switch:
    """One running program. Not thread-safe."""

    TRANSLATOR = machine.Translator
    PARTS = ("parser", "verify", "ingress", "egress", "compute", "deparser")

    def __init__(self, path, seed=1):
        self.program, code = machine.translate(path, self.TRANSLATOR)
        self.undefined = records.Undefined(seed)
        self.clock = records.Clock()
        self.dice = random.Random(seed)
        self.entries = {name: dict(table["entries"]) for name, table in self.program.tables.items()}
        self.handles = {name: {} for name in self.program.tables}
        self.next_handle = {name: 0 for name in self.program.tables}
        self.groups, self.nodes, self.next_node = {}, {}, 0
        self.externs = {}
        for name, (width, size) in self.program.registers.items():
            self.externs[name] = Register(name, width, size, self.undefined, self.clock)
        for name, size in self.program.counters.items():
            self.externs[name] = Counter(name, size)
        self.functions = {
            "entries_": self.entries, "externs_": self.externs, "undefined_": self.undefined,
            "NoMatch": NoMatch, "WrongChecksum": WrongChecksum, "checksum16_": records.checksum16,
            "dice_": self.dice.randint, "drop_": self.drop}
        exec(code, self.functions)
        for part, name in zip(self.PARTS, self.program.main):
            setattr(self, part, self.functions[name])
        self.header_struct = self.struct_of(self.program.main[0], 1)
        self.meta_struct = self.struct_of(self.program.main[0], 2)

    def struct_of(self, parser, index):
        node = self.program.parsers[parser]
        return self.program.structs[node.parameters[index].type.name]

    @staticmethod
    def drop(standard_metadata):
        standard_metadata.egress_spec = DROP_PORT
        standard_metadata.mcast_grp = 0

    def records(self, header_struct, meta_struct):
        """Headers that are not there and metadata that mean nothing."""
        hdr, meta = Record(), Record()
        for name, kind in header_struct:
            setattr(hdr, name, Header(self.program.headers[kind[1]], self.undefined))
        for name, kind in meta_struct:
            if kind[0] not in ("bit", "bool", "error"):
                raise P4Error(f"metadata {name}: {kind} is not understood here")
            setattr(meta, name, self.undefined.bits(kind[1]) if kind[0] == "bit" else
                    "NoError" if kind[0] == "error" else bool(self.undefined.bits(1)))
        return hdr, meta

    def fresh(self, port, frame):
        hdr, meta = self.records(self.header_struct, self.meta_struct)
        standard = Record()
        for name, _ in machine.V1_METADATA:
            setattr(standard, name, 0)
        standard.ingress_port, standard.packet_length = port, len(frame)
        standard.parser_error = "NoError"
        return hdr, meta, standard

    def parse(self, packet, hdr, meta, standard):
        state = "start"
        try:
            while state not in ("accept", "reject"):
                state = self.parser[state](packet, hdr, meta, standard)
        except TooShort:
            standard.parser_error = "PacketTooShort"
        except NoMatch:
            standard.parser_error = "NoMatch"

    def send(self, port, frame):
        """The frames that leave the switch for one frame: (port, frame) pairs."""
        self.clock.packet += 1
        hdr, meta, standard = self.fresh(port, frame)
        packet = PacketIn(frame)
        self.parse(packet, hdr, meta, standard)
        try:
            self.verify(hdr, meta)
        except WrongChecksum:
            standard.checksum_error = 1
        self.ingress(hdr, meta, standard)
        if standard.mcast_grp != 0:
            copies = [(node[0], out) for node in self.groups.get(standard.mcast_grp, ())
                      for out in self.nodes[node[1]][1]]
            kind = INSTANCE_REPLICATED
        elif standard.egress_spec == DROP_PORT:
            return []
        else:
            copies, kind = [(0, standard.egress_spec)], 0
        sent = []
        for rid, out in copies:
            one = standard.copy()
            one.egress_rid, one.egress_port, one.instance_type, one.egress_spec = rid, out, kind, 0
            sent += self.leave(hdr.copy(), meta.copy(), one, packet.rest())
        return sent

    def leave(self, hdr, meta, standard, rest):
        self.egress(hdr, meta, standard)
        if standard.egress_spec == DROP_PORT:
            return []
        self.compute(hdr, meta)
        out = PacketOut()
        self.deparser(out, hdr)
        return [(standard.egress_port, b"".join(out.parts) + rest)]

    # simple_switch_CLI.

    def command(self, line):
        """Runs one line; what simple_switch_CLI prints."""
        words = line.split()
        handler = getattr(self, "cli_" + words[0], None)
        if handler is None:
            raise CommandError(f"*** Unknown syntax: {line}")
        return handler(words[1:]) or ""

    def table_of(self, name):
        if name not in self.program.tables:
            raise CommandError(f"Error: Invalid table name ({name})")
        return self.program.tables[name]

    def cli_table_add(self, words):
        table = self.table_of(words[0])
        action = words[1].split(".")[-1]
        if action not in table["actions"]:
            raise CommandError(f"Error: Table {words[0]} has no action {words[1]}")
        arrow = words.index("=>")
        keys, values = words[2:arrow], words[arrow + 1:]
        widths = table["actions"][action]
        if len(keys) != len(table["keys"]) or len(values) != len(widths):
            raise CommandError(f"Error: {' '.join(words)}: wrong number of keys or parameters")
        key = tuple(parse_value(text, width) for text, width in zip(keys, table["keys"]))
        if key in self.entries[words[0]]:
            raise CommandError("Invalid table operation (DUPLICATE_ENTRY)")
        if len(self.entries[words[0]]) >= table["size"]:
            raise CommandError("Invalid table operation (TABLE_FULL)")
        self.entries[words[0]][key] = (action, tuple(map(parse_value, values, widths)))
        handle = self.next_handle[words[0]]
        self.next_handle[words[0]] += 1
        self.handles[words[0]][handle] = key
        return (f"Adding entry to exact match table {words[0]}\n"
                f"Entry has been added with handle {handle}")

    def cli_table_delete(self, words):
        self.table_of(words[0])
        key = self.handles[words[0]].pop(int(words[1]), None)
        if key is None:
            raise CommandError("Invalid table operation (INVALID_HANDLE)")
        del self.entries[words[0]][key]

    def cli_table_num_entries(self, words):
        self.table_of(words[0])
        return str(len(self.handles[words[0]]))

    def cli_reset_state(self, unused_words):
        self.entries = {name: dict(table["entries"]) for name, table in self.program.tables.items()}
        self.functions["entries_"] = self.entries
        self.handles = {name: {} for name in self.program.tables}
        self.groups, self.nodes = {}, {}
        for extern in self.externs.values():
            extern.values = [0] * len(extern.values) if isinstance(extern, Counter) else {}

    def cli_mc_mgrp_create(self, words):
        if int(words[0]) in self.groups:
            raise CommandError("Invalid PRE operation (MGID exists)")
        self.groups[int(words[0])] = []

    def cli_mc_mgrp_destroy(self, words):
        if self.groups.pop(int(words[0]), None) is None:
            raise CommandError("Invalid PRE operation (INVALID_MGID)")

    def cli_mc_node_create(self, words):
        handle = self.next_node
        self.next_node += 1
        self.nodes[handle] = (int(words[0]), [int(port) for port in words[1:]])
        return f"node was created with handle {handle}"

    def cli_mc_node_associate(self, words):
        group, handle = int(words[0]), int(words[1])
        if group not in self.groups or handle not in self.nodes:
            raise CommandError("Invalid PRE operation (INVALID_HANDLE)")
        self.groups[group].append((self.nodes[handle][0], handle))

    def cli_mc_node_destroy(self, words):
        if self.nodes.pop(int(words[0]), None) is None:
            raise CommandError("Invalid PRE operation (INVALID_L1_HANDLE)")
        for members in self.groups.values():
            members[:] = [member for member in members if member[1] != int(words[0])]

    def cli_counter_read(self, words):
        counter = self.externs.get(words[0])
        if not isinstance(counter, Counter):
            raise CommandError(f"Error: Invalid counter name ({words[0]})")
        return f"{words[0]}[{words[1]}]= (0 bytes, {counter.values[int(words[1])]} packets)"

    def cli_mc_node_dissociate(self, words):
        group, handle = int(words[0]), int(words[1])
        if not any(member[1] == handle for member in self.groups.get(group, ())):
            raise CommandError("Invalid PRE operation (INVALID_L1_HANDLE)")
        self.groups[group] = [member for member in self.groups[group] if member[1] != handle]

    def cli(self, lines):
        """Runs lines as the program simple_switch_CLI would: errors are printed, nothing is raised."""
        printed = []
        for line in lines:
            try:
                printed.append(f"RuntimeCmd: {self.command(line)}")
            except CommandError as error:
                printed.append(f"RuntimeCmd: {error}")
        return "\n".join(printed) + "\n"
