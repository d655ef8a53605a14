#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Checks of the switch programs in p4/ that need no P4 compiler:

  widths    packet_h has the fields of proto/WIRE.md section 4: names, offsets, octets, order; the constants of
            modes, flags, magic and version are the ones that it names
  types     v1model: all names, types and widths, by tests/support/p4; TNA: every name of an action, table,
            state, register, header and field is declared
  registers no path through a control uses a register twice: one read, then one write, or one RegisterAction
  generated nothing that a compiler makes of the programs is committed

Usage: p4_widths.py ROOT. Prints one line per finding and exits 1 when there is any.
"""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support/p4"))
import machine  # noqa: E402
import syntax  # noqa: E402

PROGRAMS = {"v1model": "p4/v1model/aggregator.p4", "tna": "p4/tna/aggregator.p4"}
GENERATED = re.compile(r"^p4/.*(\.json|\.p4info(\.\w+)?|\.p4i|\.bin|\.conf|\.tofino/.*)$")
# Words of the table's rows that name constants, and the constants.
MODES = {"sum": "MODE_SUM", "max": "MODE_MAX", "table": "MODE_TABLE", "sparse": "MODE_SPARSE"}
FLAGS = {"reply": "FLAG_REPLY", "a sum did not fit": "FLAG_OVERFLOW", "notice": "FLAG_NOTICE", "lead": "FLAG_LEAD"}


def wire_rows(text):
    """(offset, octets, field, value) of the aggregation packet's header."""
    section = text.split("\n## 4. Aggregation packets", 1)[-1]
    rows = []
    for line in section.splitlines():
        match = re.match(r"\| (\d+) \| (\d+) \| ([a-z ]+) \|(.*)\|$", line)
        if match:
            rows.append((int(match.group(1)), int(match.group(2)), match.group(3), match.group(4).strip()))
        elif rows:
            break
    return rows


def width_findings(rows, declarations):
    """packet_h against the table."""
    found, bits = [], 0
    fields = next((d.fields for d in declarations if d.kind == "header" and d.name == "packet_h"), [])
    if len(fields) != len(rows):
        found.append(f"packet_h: {len(fields)} fields, WIRE.md has {len(rows)}")
    for field, (offset, octets, name, _) in zip(fields, rows):
        width = field.type.arguments[0].value
        if field.name != name.replace(" ", "_"):
            found.append(f"{field.where}: packet_h.{field.name}: WIRE.md has {name} here")
        if bits != offset * 8 or width != octets * 8:
            found.append(f"{field.where}: packet_h.{field.name}: bits {bits} .. {bits + width - 1}, WIRE.md has octets "
                         f"{offset} .. {offset + octets - 1}")
        bits += width
    return found


def constant_findings(rows, declarations):
    """Modes, flags, magic and version against the table's words."""
    values = {d.name: d.value.value for d in declarations if d.kind == "constant" and d.value.kind == "number"}
    text = {name: value for _, _, name, value in rows}
    expected = {}
    for number, word in re.findall(r"(\d+) (\w+)", text.get("mode", "")):
        if word in MODES:
            expected[MODES[word]] = int(number)
    for number, words in re.findall(r"(\d+): ([a-z ]+)", text.get("flags", "")):
        if words.strip() in FLAGS:
            expected[FLAGS[words.strip()]] = 1 << int(number)
    magic = re.match(r"`(\w\w)`", text.get("magic", ""))
    if magic:
        start = int.from_bytes(magic.group(1).encode(), "big")
        expected["PACKET_START"] = start << 16 | int(text["version"]) << 8
    if len(expected) != len(MODES) + len(FLAGS) + 1:
        return [f"proto/WIRE.md: modes, flags and magic are not written as expected: {sorted(expected)}"]
    return [f"{name} is {values.get(name)}, WIRE.md has {value}" for name, value in expected.items()
            if values.get(name) != value]


class Uses:
    """How often a path may read and write each register; a RegisterAction is one use, as a write is."""

    def __init__(self, control):
        self.control = control
        self.actions = {p.name: p for p in control.locals if p.kind == "action"}
        self.tables = {p.name: p for p in control.locals if p.kind == "table"}
        self.owners = {}
        for part in control.locals:
            if part.kind == "instance" and part.type.name in ("register", "Register"):
                self.owners[part.name] = part.name
            elif part.kind == "instance" and part.type.name == "RegisterAction":
                self.owners[part.name] = part.arguments[0].name
        self.found = []

    def sequence(self, nodes):
        total = {}
        for node in nodes:
            more = self.of(node)
            self.found += [f"{node.where}: {name} is read after it was written"
                           for name, kind in more if kind == "read" and (name, "write") in total]
            total = self.joined(total, more)
        return total

    @staticmethod
    def either(choices):
        total = {}
        for choice in choices:
            for key, count in choice.items():
                total[key] = max(total.get(key, 0), count)
        return total

    def of(self, node):
        """The registers that a statement or an expression uses."""
        if node.kind == "block":
            return self.sequence(node.body)
        if node.kind == "if":
            branches = [self.of(node.yes), self.of(node.no) if node.no is not None else {}]
            return self.joined(self.of(node.condition), self.either(branches))
        if node.kind == "call":
            return self.joined(self.sequence(node.arguments), self.called(node.function))
        return self.sequence(list(node.children()))

    @staticmethod
    def joined(first, second):
        return {key: first.get(key, 0) + second.get(key, 0) for key in sorted(first.keys() | second.keys())}

    def called(self, function):
        if function.kind == "name" and function.name in self.actions:
            return self.of(self.actions[function.name].body)
        if function.kind != "member" or function.object.kind != "name":
            return {}
        name = function.object.name
        if name in self.owners:
            kind = "read" if function.name == "read" else "write"
            return {(self.owners[name], kind): 1}
        if name in self.tables and function.name == "apply":
            actions = [self.actions[a] for a in self.tables[name].actions if a in self.actions]
            return self.either([self.of(action.body) for action in actions])
        return {}


