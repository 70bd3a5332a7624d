"""The documents of the server: the small part of YAML that beanstalkd and bsd write.

A document is lines of `key: value`, or a list of `- value`. A value is a number, true or false, a
text with or without quotes, or a list. Whatever else arrives is a `ValueError`.
"""

from __future__ import annotations

import re
from typing import Dict, List

from .model import Listed, Page, Stats, Value

_NUMBER = re.compile(r"-?[0-9]{1,20}")
_FRACTION = re.compile(r"-?[0-9]{1,20}\.[0-9]{1,20}")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}
#: Keys whose value is text, also where it looks like a number.
_TEXTS = frozenset(
    "name tube key group text reason hostname version os platform next set-for cron tz".split()
)


def lines(document: bytes) -> List[str]:
    """The lines behind `---`, without ends."""
    text = document.decode("utf-8", "replace").split("\n")
    if text and text[-1] == "":
        text.pop()
    first = text.pop(0) if text else ""
    if first == "---":
        return text
    if first.startswith("--- "):
        return [first[4:], *text]
    raise ValueError("a document begins with ---")


def mapping(document: bytes) -> Stats:
    """A document of keys and values."""
    found: Stats = {}
    entries: List[str] = []
    for line in lines(document):
        if line.startswith("- "):
            if not found:
                raise ValueError("an entry without a list")
            entries.append(str(_scalar(line[2:], True)))
            continue
        key, colon, value = line.partition(":")
        if not colon or not key or (value and value[0] != " "):
            raise ValueError("a line has no key")
        if value:
            found[key] = _scalar(value[1:], key in _TEXTS)
        else:
            entries = []
            found[key] = entries
    return found


def texts(document: bytes) -> List[str]:
    """A list of texts, such as names of tubes."""
    return [str(_scalar(it, True)) for it in _entries(document)]


def numbers(document: bytes) -> List[int]:
    """A list of ids."""
    return [_number(it) for it in _entries(document)]


def page(document: bytes) -> Page:
    """The document of `list-jobs`."""
    rest = lines(document)
    head: Dict[str, str] = {}
    while rest and not rest[0].startswith("- "):
        key, _, value = rest.pop(0).partition(":")
        head[key] = value.strip()
    if "jobs" not in head:
        raise ValueError("a page has jobs")
    cursor = str(_scalar(head["next"], True))
    if not cursor or " " in cursor:
        raise ValueError("a cursor is a word")
    if len(rest) % 2:
        raise ValueError("a job has an id and a size")
    jobs = []
    for at in range(0, len(rest), 2):
        ident, size = rest[at], rest[at + 1]
        if not ident.startswith("- id: ") or not size.startswith("  size: "):
            raise ValueError("a job has an id and a size")
        jobs.append(Listed(_number(ident[6:]), _number(size[8:])))
    return Page(cursor, tuple(jobs))


def _entries(document: bytes) -> List[str]:
    rest = lines(document)
    if rest == ["[]"]:
        return []
    if not all(line.startswith("- ") for line in rest):
        raise ValueError("a line is no entry of a list")
    return [line[2:] for line in rest]


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError("a number is expected")
    return int(text)


def _scalar(text: str, is_text: bool) -> Value:
    if text.startswith('"'):
        if len(text) < 2 or not text.endswith('"'):
            raise ValueError("a quoted value has no end")
        return _ESCAPE.sub(_unescaped, text[1:-1])
    if text == "[]":
        return []
    if is_text:
        return text
    if text in ("true", "false"):
        return text == "true"
    if _NUMBER.fullmatch(text):
        return int(text)
    if _FRACTION.fullmatch(text):
        return float(text)
    return text


def _unescaped(match: "re.Match[str]") -> str:
    letter = match.group(1)
    if len(letter) == 5:
        code = int(letter[1:], 16)
        return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)
    return _LETTERS.get(letter, letter)
