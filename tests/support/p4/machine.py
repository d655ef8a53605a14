# SPDX-License-Identifier: Apache-2.0
"""Translates v1model programs, as syntax.py reads them, to Python functions, with the types checked on the way.

Arithmetic on bit<W> is modulo 2^W, conversions happen only where they are written, and a name that is not
declared, widths that differ, or a construct that is not known here is an error at translation. It is our own
reading of P4_16 and of v1model, no compiler's.
"""
import functools

import syntax
from syntax import P4Error

V1_METADATA = (("ingress_port", 9), ("egress_spec", 9), ("egress_port", 9), ("instance_type", 32),
               ("packet_length", 32), ("mcast_grp", 16), ("egress_rid", 16), ("checksum_error", 1))
WORD, FREE, BOOL, ERROR = "bit", "number", "bool", "error"
TABLE_SIZE = 1024  # where a table does not say


def bit(width):
    return (WORD, width)


class Scope:
    """Names that a function may use: parameters and variables, with their types."""

    def __init__(self, names, control=None):
        self.names = dict(names)
        self.control = control


class Translator:
    """One program. `source` is Python text; see switch.py for what it runs on."""

    EXTERN_TYPES = ("packet_in", "packet_out")
    INTRINSIC = {"standard_metadata_t": V1_METADATA + (("parser_error", (ERROR,)),)}

    def __init__(self, declarations):
        self.constants, self.typedefs, self.headers, self.structs = {}, {}, {}, {}
        self.parsers, self.controls, self.main = {}, {}, None
        self.registers, self.counters, self.tables = {}, {}, {}
        self.lines = []
        for node in declarations:
            self.declare(node)
        if self.main is None:
            raise P4Error("no instance called main")

    def declare(self, node):
        if node.kind == "typedef":
            self.typedefs[node.name] = self.type(node.type)
        elif node.kind == "constant":
            self.constants[node.name] = (self.type(node.type), self.constant_value(node.value))
        elif node.kind == "header":
            self.headers[node.name] = [(f.name, self.width(f.type)) for f in node.fields]
        elif node.kind == "struct":
            self.structs[node.name] = [(f.name, self.type(f.type)) for f in node.fields]
        elif node.kind == "parser":
            self.parsers[node.name] = node
            self.parser(node)
        elif node.kind == "control":
            self.controls[node.name] = node
            self.control(node)
        elif node.kind == "instance" and node.name == "main":
            self.main = [argument.function.name for argument in node.arguments]
        else:
            raise P4Error(f"{node.where}: {node.kind} {node.name} is not understood here")

    # Types and constants.

    def type(self, node):
        if node.name == "bit":
            return bit(self.constant_value(node.arguments[0]) if node.arguments else 1)
        if node.name in (BOOL, ERROR):
            return (node.name,)
        if node.name in self.typedefs:
            return self.typedefs[node.name]
        if node.name in self.headers:
            return ("header", node.name)
        if node.name in self.structs:
            return ("struct", node.name)
        if node.name in self.EXTERN_TYPES or node.name in self.INTRINSIC:
            return (node.name,)
        raise P4Error(f"{node.where}: no type {node.name}")

    def width(self, node):
        kind = self.type(node)
        if kind[0] != WORD:
            raise P4Error(f"{node.where}: expected bit<W>")
        return kind[1]

    def constant_value(self, node):
        code = self.expression(node, Scope({}))[1]
        return eval(code, {})  # the code has only numbers: names were replaced by their values

    # Expressions: (type, Python text).

    def expression(self, node, scope):
        return getattr(self, "on_" + node.kind)(node, scope)

    def on_number(self, node, _):
        if node.width is None:
            return (FREE,), str(node.value)
        return bit(node.width), str(node.value)

    def on_boolean(self, node, _):
        return (BOOL,), str(node.value)

    def on_name(self, node, scope):
        if node.name in scope.names:
            return scope.names[node.name], node.name
        if node.name in self.constants:
            kind, value = self.constants[node.name]
            return kind, str(value)
        raise P4Error(f"{node.where}: no {node.name}")

    def on_member(self, node, scope):
        if node.object.kind == "name" and node.object.name == "error":
            return (ERROR,), repr(node.name)
        if node.name == "hit" and node.object.kind == "call":
            return (BOOL,), self.apply_table(node.object, scope)
        kind, code = self.expression(node.object, scope)
        fields = {}
        if kind[0] == "struct":
            fields = dict(self.structs[kind[1]])
        elif kind[0] == "header":
            fields = {name: bit(width) for name, width in self.headers[kind[1]]}
        elif kind[0] in self.INTRINSIC:
            fields = {name: width if isinstance(width, tuple) else bit(width)
                      for name, width in self.INTRINSIC[kind[0]]}
        if node.name not in fields:
            raise P4Error(f"{node.where}: {kind[-1]} has no field {node.name}")
        return fields[node.name], f"{code}.{node.name}"

    def on_slice(self, node, scope):
        kind, code = self.expression(node.object, scope)
        if node.low is None:
            raise P4Error(f"{node.where}: stacks are not understood here")
        high, low = self.constant_value(node.high), self.constant_value(node.low)
        if kind[0] != WORD or not 0 <= low <= high < kind[1]:
            raise P4Error(f"{node.where}: no bits [{high}:{low}] in {kind}")
        return bit(high - low + 1), f"(({code}) >> {low} & {(1 << high - low + 1) - 1})"

    def on_cast(self, node, scope):
        target = self.type(node.type)
        kind, code = self.expression(node.operand, scope)
        if target == bit(1) and kind[0] == BOOL:
            return target, f"int({code})"
        if target[0] != WORD or kind[0] not in (WORD, FREE):
            raise P4Error(f"{node.where}: cast of {kind} to {target}")
        return target, f"({code} & {(1 << target[1]) - 1})"

    def on_unary(self, node, scope):
        kind, code = self.expression(node.operand, scope)
        if node.sign == "!":
            self.want(node, kind, (BOOL,))
            return kind, f"(not {code})"
        if kind[0] != WORD:
            raise P4Error(f"{node.where}: {node.sign} of {kind}")
        return kind, f"({node.sign}{code} & {(1 << kind[1]) - 1})"

    def on_choice(self, node, scope):
        condition, test = self.expression(node.condition, scope)
        self.want(node, condition, (BOOL,))
        kind, yes, no = self.unified(node, self.expression(node.yes, scope), self.expression(node.no, scope))
        return kind, f"({yes} if {test} else {no})"

    def unified(self, node, left, right):
        """Both sides as one type; a number without a width takes the other's."""
        if left[0][0] == FREE and right[0][0] == WORD:
            return right[0], self.fitted(node, left, right[0]), right[1]
        if right[0][0] == FREE and left[0][0] == WORD:
            return left[0], left[1], self.fitted(node, right, left[0])
        self.want(node, right[0], left[0])
        return left[0], left[1], right[1]

    def fitted(self, node, value, target):
        """The text of a value as `target`, where no conversion is needed."""
        kind, code = value
        if kind[0] == FREE and target[0] == WORD:
            number = eval(code, {})
            if not 0 <= number < 1 << target[1]:
                raise P4Error(f"{node.where}: {number} does not fit {target}")
            return str(number)
        self.want(node, kind, target)
        return code

    @staticmethod
    def want(node, found, expected):
        if found != expected:
            raise P4Error(f"{node.where}: expected {expected}, found {found}")

    def on_binary(self, node, scope):
        left, right = self.expression(node.left, scope), self.expression(node.right, scope)
        if node.sign in ("&&", "||"):
            self.want(node, left[0], (BOOL,))
            self.want(node, right[0], (BOOL,))
            return (BOOL,), f"({left[1]} {'and' if node.sign == '&&' else 'or'} {right[1]})"
        if node.sign == "++":
            if left[0][0] != WORD or right[0][0] != WORD:
                raise P4Error(f"{node.where}: ++ of numbers without width")
            return bit(left[0][1] + right[0][1]), f"({left[1]} << {right[0][1]} | {right[1]})"
        if node.sign in ("<<", ">>"):
            if right[0][0] not in (WORD, FREE) or left[0][0] not in (WORD, FREE):
                raise P4Error(f"{node.where}: shift of {left[0]} by {right[0]}")
            return left[0], self.masked(left[0], f"{left[1]} {node.sign} {right[1]}")
        kind, first, second = self.unified(node, left, right)
        if node.sign in ("==", "!="):
            return (BOOL,), f"({first} {node.sign} {second})"
        if kind[0] not in (WORD, FREE):
            raise P4Error(f"{node.where}: {node.sign} of {kind}")
        if node.sign in ("<", ">", "<=", ">="):
            return (BOOL,), f"({first} {node.sign} {second})"
        sign = {"/": "//"}.get(node.sign, node.sign)
        return kind, self.masked(kind, f"{first} {sign} {second}")

    @staticmethod
    def masked(kind, code):
        return f"(({code}) & {(1 << kind[1]) - 1})" if kind[0] == WORD else f"({code})"

    def on_call(self, node, scope):
        function = node.function
        if function.kind == "member":
            if function.name == "lookahead":
                width = self.width(node.types[0])
                return bit(width), f"{self.expression(function.object, scope)[1]}.lookahead({width})"
            kind, code = self.expression(function.object, scope)
            if function.name == "isValid" and kind[0] == "header":
                return (BOOL,), f"{code}.valid_"
        raise P4Error(f"{node.where}: a call that is not understood here")

    # Statements.

    def put(self, depth, text):
        self.lines.append("    " * depth + text)

    def block(self, statements, scope, depth):
        before = len(self.lines)
        for statement in statements:
            self.statement(statement, scope, depth)
        if len(self.lines) == before:
            self.put(depth, "pass")

    def statement(self, node, scope, depth):
        getattr(self, "do_" + node.kind)(node, scope, depth)

    def do_block(self, node, scope, depth):
        self.block(node.body, scope, depth)

    def do_if(self, node, scope, depth):
        kind, code = self.expression(node.condition, scope)
        self.want(node, kind, (BOOL,))
        self.put(depth, f"if {code}:")
        self.block([node.yes], scope, depth + 1)
        if node.no is not None:
            self.put(depth, "else:")
            self.block([node.no], scope, depth + 1)

    def do_variable(self, node, scope, depth):
        kind = self.type(node.type)
        if kind[0] != WORD or node.name in scope.names:
            raise P4Error(f"{node.where}: variable {node.name} of {kind}")
        value = f"undefined_.bits({kind[1]})"
        if node.value is not None:
            value = self.fitted(node, self.expression(node.value, scope), kind)
        scope.names[node.name] = kind
        self.put(depth, f"{node.name} = {value}")

    def target(self, node, scope):
        if node.kind not in ("name", "member") or (node.kind == "name" and node.name not in scope.names):
            raise P4Error(f"{node.where}: nothing can be assigned to this")
        return self.expression(node, scope)

    def do_assign(self, node, scope, depth):
        kind, code = self.target(node.target, scope)
        if kind[0] not in (WORD, BOOL, ERROR):
            raise P4Error(f"{node.where}: assignment of {kind} is not understood here")
        self.put(depth, f"{code} = {self.fitted(node, self.expression(node.value, scope), kind)}")

    def do_run(self, node, scope, depth):
        call = node.call
        if call.function.kind == "name":
            return self.run_function(call, scope, depth)
        method, owner = call.function.name, call.function.object
        instance = f"{scope.control}.{owner.name}" if owner.kind == "name" else None
        if instance in self.registers:
            return self.run_register(call, method, instance, scope, depth)
        if instance in self.counters and method == "count":
            index = self.fitted(call, self.expression(call.arguments[0], scope), bit(32))
            return self.put(depth, f"externs_[{instance!r}].count({index})")
        if instance in self.tables and method == "apply":
            return self.put(depth, self.apply_table(call, scope))
        kind, code = self.expression(owner, scope)
        if kind[0] == "header" and method in ("setValid", "setInvalid"):
            return self.put(depth, f"{code}.{'set_valid' if method == 'setValid' else 'set_invalid'}()")
        if (kind[0], method) in (("packet_in", "extract"), ("packet_out", "emit")):
            header, argument = self.expression(call.arguments[0], scope)
            if method == "emit" and header[0] == "struct":
                for name, inner in self.structs[header[1]]:
                    if inner[0] != "header":
                        raise P4Error(f"{call.where}: emit of {inner}")
                    self.put(depth, f"{code}.emit({argument}.{name})")
                return None
            if header[0] != "header":
                raise P4Error(f"{call.where}: {method} of {header}")
            return self.put(depth, f"{code}.{method}({argument})")
        raise P4Error(f"{call.where}: no method {method} of {kind}")

    def run_register(self, call, method, instance, scope, depth):
        value = bit(self.registers[instance][0])
        if method == "read":
            kind, code = self.target(call.arguments[0], scope)
            self.want(call, kind, value)
            index = self.fitted(call, self.expression(call.arguments[1], scope), bit(32))
            self.put(depth, f"{code} = externs_[{instance!r}].read({index})")
        elif method == "write":
            index = self.fitted(call, self.expression(call.arguments[0], scope), bit(32))
            new = self.fitted(call, self.expression(call.arguments[1], scope), value)
            self.put(depth, f"externs_[{instance!r}].write({index}, {new})")
        else:
            raise P4Error(f"{call.where}: no method {method} of a register")

    def run_function(self, call, scope, depth):
        name = call.function.name
        if f"{scope.control}.{name}" in self.actions:
            parameters = self.actions[f"{scope.control}.{name}"]
            if len(parameters) != len(call.arguments):
                raise P4Error(f"{call.where}: {name} takes {len(parameters)} arguments")
            values = [self.fitted(call, self.expression(a, scope), kind)
                      for a, (_, kind) in zip(call.arguments, parameters)]
            return self.put(depth, f"{scope.control}__{name}({', '.join(self.shared[scope.control] + values)})")
        if name == "mark_to_drop":
            return self.put(depth, f"drop_({self.expression(call.arguments[0], scope)[1]})")
        if name == "random":
            kind, code = self.target(call.arguments[0], scope)
            low, high = (self.fitted(call, self.expression(a, scope), kind) for a in call.arguments[1:])
            return self.put(depth, f"{code} = dice_({low}, {high})")
        if name in ("verify_checksum", "update_checksum"):
            return self.run_checksum(call, name, scope, depth)
        raise P4Error(f"{call.where}: no function {name}")

    def run_checksum(self, call, name, scope, depth):
        condition, data, checksum, _ = call.arguments
        if data.kind != "list":
            raise P4Error(f"{call.where}: only lists of fields are understood here")
        self.put(depth, f"if {self.expression(condition, scope)[1]}:")
        fields = [self.expression(item, scope) for item in data.items]
        words = "".join(f"({code}, {kind[1]}), " for kind, code in fields)
        target = self.target(checksum, scope)[1]
        if name == "update_checksum":
            self.put(depth + 1, f"{target} = checksum16_(({words}))")
        else:
            self.put(depth + 1, f"if {target} != checksum16_(({words})): raise WrongChecksum()")

    def do_return(self, node, scope, depth):
        raise P4Error(f"{node.where}: return is not understood here")

    # Parsers and controls.

    def names_of(self, node):
        return {p.name: self.type(p.type) for p in node.parameters}

    def parser(self, node):
        names = self.names_of(node)
        arguments = ", ".join(names)
        states = {state.name for state in node.states} | {"accept", "reject"}
        for state in node.states:
            scope = Scope(names)
            self.put(0, f"def {node.name}__{state.name}({arguments}):")
            self.block(state.body, scope, 1)
            self.transition(state.transition, states, scope)
        table = ", ".join(f"{s.name!r}: {node.name}__{s.name}" for s in node.states)
        self.put(0, f"{node.name} = {{{table}}}")

    def transition(self, node, states, scope):
        if node is None:
            raise P4Error("a state without a transition")
        targets = [node.target] if node.kind == "goto" else [case.target for case in node.cases]
        for target in targets:
            if target not in states:
                raise P4Error(f"{node.where}: no state {target}")
        if node.kind == "goto":
            return self.put(1, f"return {node.target!r}")
        keys = [self.expression(key, scope) for key in node.keys]
        for i, (_, code) in enumerate(keys):
            self.put(1, f"key_{i} = {code}")
        for case in node.cases:
            tests = [] if case.patterns is None else [
                self.pattern_test(pattern, f"key_{i}", keys[i][0], scope)
                for i, pattern in enumerate(case.patterns)]
            self.put(1, f"if {' and '.join(tests) or 'True'}: return {case.target!r}")
        return self.put(1, "raise NoMatch()")

    def pattern_test(self, node, code, kind, scope):
        if node.kind == "any":
            return "True"
        value = self.fitted(node, self.expression(node.value, scope), kind)
        if node.mask is None:
            return f"{code} == {value}"
        mask = self.fitted(node, self.expression(node.mask, scope), kind)
        return f"{code} & {mask} == {value} & {mask}"

    def control(self, node):
        self.actions = getattr(self, "actions", {})
        self.shared = getattr(self, "shared", {})
        names = self.names_of(node)
        self.shared[node.name] = list(names)
        self.actions[f"{node.name}.NoAction"] = []
        self.put(0, f"def {node.name}__NoAction({', '.join(names)}): pass")
        for part in node.locals:
            self.control_part(node, part, names)
        self.put(0, f"def {node.name}({', '.join(names)}):")
        self.block([node.apply], Scope(names, node.name), 1)

    def control_part(self, node, part, names):
        full = f"{node.name}.{part.name}"
        if part.kind == "action":
            own = [(p.name, self.type(p.type)) for p in part.parameters]
            if any(kind[0] != WORD for _, kind in own):
                raise P4Error(f"{part.where}: only parameters of bits are understood here")
            if any(p.direction in ("out", "inout") for p in part.parameters):
                raise P4Error(f"{part.where}: actions that return something are not understood here")
            self.actions[full] = own
            self.put(0, f"def {node.name}__{part.name}({', '.join(list(names) + [n for n, _ in own])}):")
            self.block([part.body], Scope({**names, **dict(own)}, node.name), 1)
        elif part.kind == "table":
            self.table(node, part, full, names)
        elif part.kind == "instance" and part.type.name == "register":
            self.registers[full] = (self.width(part.type.arguments[0]), self.constant_value(part.arguments[0]))
        elif part.kind == "instance" and part.type.name == "counter":
            self.counters[full] = self.constant_value(part.arguments[0])
        else:
            raise P4Error(f"{part.where}: {part.kind} {part.name} is not understood here")

    def table(self, node, part, full, names):
        scope = Scope(names, node.name)
        keys = [self.expression(key.value, scope) for key in part.keys]
        for key, (kind, _) in zip(part.keys, keys):
            if key.match != "exact" or kind[0] != WORD:
                raise P4Error(f"{key.where}: only exact keys of bits are understood here")
        for action in part.actions:
            if f"{node.name}.{action}" not in self.actions:
                raise P4Error(f"{part.where}: no action {action}")
        default = "NoAction"
        if part.default is not None:
            default = part.default.name if part.default.kind == "name" else part.default.function.name
            if part.default.kind == "call" and part.default.arguments:
                raise P4Error(f"{part.where}: a default action with arguments is not understood here")
        if default not in [*part.actions, "NoAction"]:
            raise P4Error(f"{part.where}: {default} is not among the actions")
        self.tables[full] = {
            "keys": [kind[1] for kind, _ in keys], "default": default,
            "size": self.constant_value(part.size) if part.size is not None else TABLE_SIZE,
            "entries": [self.entry(entry, keys, part) for entry in part.entries],
            "actions": {a: [kind[1] for _, kind in self.actions[f"{node.name}.{a}"]] for a in part.actions}}
        functions = ", ".join(f"{a!r}: {node.name}__{a}" for a in {*part.actions, default})
        arguments = ", ".join(names)
        self.put(0, f"def {node.name}__table_{part.name}({arguments}):")
        self.put(1, f"entry = entries_[{full!r}].get(({''.join(code + ', ' for _, code in keys)}))")
        self.put(1, f"action, values = entry or ({default!r}, ())")
        self.put(1, f"{{{functions}}}[action]({arguments}, *values)")
        self.put(1, "return entry is not None")

    def entry(self, node, keys, table):
        """(key, (action, values)) of an entry that the program itself has."""
        values = [eval(self.fitted(node, self.expression(pattern.value, Scope({})), kind), {})
                  for pattern, (kind, _) in zip(node.patterns, keys)]
        action = node.action.function.name
        if action not in table.actions or node.action.arguments:
            raise P4Error(f"{node.where}: {action} is not among the actions, or has parameters")
        return tuple(values), (action, ())

    def apply_table(self, call, scope):
        name = call.function.object.name
        if call.function.name != "apply" or f"{scope.control}.{name}" not in self.tables:
            raise P4Error(f"{call.where}: no table {name}")
        return f"{scope.control}__table_{name}({', '.join(self.shared[scope.control])})"


@functools.lru_cache(maxsize=8)
def translate(path, kind=Translator):
    """The Translator of the program at `path`, and its code, which are not changed by who uses them."""
    translator = kind(syntax.read(path))
    return translator, compile("\n".join(translator.lines), str(path), "exec")
