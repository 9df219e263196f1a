"""Generated requests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.limits import Limits
from rewardlab.serving.service import GroupRules, ServerOptions
from tests.support.servers import running

JUDGE = GenerativeJudge(ScriptedSampler(lambda prompt, draw: "<think>x</think><answer>1</answer>"), load_template("plain"))
APP = create_app(JUDGE, ServerOptions(rules=GroupRules(group_size=2), limits=Limits(group_timeout=0.02)))
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "8"))
OPERATIONS = {
    f"{one.method.upper()} {one.path}": one
    for one in (found.ok() for found in schemathesis.openapi.from_dict(APP.openapi()).get_all_operations())
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(APP) as address:
        yield address


KINDS = [
    *((name, GenerationMode.POSITIVE) for name in OPERATIONS),
    *((name, GenerationMode.NEGATIVE) for name, one in OPERATIONS.items() if list(one.body)),  # else nothing can be wrong
]


@pytest.mark.parametrize(("name", "mode"), KINDS, ids=lambda value: getattr(value, "value", value))
def test_no_request_breaks_the_server(url: str, name: str, mode: GenerationMode) -> None:
    """Bodies that fit the description, and bodies that do not, for every path: never a 5xx."""

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(OPERATIONS[name].as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        case.validate_response(case.call(base_url=url), checks=[not_a_server_error])

    ask()
