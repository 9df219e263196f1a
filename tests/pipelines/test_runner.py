"""Pipelines of small real processes: order, side by side, resumed, failed, killed; and the lines of the pipelines that ship."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rewardlab.cli import app
from rewardlab.cli.commands import check_line
from rewardlab.config import load_config
from rewardlab.config.pipeline import HardenConfig, PipelineConfig, StageConfig
from rewardlab.demo.quickstart import free_port, open_quickstart
from rewardlab.errors import ConfigError, EndpointError, RewardlabError
from rewardlab.pipelines.hardening import values_of
from rewardlab.pipelines.runner import Pipeline, Stage, fill_stages, launcher_words, start_process


def stages_in(out: Path, **code: str) -> list[Stage]:
    """Stages that run Python code and leave a file of their name; ``b__a`` needs a."""
    stages = {}
    for named, each in code.items():
        name, *needs = named.split("__")
        run = f"""python -c "{each or "pass"}; open(r'{out / name}', 'w').close()" """
        stages[name] = StageConfig(run=run, result=name, needs=tuple(needs))
    return fill_stages(stages, {})


def test_stages_run_in_order_and_once(tmp_path: Path) -> None:
    """A stage waits for those that it needs; again nothing runs, and without a result that stage alone."""
    check = f"import os; assert os.path.exists(r'{tmp_path / 'a'}')"
    stages = stages_in(tmp_path, b__a=check, a="")
    Pipeline(tmp_path, {"seed": 0}, parallel=2).run(stages)
    record = json.loads((tmp_path / "pipeline.json").read_text())
    assert list(record["seconds"]) == ["a", "b"]
    times = {name: (tmp_path / name).stat().st_mtime_ns for name in "ab"}
    (tmp_path / "b").unlink()
    again = Pipeline(tmp_path, {"seed": 0})
    assert again.resumed
    again.run(stages)
    assert (tmp_path / "a").stat().st_mtime_ns == times["a"]
    assert (tmp_path / "b").stat().st_mtime_ns > times["b"]
    with pytest.raises(ConfigError, match=r"other settings \(seed\)"):
        Pipeline(tmp_path, {"seed": 1})
    (tmp_path / "pipeline.json").write_text("{")
    with pytest.raises(ConfigError, match="the file is corrupt; delete it"):
        Pipeline(tmp_path, {"seed": 0})


def test_stages_run_side_by_side(tmp_path: Path) -> None:
    """Each of two waits for the other's file, which one at a time would never see."""
    wait = "import time, os; open(r'{0}', 'w').close(); [time.sleep(.02) for _ in range(500) if not os.path.exists(r'{1}')]; "
    wait += "assert os.path.exists(r'{1}')"
    one, two = tmp_path / "1", tmp_path / "2"
    Pipeline(tmp_path, {}, parallel=2).run(stages_in(tmp_path, a=wait.format(one, two), b=wait.format(two, one)))


def test_a_server_runs_as_long_as_it_is_needed(tmp_path: Path) -> None:
    """It is up before the stage that needs it starts, and gone afterwards; its CPU seconds count."""
    url = f"http://127.0.0.1:{free_port()}"
    fetch = f"import urllib.request as u; u.build_opener(u.ProxyHandler(dict())).open('{url}').read()"
    server = StageConfig(run=f"python -m http.server --bind 127.0.0.1 {url.rpartition(':')[2]}", ready=url)
    [filled] = fill_stages({"server": server}, {})
    run = Pipeline(tmp_path, {})
    refused = (
        f"import urllib.request as u, urllib.error as e\ntry: {fetch.partition('; ')[2]}\nexcept e.URLError: exit()\nexit(1)"
    )
    (tmp_path / "refused.py").write_text(refused)
    after = StageConfig(run=f"python {tmp_path / 'refused.py'}", result="a", needs=("a",))
    run.run([filled, *stages_in(tmp_path, a__server=fetch), *fill_stages({"after": after}, {})])
    assert set(run.cpu_seconds) == {"server", "a", "after"}
    check = subprocess.run([sys.executable, "-c", fetch], capture_output=True, text=True)
    assert "refused" in check.stderr
    [dead] = fill_stages({"dead": StageConfig(run="python -c \"raise SystemExit('no port')\"", ready=url)}, {})
    with pytest.raises(EndpointError, match=r"(?s)stage dead.*did not come up.*no port"):
        run.run([dead, *stages_in(tmp_path, b__dead="")])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('so it goes'); raise SystemExit(3)", r"(?s)stage a failed with status 3.*a\.log.*so it goes"),
        ("exit()", "did not write a"),
    ],
)
def test_a_failed_stage(tmp_path: Path, code: str, message: str) -> None:
    """The error has the end of its log; what runs beside it is ended."""
    beside = tmp_path / "pid"
    sleep = f"import os, time; open(r'{beside}', 'w').write(str(os.getpid())); time.sleep(60)"
    wait = f"import os, time; [time.sleep(.02) for _ in range(500) if not os.path.exists(r'{beside}')]; {code}"
    with pytest.raises(RewardlabError, match=message):
        Pipeline(tmp_path, {}, parallel=2).run(stages_in(tmp_path, b=sleep, a=wait))
    assert not runs(int(beside.read_text()))


