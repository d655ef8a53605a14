# SPDX-License-Identifier: Apache-2.0
"""Reads P4_16, as much of it as the programs in p4/ use, into trees.

Our own reading of the language specification (version 1.2), not a compiler: it accepts less than p4c does, and
may accept what p4c rejects. Everything that it does not know is an error that names file and line. Macros and
includes are the C preprocessor's, called as p4c calls it; the architecture's own files are not read.
"""
import pathlib
import re
import subprocess
import tempfile

ARCHITECTURES = ("core.p4", "v1model.p4", "tna.p4")
TIMEOUT_S = 20


class P4Error(Exception):
    """An error with file and line."""


class Node:
    """One construct: its kind, where it is, and whatever its kind has."""

    def __init__(self, kind, where, **fields):
        self.kind = kind
        self.where = where
        self.__dict__.update(fields)

    def __repr__(self):
        rest = {key: value for key, value in self.__dict__.items() if key not in ("kind", "where")}
        return f"{self.kind}{rest}"

    def children(self):
        for key, value in self.__dict__.items():
            if key not in ("kind", "where"):
                yield from nodes_in(value)


def nodes_in(value):
    """The nodes of a field: itself, or those of a list, however deep."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from nodes_in(item)


def walk(node):
    """The node and everything below it."""
    yield node
    for child in node.children():
        yield from walk(child)


def preprocess(path, defines=()):
    """The program's text after the preprocessor, with line markers."""
    with tempfile.TemporaryDirectory() as empty:
        for name in ARCHITECTURES:
            pathlib.Path(empty, name).write_text("")
        command = ["cpp", "-undef", "-nostdinc", "-x", "assembler-with-cpp", "-I", empty,
                   *[f"-D{define}" for define in defines], str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise P4Error(done.stderr.strip())
    return done.stdout


TOKEN = re.compile(r"""
    (?P<marker>^\#\s(?P<line>\d+)\s"(?P<file>[^"]*)"[^\n]*\n)
  | (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<space>[ \t\r\f]+)
  | (?P<newline>\n)
  | (?P<number>(?:\d+[ws])?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|\d[\d_]*)\b)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<string>"[^"\n]*")
  | (?P<sign>&&&|\+\+|\|\+\||\|-\||==|!=|<=|>=|&&|\|\||<<|\.\.|[-+*/%&|^~!<>=?:;,.(){}\[\]@])
""", re.X | re.M | re.S)


class Token:
    def __init__(self, kind, text, where, start):
        self.kind, self.text, self.where, self.start = kind, text, where, start


def tokens_of(text):
    """Names, numbers and signs. '>' is always a token of its own: it may close two types at once."""
    file, line, at, found = "?", 1, 0, []
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise P4Error(f"{file}:{line}: not a token: {text[at:at + 20]!r}")
        kind = match.lastgroup if match.group("marker") is None else "marker"
        if kind == "marker":
            file, line = match.group("file"), int(match.group("line"))
        elif kind == "newline":
            line += 1
        elif kind == "comment":
            line += match.group().count("\n")
        elif kind != "space":
            found.append(Token(kind, match.group(), f"{file}:{line}", at))
        at = match.end()
    found.append(Token("end", "", f"{file}:{line}", at))
    return found


def number_of(text):
    """(width or None for one of any width, value)."""
    width = None
    match = re.match(r"(\d+)([ws])(.*)", text)
    if match:
        width, text = int(match.group(1)), match.group(3)
        if "s" == match.group(2):
            raise P4Error(f"signed number {text}")
    return width, int(text.replace("_", ""), 0) if text[:2].lower() in ("0x", "0b") else int(text)


# Operators by increasing precedence. Unlike in C, the bitwise operators bind tighter than
# comparisons.
BINARY = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("|",), ("^",), ("&",), ("<<", ">>"),
          ("++", "+", "-", "|+|", "|-|"), ("*", "/", "%"))


