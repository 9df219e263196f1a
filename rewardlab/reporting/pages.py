"""HTML pages: the template environment that every page of the package is rendered with."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from rewardlab.reporting.tables import RESPONSE_LETTERS, percent


def page_environment(*packages: str) -> Environment:
    """Return the environment of the templates of these packages, in this order, and of this one (``style.html``).

    Escaping is on: a response is text, never markup. A variable that is not given is an error.
    """
    loaders = [PackageLoader(name, ".") for name in (*packages, "rewardlab.reporting")]
    env = Environment(loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined)
    env.globals.update(percent=percent, letters=RESPONSE_LETTERS)
    return env
