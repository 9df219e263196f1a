"""Do clients that others wrote work with the endpoint? Each calls it by its own code, from an environment of its own.

    python -m eval.serving_clients --environments FOLDER --slime CHECKOUT --gym CHECKOUT --verl-omni CHECKOUT \\
        --unified-reward CHECKOUT

The Python of ``FOLDER/NAME`` (created with ``pip install`` if missing) runs the scripts of ``eval/clients/``, TRL's with this
project's; node, promptfoo and curl run theirs. The endpoints are processes of ``rewardlab serve`` with a key: one alone, two
that share groups by ``--peers``, two that do not; and one without, whose engine is told not to think. The engine is a scripted
judge that prefers the response with the greater number. Writes ``eval/results/serving_clients.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import av
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from eval.endpoints import free_port, served, start_endpoint, wait_until_ready
from rewardlab.models.checkpoints import commit

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "eval" / "clients"
RESULTS = ROOT / "eval" / "results" / "serving_clients"
KEY = "a-key-of-the-clients"


@dataclass(frozen=True)
class Client:
    """``script`` runs in an environment; ``checkout`` is an option of this script, and ``package`` has the version."""

    name: str
    script: str
    environment: str
    package: str = ""
    checkout: str = ""


# What pip installs, call by call. verl does not name all that it imports; OpenRLHF requires a compiler for GPUs. The client of
# verl-omni and slime's need what is also verl's.
_VERL = ("verl==0.9.1", "cachetools", "fastapi", "uvicorn", "openai", "Levenshtein", "pylatexenc")
_GYM = ("openai<=2.7.2", "anthropic<=0.109.2", "fastapi", "devtools", "hydra-core", "orjson", "aiohttp", "rich", "mcp", "tqdm")
_GYM_TOO = ("uvicorn", "requests", "ray[default]", "yappi", "GitPython", "wandb", "itsdangerous", "pydot", "gprof2dot")
ENVIRONMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "openai": (("openai",),),
    "langchain-openai": (("langchain-openai",),),
    "litellm": (("litellm[proxy]",),),
    "cohere": (("cohere",),),
    "verl": (_VERL, ("--no-deps", "openrlhf==0.11.2")),
    "nemo-gym": ((*_GYM, *_GYM_TOO, "datasets", "mlflow-skinny"),),
    "unified-reward": (("requests", "pillow", "tqdm"),),
}
CLIENTS = (
    Client("openai", "openai_python.py", "openai", "openai"),
    Client("langchain-openai", "langchain_sdk.py", "langchain-openai", "langchain-openai"),
    Client("litellm", "litellm_sdk.py", "litellm", "litellm"),
    Client("cohere", "cohere_sdk.py", "cohere", "cohere"),
    Client("trl", "trl_grpo.py", "", "trl"),
    Client("openrlhf", "openrlhf_agent.py", "verl", "openrlhf"),
    Client("verl", "verl_worker.py", "verl", "verl"),
    Client("verl-omni", "verl_omni_rewards.py", "verl", checkout="verl_omni"),
    Client("slime", "slime_hub.py", "verl", checkout="slime"),
    Client("nemo-gym", "nemo_gym_agent.py", "nemo-gym", checkout="gym"),
    Client("nemo-gym", "nemo_gym_judge.py", "nemo-gym", checkout="gym"),
    Client("unified-reward", "unified_reward_requests.py", "unified-reward", checkout="unified_reward"),
)


@dataclass(frozen=True)
class Row:
    """A call of a client: ``worked``, ``refused`` with a sentence as expected, or ``wrong``."""

    client: str
    call: str
    outcome: str
    detail: str


NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


def reply(body: Mapping[str, Any]) -> str:
    """Return a judgment for the response with the greater number, of a pair whose question mentions an image only if it is
    there; and the answers that other prompts request, from the number in them."""
    content = [part for message in body["messages"] for part in _parts(message["content"])]
    text = "\n".join(part["text"] for part in content if part["type"] == "text")
    has_image = any(part["type"] == "image_url" for part in content)
    if body.get("response_format"):
        return '{"better": 2}'
    if has_image and (points := _points(text, body)):
        return points
    if "[[A!=B]]" in text:  # NeMo-Gym's judge of equivalence
        return "[[A=B]]" if len(set(re.findall(r"(?:GOLD|CANDIDATE):\n(.*)", text)[-2:])) == 1 else "[[A!=B]]"
    responses = re.findall(r"Response [12](?:\]:\n|: ?)(.*)", text)
    if len(responses) != 2:
        return f"draw {random.randrange(10**9) if body.get('temperature') else 'greedy'}"
    if "see" in text and not has_image:
        return "I see nothing"
    numbers = [int((re.findall(r"\d+", response) or ["0"])[-1]) for response in responses]
    return f"<think>by number</think><answer>{1 if numbers[0] >= numbers[1] else 2}</answer>"


def _points(text: str, body: Mapping[str, Any]) -> str:
    """Return the answer to a prompt of verl-omni, "" for another."""
    number = int((re.findall(r"I say (\d)", text) or ["0"])[0])
    if "Alignment Score (1-5)" in text:
        return "\n".join(f"{name} Score (1-5): {number}" for name in ("Alignment", "Coherence", "Style"))
    if "output only the text content from the image" in text:
        return "star"
    if scores := dict(re.findall(r"Candidate ([AB]):\nI say (\d)", text)):
        blocks = {name: {"overall_score": int(score)} for name, score in scores.items()}
        return json.dumps({**blocks, "winner": max(scores, key=lambda name: scores[name])})
    if "correctness_scores" in text:
        thinks = any(body.get(name) != value for name, value in NO_THINKING.items())
        return "I think." if thinks else json.dumps({"correctness": number / 5, "aesthetics": number / 5})
    return ""


async def complete(request: Request) -> Response:
    message = {"role": "assistant", "content": reply(await request.json())}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return JSONResponse({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}})


def _parts(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def engine() -> Starlette:
    """Return the scripted judge as an OpenAI-compatible engine."""
    models = JSONResponse({"object": "list", "data": [{"id": "judge", "object": "model"}]})
    return Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"]), Route("/v1/models", lambda r: models)])


@contextmanager
def endpoints(engine_url: str, folder: Path) -> Iterator[list[str]]:
    """Serve one endpoint, two peers and two that do not know each other, all with the key; and one without."""
    keys = folder / "keys"
    keys.write_text(f"{KEY} name=clients")
    ports = [free_port() for _ in range(6)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        processes = []
        for n, (port, url) in enumerate(zip(ports, urls, strict=True)):
            options = ["template=plain", "--group-size", "2", "--limit", f"group_timeout={1.5 if n > 2 else 20}"]
            options += [f"body={json.dumps(NO_THINKING)}"] if n == 5 else ["--keys", str(keys)]
            options += ["--address", url, "--peers", ",".join(urls[1:3])] if n in (1, 2) else []
            processes.append(start_endpoint(f"openai:judge@{engine_url}/v1", port, *options))
            stack.callback(processes[-1].kill)
        for url, process in zip(urls, processes, strict=True):
            wait_until_ready(url, process)
        yield urls


def data_urls() -> dict[str, str]:
    """Return an image and a video."""
    still, image, film = Image.new("RGB", (32, 32), "red"), io.BytesIO(), io.BytesIO()
    still.save(image, "PNG")
    with av.open(film, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width, stream.height, stream.pix_fmt = *still.size, "yuv420p"
        for frame in (*[av.VideoFrame.from_image(still)] * 4, None):
            container.mux(stream.encode(frame))
    types = {"CLIENTS_IMAGE": (image, "image/png"), "CLIENTS_VIDEO": (film, "video/mp4")}
    return {n: f"data:{kind};base64,{base64.b64encode(file.getvalue()).decode()}" for n, (file, kind) in types.items()}


def environment(urls: Sequence[str]) -> dict[str, str]:
    lists = {"CLIENTS_URLS": ",".join(urls[1:3]), "CLIENTS_LONE_URLS": ",".join(urls[3:5])}
    one = {"CLIENTS_URL": urls[0], "CLIENTS_KEYLESS_URL": urls[5], "CLIENTS_KEY": KEY}
    return {**os.environ, **one, **lists, **data_urls()}


def rows_of(name: str, command: Sequence[str], env: dict[str, str], cwd: Path | None = None) -> list[Row]:
    """Return the calls that a script prints; a failed script is a wrong call."""
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=900)
    rows = [Row(name, **json.loads(line)) for line in done.stdout.splitlines() if line.startswith('{"call"')]
    if done.returncode:
        rows.append(Row(name, "the script", "wrong", (done.stderr.strip().splitlines() or ["no message"])[-1][:600]))
    return rows


def python_client(client: Client, folder: Path, checkout: Path | None, env: dict[str, str]) -> list[Row]:
    """Run a client's script in its environment."""
    home = folder / client.environment
    python = home / "bin" / "python" if client.environment else Path(sys.executable)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        for packages in ENVIRONMENTS[client.environment]:
            subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
    if client.checkout and checkout is None:
        return [Row(client.name, "its checkout", "wrong", f"--{client.checkout.replace('_', '-')} is missing")]
    version = package_version(python, client.package) if checkout is None else checkout_version(checkout)
    path = os.pathsep.join(map(str, [SCRIPTS, *([] if client.environment else [ROOT]), *([checkout] if checkout else [])]))
    return rows_of(f"{client.name} {version}", [str(python), str(SCRIPTS / client.script)], {**env, "PYTHONPATH": path})