class Cursor:
    """A place in the tokens."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.at = 0

    @property
    def token(self):
        return self.tokens[self.at]

    def ahead(self, count=1):
        return self.tokens[min(self.at + count, len(self.tokens) - 1)]

    def fail(self, expected):
        raise P4Error(f"{self.token.where}: expected {expected}, found {self.token.text!r}")

    def take(self, text):
        if self.token.text != text or self.token.kind == "string":
            return False
        self.at += 1
        return True

    def need(self, text):
        if not self.take(text):
            self.fail(repr(text))

    def name(self):
        if self.token.kind != "name":
            self.fail("a name")
        self.at += 1
        return self.tokens[self.at - 1].text

    def shift_right(self):
        """Whether two '>' side by side are next."""
        return (self.token.text == ">" and self.ahead().text == ">"
                and self.ahead().start == self.token.start + 1)


class ExpressionReader(Cursor):
    """Types and expressions."""

    def __init__(self, tokens):
        super().__init__(tokens)
        self.types = {"bit", "int", "bool", "error", "void"}

    def type(self):
        where, name = self.token.where, self.name()
        arguments = []
        if self.take("<"):
            while True:
                arguments.append(self.type_argument())
                if not self.take(","):
                    break
            self.need(">")
        return Node("type", where, name=name, arguments=arguments)

    def type_argument(self):
        if self.token.kind == "number" or self.token.text == "(":
            return self.additive()
        return self.type()

    def additive(self):
        return self.binary(BINARY.index(("++", "+", "-", "|+|", "|-|")))

    def expression(self):
        where = self.token.where
        condition = self.binary(0)
        if not self.take("?"):
            return condition
        yes = self.expression()
        self.need(":")
        return Node("choice", where, condition=condition, yes=yes, no=self.expression())

    def binary(self, level):
        if level == len(BINARY):
            return self.unary()
        left = self.binary(level + 1)
        while True:
            where = self.token.where
            if self.shift_right():
                if ">>" not in BINARY[level]:
                    return left
                self.at += 2
                sign = ">>"
            elif self.token.text in BINARY[level] and self.token.kind == "sign":
                sign = self.token.text
                self.at += 1
            else:
                return left
            left = Node("binary", where, sign=sign, left=left, right=self.binary(level + 1))

    def unary(self):
        where = self.token.where
        for sign in ("!", "~", "-"):
            if self.take(sign):
                return Node("unary", where, sign=sign, operand=self.unary())
        if self.token.text == "(" and self.ahead().text in self.types:
            self.at += 1
            target = self.type()
            self.need(")")
            return Node("cast", where, type=target, operand=self.unary())
        return self.postfix(self.primary())

    def primary(self):
        token = self.token
        if self.take("("):
            inner = self.expression()
            self.need(")")
            return inner
        if self.take("{"):
            items = self.expressions("}")
            return Node("list", token.where, items=items)
        if token.kind == "number":
            self.at += 1
            width, value = number_of(token.text)
            return Node("number", token.where, width=width, value=value)
        if token.kind == "string":
            self.at += 1
            return Node("string", token.where, text=token.text)
        name = self.name()
        if name in ("true", "false"):
            return Node("boolean", token.where, value=name == "true")
        return Node("name", token.where, name=name)

    def expressions(self, end):
        items = []
        while not self.take(end):
            items.append(self.expression())
            if not self.take(","):
                self.need(end)
                break
        return items

    def postfix(self, node):
        while True:
            where = self.token.where
            if self.take("."):
                node = Node("member", where, object=node, name=self.name())
            elif self.take("("):
                node = Node("call", where, function=node, types=[], arguments=self.expressions(")"))
            elif self.take("["):
                high = self.expression()
                low = self.expression() if self.take(":") else None
                self.need("]")
                node = Node("slice", where, object=node, high=high, low=low)
            elif self.token.text == "<" and node.kind == "member" and self.ahead().text in self.types:
                saved = self.at
                self.at += 1
                types = [self.type()]
                if not self.take(">") or not self.take("("):
                    self.at = saved
                    return node
                node = Node("call", where, function=node, types=types, arguments=self.expressions(")"))
            else:
                return node


class Reader(ExpressionReader):
    """Statements and declarations."""

    def annotations(self):
        while self.take("@"):
            self.name()
            if self.take("("):
                self.expressions(")")

    def block(self):
        where = self.token.where
        self.need("{")
        body = []
        while not self.take("}"):
            body.append(self.statement())
        return Node("block", where, body=body)

    def declares(self):
        """Whether a variable's declaration is next."""
        return self.token.text in self.types or (self.token.kind == "name" and self.ahead().kind == "name")

    def statement(self):
        self.annotations()
        where = self.token.where
        if self.token.text == "{":
            return self.block()
        if self.take("if"):
            self.need("(")
            condition = self.expression()
            self.need(")")
            yes = self.statement()
            return Node("if", where, condition=condition, yes=yes,
                        no=self.statement() if self.take("else") else None)
        if self.token.text in ("switch", "for", "exit"):
            self.fail("a statement that is understood here")
        if self.take("return"):
            self.need(";")
            return Node("return", where)
        if self.declares():
            return self.variable()
        target = self.postfix(self.primary())
        if self.take("="):
            value = self.expression()
            self.need(";")
            return Node("assign", where, target=target, value=value)
        self.need(";")
        if target.kind != "call":
            raise P4Error(f"{where}: expected an assignment or a call")
        return Node("run", where, call=target)

    def variable(self):
        where = self.token.where
        kind = self.type()
        name = self.name()
        value = self.expression() if self.take("=") else None
        self.need(";")
        return Node("variable", where, type=kind, name=name, value=value)

    def parameters(self):
        found = []
        self.need("(")
        while not self.take(")"):
            self.annotations()
            direction = self.name() if self.token.text in ("in", "out", "inout") else ""
            found.append(Node("parameter", self.token.where, direction=direction, type=self.type(),
                              name=self.name()))
            if not self.take(","):
                self.need(")")
                break
        return found

    def program(self):
        found = []
        while self.token.kind != "end":
            found.append(self.declaration())
        return found

    def declaration(self):
        self.annotations()
        where = self.token.where
        if self.take("const"):
            kind, name = self.type(), self.name()
            self.need("=")
            value = self.expression()
            self.need(";")
            return Node("constant", where, type=kind, name=name, value=value)
        if self.take("typedef"):
            kind, name = self.type(), self.name()
            self.need(";")
            self.types.add(name)
            return Node("typedef", where, type=kind, name=name)
        for kind in ("header", "struct"):
            if self.take(kind):
                return self.record(kind, where)
        if self.take("parser"):
            return self.parser(where)
        if self.take("control"):
            return self.control(where)
        return self.instance(where)

    def record(self, kind, where):
        name = self.name()
        self.need("{")
        fields = []
        while not self.take("}"):
            self.annotations()
            fields.append(Node("field", self.token.where, type=self.type(), name=self.name()))
            self.need(";")
        self.types.add(name)
        return Node(kind, where, name=name, fields=fields)

    def instance(self, where):
        """TYPE(arguments) name; or with a body that says what its methods do."""
        kind = self.type()
        self.need("(")
        arguments = self.expressions(")")
        name = self.name()
        methods = []
        if self.take("="):
            self.need("{")
            while not self.take("}"):
                methods.append(self.method())
        self.need(";")
        return Node("instance", where, type=kind, arguments=arguments, name=name, methods=methods)

    def method(self):
        where = self.token.where
        self.type()
        name = self.name()
        return Node("method", where, name=name, parameters=self.parameters(), body=self.block())

    def parser(self, where):
        name, parameters = self.name(), self.parameters()
        self.need("{")
        locals_, states = [], []
        while not self.take("}"):
            self.annotations()
            if self.token.text == "state":
                states.append(self.state())
            elif self.declares():
                locals_.append(self.variable())
            else:
                locals_.append(self.instance(self.token.where))
        return Node("parser", where, name=name, parameters=parameters, locals=locals_, states=states)

    def state(self):
        where = self.token.where
        self.need("state")
        name = self.name()
        self.need("{")
        body, transition = [], None
        while not self.take("}"):
            if self.take("transition"):
                transition = self.transition()
            else:
                body.append(self.statement())
        return Node("state", where, name=name, body=body, transition=transition)

    def transition(self):
        where = self.token.where
        if not self.take("select"):
            target = self.name()
            self.need(";")
            return Node("goto", where, target=target)
        self.need("(")
        keys = self.expressions(")")
        self.need("{")
        cases = []
        while not self.take("}"):
            at = self.token.where
            patterns = self.patterns(len(keys))
            self.need(":")
            cases.append(Node("case", at, patterns=patterns, target=self.name()))
            self.need(";")
        return Node("select", where, keys=keys, cases=cases)

    def patterns(self, count):
        if self.token.text == "default":
            self.at += 1
            return None
        if not (self.token.text == "(" and count > 1):
            return [self.pattern()]
        self.need("(")
        found = [self.pattern()]
        while self.take(","):
            found.append(self.pattern())
        self.need(")")
        return found

    def pattern(self):
        where = self.token.where
        if self.take("_"):
            return Node("any", where)
        value = self.expression()
        mask = self.expression() if self.take("&&&") else None
        return Node("pattern", where, value=value, mask=mask)

    def control(self, where):
        name, parameters = self.name(), self.parameters()
        self.need("{")
        locals_, apply = [], None
        while not self.take("}"):
            self.annotations()
            at = self.token.where
            if self.take("action"):
                locals_.append(Node("action", at, name=self.name(), parameters=self.parameters(),
                                    body=self.block()))
            elif self.take("table"):
                locals_.append(self.table(at))
            elif self.take("apply"):
                apply = self.block()
            elif self.take("const"):
                self.at -= 1
                locals_.append(self.declaration())
            elif self.declares() and self.ahead().text != "(":
                saved = self.at
                self.type()
                is_instance = self.token.text == "("
                self.at = saved
                locals_.append(self.instance(at) if is_instance else self.variable())
            else:
                locals_.append(self.instance(at))
        if apply is None:
            raise P4Error(f"{where}: control {name} has no apply block")
        return Node("control", where, name=name, parameters=parameters, locals=locals_, apply=apply)

    def table(self, where):
        name = self.name()
        self.need("{")
        table = Node("table", where, name=name, keys=[], actions=[], default=None, size=None, entries=[])
        while not self.take("}"):
            self.annotations()
            self.take("const")
            part = self.name()
            self.need("=")
            self.table_part(table, part)
        return table

    def table_part(self, table, part):
        if part == "key":
            self.need("{")
            while not self.take("}"):
                value = self.expression()
                self.need(":")
                table.keys.append(Node("key", value.where, value=value, match=self.name()))
                self.annotations()
                self.need(";")
        elif part == "actions":
            self.need("{")
            while not self.take("}"):
                self.annotations()
                table.actions.append(self.name())
                if self.take("("):
                    self.need(")")
                self.need(";")
        elif part == "entries":
            self.need("{")
            while not self.take("}"):
                patterns = self.patterns(len(table.keys))
                self.need(":")
                table.entries.append(Node("entry", table.where, patterns=patterns, action=self.expression()))
                self.need(";")
        elif part == "default_action":
            table.default = self.postfix(self.primary())
            self.need(";")
        elif part == "size":
            table.size = self.expression()
            self.need(";")
        else:
            self.fail("key, actions, entries, default_action or size")


def read(path, defines=()):
    """The declarations of the program at `path`, in order."""
    return Reader(tokens_of(preprocess(path, defines))).program()
