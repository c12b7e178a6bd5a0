"""PTX text to tokens; comments vanish, line numbers stay."""

import re
from dataclasses import dataclass

from moegen.ptx.errors import PtxSyntaxError

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\f\v]+)
  | (?P<newline>\n)
  | (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<string>"[^"\n]*")
  | (?P<float>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|\d+\.\d*(?:[eE][+-]?\d+)?)
  | (?P<int>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?(?![\w.]))
  | (?P<word>\.?[%A-Za-z_$][\w$]*(?:(?:\.|::)[\w$]+)*|\.\d[\w]*)
  | (?P<punct>[{}()\[\],;:|@!+\-<>=*&~])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One token; ``kind`` is ``string``, ``float``, ``int``, ``word`` or ``punct``."""

    kind: str
    text: str
    line: int


def tokenize(text: str, name: str = "<ptx>") -> list[Token]:
    """Splits PTX text into tokens.

    Raises:
        PtxSyntaxError: a character that no PTX token starts with, or an open comment.
    """
    tokens: list[Token] = []
    line, position, end = 1, 0, len(text)
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            snippet = text[position : position + 20].splitlines()[0]
            raise PtxSyntaxError(f"no PTX token starts with {snippet!r}", f"{name}:{line}")
        kind, piece = match.lastgroup, match.group()
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += piece.count("\n")
        elif kind != "space":
            assert kind is not None
            tokens.append(Token(kind, piece, line))
        position = match.end()
    return tokens