def package_version(python: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True).stdout.strip()


def checkout_version(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short=9", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "checkout"


def _npm_home(folder: Path, package: str) -> Path:
    """Return the folder in which a package of npm is installed."""
    home = folder / f"npm-{package}"
    if not (home / "node_modules" / package).is_dir():
        home.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", package], cwd=home, check=True, capture_output=True)
    return home


def node_client(folder: Path, env: dict[str, str]) -> list[Row]:
    """Run openai's npm package."""
    home = _npm_home(folder, "openai")
    package = json.loads((home / "node_modules" / "openai" / "package.json").read_text())
    script = home / "openai_node.mjs"  # node looks for packages beside the script
    script.write_text((SCRIPTS / "openai_node.mjs").read_text())
    return rows_of(f"npm openai {package['version']}", ["node", str(script)], env)


PROMPTFOO = """prompts: ["Which number is greater? {{{{n}}}}"]
providers:
  - id: openai:{api}:judge
    config: {{apiBaseUrl: "{url}/v1", apiKey: "{key}", temperature: 1 {more}}}
tests:
  - vars: {{n: 1}}
    assert: [{{type: {kind}}}]
"""


def promptfoo(folder: Path, env: dict[str, str]) -> list[Row]:
    """Run promptfoo with the endpoint as its provider: repeats are independent samples."""
    home = _npm_home(folder, "promptfoo")
    package = json.loads((home / "node_modules" / "promptfoo" / "package.json").read_text())
    name, rows = f"promptfoo {package['version']}", []
    quiet = {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1"}
    env = {**env, **quiet, "PROMPTFOO_CONFIG_DIR": str(home / "state")}
    program = ["node_modules/.bin/promptfoo", "eval", "--no-cache"]
    draw, json_object = "contains, value: draw", ", response_format: {type: json_object}"
    for call, api, more, kind, repeat in (
        ("three repeats", "chat", "", draw, 3),
        ("response_format", "chat", json_object, "is-json", 1),
        ("responses, three repeats", "responses", "", draw, 3),
    ):
        config, out = home / "config.yaml", home / "out.json"
        config.write_text(PROMPTFOO.format(url=env["CLIENTS_URL"], key=KEY, api=api, more=more, kind=kind))
        command = [*program, "-c", str(config), "-o", str(out), "--repeat", str(repeat)]
        subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=600)
        results = json.loads(out.read_text())["results"]["results"]
        outputs = {str(one.get("response", {}).get("output")) for one in results}
        error = " ".join(str(one.get("error") or "") for one in results)
        outcome = "worked" if len(outputs) == repeat and all(one["success"] for one in results) else "wrong"
        rows.append(Row(name, call, outcome, error[:600] if outcome != "worked" else ""))
    return rows


CURL = (
    ("-F file=@ (multipart)", ["-F", "file=@star.png"], '"id"', 200),
    ("-F, two files", ["-F", "a=@star.png", "-F", "b=@star.png"], "a form with 2 files; expected one", 422),
    ("--data-binary @", ["--data-binary", "@star.png"], '"id"', 200),
    ("-T", ["-T", "star.png"], '"id"', 200),
)


def curl(folder: Path, env: dict[str, str]) -> list[Row]:
    """Upload with curl in each of its ways."""
    (folder / "star.png").write_bytes(base64.b64decode(env["CLIENTS_IMAGE"].partition(",")[2]))
    rows = []
    words = subprocess.run(["curl", "--version"], capture_output=True, text=True).stdout.split()
    for call, options, expected, code in CURL:
        command = ["curl", "-s", "-w", "\n%{http_code}", "-H", f"Authorization: Bearer {KEY}", *options]
        done = subprocess.run([*command, f"{env['CLIENTS_URL']}/v1/uploads"], cwd=folder, capture_output=True, text=True)
        text, _, status = done.stdout.rpartition("\n")
        good = expected in text and status == str(code)
        rows.append(Row(f"curl {words[1]}", call, ("worked" if code == 200 else "refused") if good else "wrong", text[:300]))
    return [row if row.outcome != "worked" else Row(row.client, row.call, row.outcome, "") for row in rows]


def table(rows: Sequence[Row]) -> str:
    """Return the calls as a Markdown table."""
    lines = ["| client | call | outcome | sentence |", "|---|---|---|---|"]
    for row in rows:
        detail = row.detail.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
        lines.append(f"| {row.client} | {row.call} | {row.outcome} | {_shortened(detail)} |")
    return "\n".join(lines)


def _shortened(text: str, most: int = 220) -> str:
    return text if len(text) <= most else text[:most] + " …"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=Path, required=True)
    for option in ("--slime", "--gym", "--verl-omni", "--unified-reward"):
        parser.add_argument(option, type=Path, metavar="CHECKOUT")
    parser.add_argument("--only", default="", help="names of clients, comma-separated; nothing is written")
    options = parser.parse_args()
    rows: list[Row] = []
    wanted = set(filter(None, options.only.split(",")))
    with tempfile.TemporaryDirectory() as name, served(engine()) as engine_url, endpoints(engine_url, Path(name)) as urls:
        env = environment(urls)
        runs: list[tuple[str, Any]] = [("node", lambda: node_client(options.environments, env))]
        for client in CLIENTS:
            checkout = getattr(options, client.checkout) if client.checkout else None
            runs.append((client.name, lambda c=client, p=checkout: python_client(c, options.environments, p, env)))
        runs += [("promptfoo", lambda: promptfoo(options.environments, env)), ("curl", lambda: curl(Path(name), env))]
        for label, run in runs:
            if wanted and label not in wanted:
                continue
            try:
                new_rows = run()
            except (OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
                new_rows = [Row(label, "the client", "wrong", f"{type(error).__name__}: {error}")]
            print(table(new_rows), flush=True)
            rows += new_rows
    if wanted:
        return
    checkouts = "--slime SLIME --gym GYM --verl-omni VERL_OMNI --unified-reward UNIFIED_REWARD"
    command = f"python -m eval.serving_clients --environments ENVIRONMENTS {checkouts}"
    result = {"command": command, "commit": commit(), "rows": [asdict(row) for row in rows]}
    RESULTS.with_suffix(".json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    counts = {outcome: sum(row.outcome == outcome for row in rows) for outcome in ("worked", "refused", "wrong")}
    summary = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    text = f"{len(rows)} calls: {summary}.\n\n{table(rows)}\n\n`{command}` at {result['commit'][:12]}.\n"
    RESULTS.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
