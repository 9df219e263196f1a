"""Commands from records: the fields of a frozen dataclass are a command's options, declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, TypeVar, get_type_hints

import typer

from rewardlab.errors import ConfigError

Options = TypeVar("Options")
_tree = cache(typer.main.get_command)
USAGE_ERROR: Any = typer.BadParameter.__base__  # that of the click that typer has


def command(app: typer.Typer, name: str, **settings: Any) -> Callable[[Callable[[Options], None]], Callable[[Options], None]]:
    """Register ``function(options)`` as the command ``name`` of ``app``.

    Each field of the dataclass that ``function`` takes is a parameter: ``Annotated[TYPE, typer.Option(...)] = DEFAULT``. The
    help text is the function's docstring; ``settings`` are those of :meth:`typer.Typer.command`.
    """

    def register(function: Callable[[Options], None]) -> Callable[[Options], None]:
        [record] = [hint for key, hint in get_type_hints(function).items() if key != "return"]

        def run(**values: Any) -> None:
            function(record(**values))

        run.__doc__, run.__module__ = function.__doc__, function.__module__
        run.__signature__ = signature_of(record)  # type: ignore[attr-defined]
        app.command(name, **settings)(run)
        return function

    return register


def field_default(field: Field[Any]) -> Any:
    """Return the default of a dataclass's field, MISSING if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def signature_of(record: type) -> inspect.Signature:
    """Return the signature of a function that takes the fields of a dataclass by keyword."""
    hints = get_type_hints(record, include_extras=True)
    parameters = []
    for field in fields(record):
        default = field_default(field)
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is MISSING else default,
                annotation=hints[field.name],
            )
        )
    return inspect.Signature(parameters)


def check_line(app: typer.Typer, words: Sequence[str]) -> str:
    """Parse a command line of `rewardlab` without running it; return the command's name. Raise ConfigError for a command, an
    option or a value that it does not take; lines of other programs pass."""
    if words[0] != "rewardlab":
        return words[0]
    command: Any = _tree(app)
    rest, names = list(words[1:]), list[str]()
    try:
        while hasattr(command, "commands"):
            names.append(rest.pop(0))
            command = command.commands[names[-1]]
        command.make_context(names[-1], rest)
    except (KeyError, IndexError) as error:
        raise ConfigError(f"{' '.join(words)}: there is no such command") from error
    except USAGE_ERROR as error:
        raise ConfigError(f"{' '.join(words)}: {error}") from error
    return " ".join(names)
