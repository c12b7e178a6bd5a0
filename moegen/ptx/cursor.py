"""A cursor over PTX tokens, with the small pieces that every construct of the grammar needs."""

from moegen.ptx.errors import PtxSyntaxError
from moegen.ptx.lexer import Token, tokenize


class Cursor:
    """Tokens of a module and a position in them.

    Attributes:
        name: of the text, for errors.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.tokens = tokenize(text, name)
        self.position = 0

    def fail(self, what: str, line: int | None = None) -> PtxSyntaxError:
        """A syntax error here, or at a line."""
        if line is None:
            line = self.tokens[min(self.position, len(self.tokens) - 1)].line if self.tokens else 1
        return PtxSyntaxError(what, f"{self.name}:{line}")

    def peek(self, ahead: int = 0) -> str:
        """Text of the next token, or of one further on; empty at the end."""
        index = self.position + ahead
        return self.tokens[index].text if index < len(self.tokens) else ""

    def next(self) -> Token:
        """Takes the next token."""
        if self.position >= len(self.tokens):
            raise self.fail("the text ends in the middle of a statement (truncated PTX?)")
        token = self.tokens[self.position]
        self.position += 1
        return token

    def accept(self, text: str) -> bool:
        """Takes the next token if it is ``text``."""
        if self.peek() == text:
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        """Takes the next token, which must be ``text``."""
        token = self.next()
        if token.text != text:
            raise self.fail(f"expected {text!r}, found {token.text!r}", token.line)
        return token

    def integer(self) -> int:
        """Takes an integer."""
        sign = -1 if self.accept("-") else 1
        token = self.next()
        if token.kind != "int":
            raise self.fail(f"expected an integer, found {token.text!r}", token.line)
        return sign * int(token.text.rstrip("U"), 0)

    def integers(self) -> tuple[int, ...]:
        """Takes integers separated by commas."""
        values = [self.integer()]
        while self.accept(","):
            values.append(self.integer())
        return tuple(values)

    def skip_line(self, line: int) -> None:
        """Skips what is left of a line."""
        while self.position < len(self.tokens) and self.tokens[self.position].line == line:
            self.position += 1

    def skip_to(self, text: str) -> None:
        """Skips up to and including a token."""
        while self.next().text != text:
            pass

    def skip_section(self) -> None:
        """Skips a block in braces."""
        self.skip_to("{")
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self.next().text, 0)
