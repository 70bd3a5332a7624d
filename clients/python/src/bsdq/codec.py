"""Arguments of tasks as JSON, held to the annotations of the function.

Known are what JSON has, lists, tuples and dictionaries of them, unions, literals, enumerations,
dates and times, and data classes. A parameter without annotation takes whatever JSON has.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import sys
import typing
from typing import Any, Dict, Literal, Union

from .errors import InvalidArgument

_UNIONS: typing.Tuple[Any, ...] = (Union,)
if sys.version_info >= (3, 10):
    import types

    _UNIONS += (types.UnionType,)


class WrongArgument(InvalidArgument):
    """An argument of a task is not what its annotation says."""


def dumps(task: str, args: Dict[str, Any]) -> bytes:
    """The body of a job."""
    content = {"task": task, "args": {name: encode(value) for name, value in args.items()}}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def encode(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, enum.Enum):
        return encode(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (datetime.datetime, datetime.date)):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: encode(getattr(value, field.name)) for field in fields}
    if isinstance(value, (list, tuple)):
        return [encode(it) for it in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise WrongArgument("keys of a dictionary are texts")
        return {key: encode(it) for key, it in value.items()}
    raise WrongArgument(f"a {type(value).__name__} cannot be an argument of a task")


def decode(value: Any, hint: Any, where: str) -> Any:
    """The value as the annotation says, made of what JSON has."""
    if hint is Any:
        return value
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        for one in args:
            try:
                return decode(value, one, where)
            except WrongArgument:
                continue
    elif origin is Literal:
        if any(value == one and type(value) is type(one) for one in args):
            return value
    elif hint is None or hint is type(None):
        if value is None:
            return None
    elif hint is bool or hint is str:
        if type(value) is hint:
            return value
    elif hint is int:
        if type(value) is int:
            return value
    elif hint is float:
        if type(value) in (int, float):
            return float(value)
    elif (origin or hint) in (list, tuple, dict):
        return _collection(value, origin or hint, args, where)
    elif isinstance(hint, type):
        return _object(value, hint, where)
    else:
        raise WrongArgument(f"{where}: {hint!r} is no annotation that can be checked")
    raise WrongArgument(f"{where}: {value!r} is not {getattr(hint, '__name__', hint)}")


def _collection(value: Any, kind: Any, args: typing.Tuple[Any, ...], where: str) -> Any:
    if kind is dict:
        if isinstance(value, dict):
            of = args[1] if args else Any
            return {key: decode(it, of, f"{where}.{key}") for key, it in value.items()}
    elif isinstance(value, list):
        if kind is tuple and args and args[-1] is not ...:
            if len(args) == len(value):
                parts = zip(value, args)
                return tuple(decode(it, one, f"{where}.{at}") for at, (it, one) in enumerate(parts))
        else:
            of = args[0] if args else Any
            return kind(decode(it, of, f"{where}.{at}") for at, it in enumerate(value))
    raise WrongArgument(f"{where}: {value!r} is no {kind.__name__} as annotated")


def _object(value: Any, hint: type, where: str) -> Any:
    try:
        if issubclass(hint, enum.Enum):
            return hint(value)
        if issubclass(hint, (datetime.datetime, datetime.date)):
            return hint.fromisoformat(value)
    except (TypeError, ValueError):
        raise WrongArgument(f"{where}: {value!r} is no {hint.__name__}") from None
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        hints = typing.get_type_hints(hint)
        names = {field.name for field in dataclasses.fields(hint)}
        if set(value) <= names:
            made = {name: decode(it, hints[name], f"{where}.{name}") for name, it in value.items()}
            try:
                return hint(**made)
            except TypeError as error:
                raise WrongArgument(f"{where}: {error}") from None
    raise WrongArgument(f"{where}: {value!r} is no {hint.__name__}")
