"""Commands from records: the fields of a frozen dataclass are a command's options, declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

import typer

Options = TypeVar("Options")


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


def signature_of(record: type) -> inspect.Signature:
    """Return the signature of a function that takes the fields of a dataclass by keyword."""
    hints = get_type_hints(record, include_extras=True)
    parameters = []
    for field in fields(record):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if default is MISSING else default,
                annotation=hints[field.name],
            )
        )
    return inspect.Signature(parameters)
