"""The Dockerfile's steps without a container engine: the same commands in a virtual environment, and the health check."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support import dockerfile

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
FOLDERS = ("/opt/rewardlab", "/workspace", "/dist", "/src")  # of the image; here they lie below one folder
OF_THE_SYSTEM = ("apt-get ", "useradd ")


@dataclass(frozen=True)
class Image:
    """What the steps of a target leave in ``folder``, and the environment that its programs see."""

    folder: Path
    env: dict[str, str]

    def path(self, text: str) -> str:
        """Return a text with the image's folders replaced by those of this machine."""
        return re.sub(rf"({'|'.join(FOLDERS)})\b", lambda found: f"{self.folder}{found[1]}", text)

    def run(self, step: str, where: str) -> None:
        """Run a step in a shell. Fail with its output."""
        folder = Path(self.path(where))
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["sh", "-c", self.path(step)], cwd=folder, env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, f"{step}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def lend_packages(image: Image) -> None:
    """Show the new environment the packages that are installed here, this project aside: a package index is not needed."""
    lent = image.folder / "lent"
    lent.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("rewardlab", "__editable__", "_", "pip", "distutils")):
            (lent / path.name).symlink_to(path)
    site = next(Path(image.path("/opt/rewardlab")).glob("lib/python3*/site-packages"))
    for old in site.glob("setuptools*"):  # what a new environment of Python 3.11 has; an index would replace it
        shutil.rmtree(old)
    (site / "lent.pth").write_text(f"{lent}\n")


def copy(image: Image, text: str, where: str) -> None:
    """Do what COPY does: a folder's contents go into the folder that is named."""
    *names, target = text.split()
    place = Path(image.path(target if target.startswith("/") else f"{where}/{target}"))
    for name in names:
        source = ROOT / name
        goal = place / name if target.endswith("/") else place
        goal.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, goal, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, goal)


def build(image: Image, stage: str) -> list[str]:
    """Do the steps of a stage. Return those that were left out, which are the system's."""
    where, left_out, values = "/", [], {}
    for each in dockerfile.instructions(stage):
        if each.word == "WORKDIR":
            where = each.text
        elif each.word == "ARG":
            name, _, value = each.text.partition("=")
            values[name] = value
        elif each.word == "COPY":
            copy(image, each.text, where)
        elif each.word == "RUN" and each.shell.startswith(OF_THE_SYSTEM):
            left_out.append(each.shell)
        elif each.word == "RUN":
            Image(image.folder, {**image.env, **values}).run(each.shell, where)
            if each.shell.startswith("python -m venv"):
                lend_packages(image)
    return left_out


def image_env(folder: Path) -> dict[str, str]:
    """Return an environment without an index and isolated builds (pip's switch is the wrong way round: 0 is none), in which
    programs of the image come first. Skip the test where nothing could build a wheel."""
    if find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed, and a wheel cannot be built without an index")
    path = f"{folder}/opt/rewardlab/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return env | pip | {"PATH": path, "HOME": str(folder / "home"), "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """What the stages ``wheel`` and ``cpu`` leave."""
    folder = tmp_path_factory.mktemp("image")
    built = Image(folder, image_env(folder))
    assert build(built, "wheel") == []
    assert [step.split()[0] for step in build(built, "cpu")] == ["useradd"]
    return built


def test_installed_program_is_the_wheels(image: Image, tmp_path: Path) -> None:
    """The entry point answers from the new environment, with its configs, in a folder that holds nothing."""
    program = shutil.which(*dockerfile.last("cpu", "ENTRYPOINT").arguments, path=image.env["PATH"])
    assert program == image.path("/opt/rewardlab/bin/rewardlab")
    done = subprocess.run([program, *dockerfile.last("cpu", "CMD").arguments], env=image.env, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0
    assert b"serve" in done.stdout
    code = "import rewardlab, rewardlab.config as c; print(rewardlab.__file__, c.find_config('rl/ppo'))"
    found = subprocess.run(
        [image.path("/opt/rewardlab/bin/python"), "-c", code], env=image.env, cwd=tmp_path, capture_output=True
    )
    assert [path.startswith(image.path("/opt/rewardlab")) for path in found.stdout.decode().split()] == [True, True], (
        found.stderr
    )
    assert Path(image.path("/workspace/configs/accelerate/zero3.yaml")).exists()


def test_cuda_pins_vllm_within_its_extra(tmp_path: Path) -> None:
    """The constraints are those of every install, and vLLM gets one within the bounds of its extra."""
    (tmp_path / "opt" / "rewardlab").mkdir(parents=True)
    pins = tmp_path / "opt" / "rewardlab" / "constraints.txt"
    shutil.copy(ROOT / "constraints.txt", pins)
    steps = [each.shell for each in dockerfile.instructions("cuda") if each.word == "RUN" and "constraints.txt" in each.shell]
    pin = next(step for step in steps if step.startswith("echo "))
    Image(tmp_path, dict(os.environ)).run(pin, "/workspace")
    before, after = (path.read_text(encoding="utf-8").splitlines() for path in (ROOT / "constraints.txt", pins))
    assert after[:-1] == before
    name, _, version = after[-1].partition("==")
    [bounds] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["vllm"]
    assert name == "vllm"
    assert Version(version) in Requirement(bounds).specifier


@contextmanager
def served(image: Image, checkpoint: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the image's endpoint on a free port; its output goes beside ours."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [image.path("/opt/rewardlab/bin/rewardlab"), "serve", "--judge", f"hf:{checkpoint}", "--port", str(port)]
    process = subprocess.Popen(command, env=image.env, cwd=image.path("/workspace"))
    try:
        yield process, port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def is_healthy(image: Image, pid: int, port: int) -> bool:
    """Run the image's health check on a process that is not the first of its machine, and on its port."""
    program, *arguments = dockerfile.last("cpu", "HEALTHCHECK").arguments
    arguments = [text.replace("/proc/1/", f"/proc/{pid}/").replace(":8000/", f":{port}/") for text in arguments]
    return subprocess.run([program, *arguments], env=image.env, capture_output=True, timeout=30).returncode == 0


def test_health_check_tells_a_server_that_answers(image: Image, tiny_checkpoint: Path) -> None:
    """Not while it loads, then yes, not on a port where nobody listens; any other command is well while it runs."""
    with served(image, tiny_checkpoint) as (process, port):
        seen = [is_healthy(image, process.pid, port)]
        deadline = time.monotonic() + 120
        while not (up := is_healthy(image, process.pid, port)) and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.5)
        assert up
        assert httpx.get(f"http://127.0.0.1:{port}/health").json()["judge"].startswith("hf:")
        assert seen == [False]
        assert not is_healthy(image, process.pid, 9)
    with subprocess.Popen(["sleep", "20"]) as other:
        assert is_healthy(image, other.pid, 9)
        other.kill()