def register_findings(path, declarations):
    found, seen = [], 0
    for control in (d for d in declarations if d.kind == "control"):
        uses = Uses(control)
        total = uses.of(control.apply)
        seen += len(uses.owners)
        found += uses.found
        found += [f"{path}: {control.name}: a path has {count} times {kind} of {register}"
                  for (register, kind), count in sorted(total.items()) if count > 1]
        used = {register for register, _ in total}
        found += [f"{path}: {control.name}: register {register} is used by no path"
                  for register in sorted(set(uses.owners.values()) - used)]
    if seen == 0:
        found.append(f"{path}: no registers at all")
    return found


class Names:
    """Whether what a TNA program names is declared, in the program or by the architecture."""

    ARCHITECTURE = re.compile(r"^(ig|eg)_\w+$|^(NoAction|Pipeline|Switch|Checksum|Register|RegisterAction|Random|"
                              r"Counter|CounterType_t|MeterType_t|PORT_METADATA_SIZE|max|min|error)$")

    def __init__(self, declarations):
        self.declarations = declarations
        self.records = {d.name: {f.name: f.type.name for f in d.fields} for d in declarations
                        if d.kind in ("header", "struct")}
        self.top = {d.name for d in declarations}
        self.found = []

    def check(self):
        for node in self.declarations:
            if node.kind == "parser":
                states = {state.name for state in node.states} | {"accept", "reject"}
                names = self.names_of(node.parameters) | {l.name: l.type.name for l in node.locals}
                for part in syntax.walk(node):
                    if part.kind in ("goto", "case") and part.target not in states:
                        self.found.append(f"{part.where}: no state {part.target}")
                for state in node.states:
                    self.within(state, names, set())
            elif node.kind == "control":
                self.control(node)
        return self.found

    @staticmethod
    def names_of(parameters):
        return {p.name: p.type.name for p in parameters}

    def control(self, node):
        names = self.names_of(node.parameters)
        names.update({part.name: part.type.name if hasattr(part, "type") else "" for part in node.locals})
        actions = {part.name for part in node.locals if part.kind == "action"} | {"NoAction"}
        for part in node.locals:
            if part.kind == "table":
                self.found += [f"{part.where}: no action {a}" for a in part.actions if a not in actions]
            own = dict(names)
            if part.kind == "action":
                own.update(self.names_of(part.parameters))
            self.within(part, own, actions)
        self.within(node.apply, dict(names), actions)

    def within(self, node, names, actions):
        if node.kind == "type":
            return
        if node.kind == "method":
            names = {**names, **self.names_of(node.parameters)}
        if node.kind == "variable":
            names[node.name] = node.type.name
        if node.kind == "name":
            if not (node.name in names or node.name in self.top or node.name in actions
                    or self.ARCHITECTURE.match(node.name)):
                self.found.append(f"{node.where}: nothing is called {node.name}")
            return
        if node.kind == "member":
            self.record_of(node, names)
        for child in node.children():
            self.within(child, names, actions)

    def record_of(self, node, names):
        """The type of a field's path, where it is a declared record; complains about fields that it lacks."""
        if node.kind == "name":
            return names.get(node.name)
        if node.kind != "member":
            return None
        owner = self.record_of(node.object, names)
        if owner not in self.records or node.name in ("isValid", "setValid", "setInvalid"):
            return None
        if node.name not in self.records[owner]:
            complaint = f"{node.where}: {owner} has no field {node.name}"
            if complaint not in self.found:
                self.found.append(complaint)
            return None
        return self.records[owner][node.name]


def program_findings(root):
    found = []
    for target, path in PROGRAMS.items():
        if not (root / path).exists():
            found.append(f"{path}: missing")
            continue
        try:
            declarations = syntax.read(root / path)
            found += register_findings(path, declarations)
            if target == "v1model":
                machine.Translator(declarations)
            else:
                found += Names(declarations).check()
            found += width_findings(wire_rows((root / "proto/WIRE.md").read_text(encoding="utf-8")), declarations)
            found += constant_findings(wire_rows((root / "proto/WIRE.md").read_text(encoding="utf-8")), declarations)
        except syntax.P4Error as error:
            found.append(str(error))
    return found


def generated_findings(root):
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "p4"], capture_output=True, text=True, check=False)
    names = listed.stdout.split("\n") if listed.returncode == 0 and listed.stdout else [
        str(path.relative_to(root)) for path in (root / "p4").rglob("*") if path.is_file()]
    return [f"{name}: made by a compiler, not for the repository" for name in names if GENERATED.match(name)]


def check(root):
    return sorted(set(program_findings(root) + generated_findings(root)))


def main():
    found = check(pathlib.Path(sys.argv[1]).resolve())
    for line in found:
        print(line)
    print(f"{len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