def test_a_kill_between_result_and_record(tmp_path: Path) -> None:
    """A command that refuses a finished folder is not started again, unless it failed with its result written."""
    result = tmp_path / "x"
    code = (
        f"import os, sys; os.path.exists(r'{result}') and sys.exit('finished'); open(r'{result}', 'w').close(); sys.exit({{}})"
    )
    lines = [StageConfig(run=f'python -c "{code.format(status)}"', result="x", is_atomic=True) for status in (0, 4)]
    done, unhealthy = (fill_stages({"a": line}, {}) for line in lines)
    Pipeline(tmp_path, {}).run(done)
    record = json.loads((tmp_path / "pipeline.json").read_text())
    (tmp_path / "pipeline.json").write_text(json.dumps({**record, "seconds": {}}))
    Pipeline(tmp_path, {}).run(done)
    result.unlink()
    for message in ("status 4", "status 1"):
        with pytest.raises(RewardlabError, match=message):
            Pipeline(tmp_path, {}).run(unhealthy)
    result.unlink()
    again = Pipeline(tmp_path, {})
    again.run(done)
    assert not again.failed
    result.unlink()
    for message in ("status 4", "status 1"):
        with pytest.raises(RewardlabError, match=message):
            Pipeline(tmp_path, {}).run(unhealthy)


def runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's parent-death signal")
def test_a_killed_pipeline_leaves_nothing_running(tmp_path: Path) -> None:
    """``kill -9`` of the parent ends its stages, so that the same command can take over their folders."""
    code = (
        "import sys, time; from pathlib import Path; from rewardlab.pipelines.runner import start_process\n"
        f"words = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        f"print(start_process(words, Path({str(tmp_path / 'log')!r}), {{}}, None).pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert runs(child)
        parent.kill()
    deadline = time.monotonic() + 10
    while runs(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(child)


def test_words_are_filled_in(tmp_path: Path) -> None:
    """A list becomes several words, and a path with a blank stays one; a launcher starts the program."""
    config = StageConfig(run="rewardlab sft --out {out} {keys}", result="{out}/x", launched=True)
    [stage] = fill_stages({"a": config}, {"out": "my runs", "keys": ["a=1", "b=2"]})
    assert stage.words == ("rewardlab", "sft", "--out", "my runs", "a=1", "b=2")
    started: list[Any] = []

    def start(words: Any, log: Path, env: Any, folder: Path | None) -> Any:
        started.append(words)
        (tmp_path / "my runs").mkdir()
        (tmp_path / "my runs" / "x").touch()
        return start_process([sys.executable, "-c", ""], log, env, folder)

    Pipeline(tmp_path, {}, launcher="python -m launch --nproc 2", start=start).run([stage])
    assert started == [["python", "-m", "launch", "--nproc", "2", "-m", "rewardlab.cli", *stage.words[1:]]]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("rm -r {out}", "expected a command line of rewardlab or python"),
        ("rewardlab {x}", "values are out"),
        ("rewardlab {out.x}", "values are out"),
    ],
)
def test_lines_that_are_none(run: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fill_stages({"a": StageConfig(run=run, result="a")}, {"out": "x"})


@pytest.mark.parametrize(
    ("launcher", "message"),
    [("accelerate 'launch", "cannot be read"), ("no_such_program --n 2", "cannot find the program no_such")],
)
def test_launchers_that_are_none(launcher: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launcher_words(launcher)


def lines_that_ship(tmp_path: Path) -> list[Stage]:
    loop = load_config(HardenConfig, "harden/loop", {"sft_config": "tiny/sft"})
    return [*open_quickstart(tmp_path, "tiny", 0)[1].values(), *fill_stages(loop.stages, values_of(loop))]


def test_the_commands_take_the_lines_that_ship(tmp_path: Path) -> None:
    """Every line is parsed by the command that it starts; with any option mistyped it is not."""
    stages = lines_that_ship(tmp_path)
    assert len(stages) == 11 + 7
    names = {check_line(app, stage.words) for stage in stages}
    assert names >= {"demo build", "demo serve", "distill", "sft", "rl", "policy", "data negatives", "self-distil", "bench run"}
    for stage in stages:
        options = [word for word in stage.words if word.startswith("--")]
        assert options
        for option in options:
            with pytest.raises(ConfigError, match="No such option"):
                check_line(app, [f"{option}x" if word == option else word for word in stage.words])


def test_stages_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"stage a needs 'b'"):
        load_config(PipelineConfig, None, {"stages": {"a": {"run": "python x", "result": "x", "needs": ["b"]}}})
    with pytest.raises(ConfigError, match="either a result"):
        load_config(PipelineConfig, None, {"stages": {"a": {"run": "python x"}}})


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ({"other": {"run": "python x", "result": "x"}}, "expected policy, answers"),
        ({"rl": {"needs": ["sft"]}}, r"stages\.rl: .*leave out needs"),
        ({"rl": {"result": "", "ready": "http://127.0.0.1:1"}}, r"stages\.rl: .*needs and ready"),
        ({"rl": {"result": "", "ready": "127.0.0.1:1"}}, "expected a URL such as"),
    ],
)
def test_stages_that_are_none_of_a_round(stages: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(HardenConfig, "harden/loop", {"stages": stages})
    with pytest.raises(ConfigError, match="expected policy, answers"):
        load_config(HardenConfig, None, {**dict.fromkeys(("data", "held_out", "policy", "judge"), "x"), "stages": {}})


def test_stages_that_need_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stages a, b form a cycle"):
        Pipeline(tmp_path, {}).run(stages_in(tmp_path, a__b="", b__a=""))
