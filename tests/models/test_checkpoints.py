"""The card in a checkpoint folder: what it promises, and what happens when it does not fit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import rewardlab
from rewardlab.errors import CheckpointError, ConfigError
from rewardlab.models.checkpoints import (
    CARD,
    card_temperature,
    check_template,
    commit,
    load_template_for,
    read_card,
    template_change,
    template_for,
    versions,
    weights_id,
    write_card,
)
from rewardlab.models.hub import reaches_hub
from rewardlab.prompts import Template, load_template
from tests.support.hub_server import HubServer, Repo
from tests.support.servers import running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    write_card(tmp_path, template=load_template("plain"), stage="sft")
    return tmp_path


def test_the_template_comes_from_the_card(folder: Path) -> None:
    """Without being asked, or asked for the same; another one is refused with both hashes and the cure."""
    plain = load_template("plain")
    assert template_for(folder, None) == template_for(folder, "plain") == plain
    with pytest.raises(CheckpointError, match=rf"{plain.hash}.*{load_template('r1_reward').hash}.*train it again"):
        template_for(folder, "r1_reward")
    with pytest.raises(ConfigError, match="unknown prompt template"):
        template_for(folder, "nothing")


def test_a_changed_template_is_noticed(folder: Path) -> None:
    """One letter in the prompt, or another format, is another hash."""
    plain = load_template("plain")
    write_card(folder, template=Template("plain", plain.text + ".", plain.verdict_format), stage="sft")
    with pytest.raises(CheckpointError, match="has hash"):
        template_for(folder, None)
    assert Template("plain", plain.text, "other").hash != plain.hash


def test_folders_without_a_card(tmp_path: Path) -> None:
    """A hub checkpoint makes no claim; a folder that is no checkpoint is said to be none; a damaged card is said to be."""
    with pytest.raises(CheckpointError, match="no such"):
        template_for(tmp_path / "none", None)
    with pytest.raises(CheckpointError, match=r"neither config\.json"):
        read_card(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert read_card(tmp_path) is None
    assert template_for(tmp_path, None).name == "r1_reward"
    (tmp_path / CARD).write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read_card(tmp_path)
    (tmp_path / CARD).write_text(json.dumps({"template": "gone", "template_hash": "0"}))
    with pytest.raises(CheckpointError, match="'gone'"):
        template_for(tmp_path, None)


OWN = "Which is better?\n{question}\nA: {first}\nB: {second}\nEnd with <answer>1</answer> or <answer>2</answer>."
READER = """
from rewardlab.types import Choice, Verdict, VerdictStatus

def read_verdict(text):
    return Verdict(Choice.FIRST, VerdictStatus.OK, "always")
"""


def own_checkpoint(folder: Path, verdict_format: str = "think_answer") -> tuple[Path, Path, Template]:
    """A checkpoint trained on words of one's own, the file of these words, and the template."""
    checkpoint, words = folder / "final", folder / "mine.txt"
    checkpoint.mkdir(parents=True)
    words.write_text(OWN)
    (checkpoint / "config.json").write_text("{}")
    template = load_template(f"{verdict_format}:{words}")
    write_card(checkpoint, template=template, stage="sft")
    return checkpoint, words, template


def test_words_of_ones_own_are_in_the_card(tmp_path: Path) -> None:
    """The file that they came from may be gone, or have another name; a file with other words is refused."""
    checkpoint, words, template = own_checkpoint(tmp_path)
    copy = tmp_path / "copy.txt"
    copy.write_text(OWN + "\n")
    for _ in ("the file is there", "the file is gone"):
        assert template_for(checkpoint, None) == template_for(checkpoint, template.name) == template
        assert template_for(checkpoint, f"think_answer:{copy}").hash == template.hash
        words.unlink(missing_ok=True)
        load_template.cache_clear()
    check_template(checkpoint, template)
    with pytest.raises(CheckpointError, match=template.hash):
        check_template(checkpoint, load_template("plain"))
    with pytest.raises(CheckpointError, match=template.hash):
        template_for(checkpoint, "r1_reward")
    with pytest.raises(CheckpointError, match=template.hash):
        template_for(checkpoint, f"double_brackets:{copy}")
    with pytest.raises(ConfigError, match="cannot be read"):
        template_for(checkpoint, f"think_answer:{tmp_path / 'elsewhere.txt'}")
    words.write_text(OWN + " Quickly.")
    assert template_for(checkpoint, None) == template
    with pytest.raises(CheckpointError, match="use the template it was trained with"):
        template_for(checkpoint, template.name)


def test_a_card_that_only_names_a_file(tmp_path: Path) -> None:
    """An older card: the file is read where it still is, or can be given; else the error says so. Damaged words are refused."""
    checkpoint, words, template = own_checkpoint(tmp_path)
    card = json.loads((checkpoint / CARD).read_text())
    del card["template_text"]
    (checkpoint / CARD).write_text(json.dumps(card))
    assert template_for(checkpoint, None) == template
    moved = words.rename(tmp_path / "moved.txt")
    load_template.cache_clear()
    assert template_for(checkpoint, f"think_answer:{moved}").hash == template.hash
    for requested in (None, template.name):
        with pytest.raises(CheckpointError, match=r"a custom template.*not exist here; give the file: template=FORMAT:FILE"):
            template_for(checkpoint, requested)
    for text, message in ((OWN.replace("{first}", ""), "cannot be used.*first"), (OWN + "!", "has hash")):
        (checkpoint / CARD).write_text(json.dumps(card | {"template_text": text}))
        with pytest.raises(CheckpointError, match=message):
            template_for(checkpoint, None)


def test_a_checkpoint_brings_no_code_along(tmp_path: Path) -> None:
    """A reader of one's own runs where the user names it, never because a card does; the words still come from the card."""
    reader = tmp_path / "mine.py"
    reader.write_text(READER)
    checkpoint, words, template = own_checkpoint(tmp_path, str(reader))
    words.unlink()
    load_template.cache_clear()
    with pytest.raises(CheckpointError, match=r"which checkpoints do not contain; name it: template=.*mine\.py"):
        template_for(checkpoint, None)
    assert template_for(checkpoint, template.name) == template


def test_the_card_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge on a hub is asked in the words it was trained on; one without a card takes any; other words are refused."""
    hub, trained = HubServer(), load_template("plain")
    card = json.dumps({"template": "plain", "template_hash": trained.hash}).encode()
    hub.repos |= {"models/me/judge": Repo(False, {CARD: card}), "models/me/base": Repo(False, {"config.json": b"{}"})}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with running(hub.app) as endpoint:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        reaches_hub.cache_clear()
        assert load_template_for("me/judge", None, from_hub=True) == trained
        assert load_template_for("me/base", None, from_hub=True).name == "r1_reward"
        with pytest.raises(CheckpointError, match="me/judge: was trained on template 'plain'"):
            load_template_for("me/judge", "r1_reward", from_hub=True)
        with pytest.raises(CheckpointError, match=r"me/typo: its rewardlab\.json, which names its prompt template"):
            load_template_for("me/typo", None, from_hub=True)
        hub.fail_at = "rewardlab"
        with pytest.raises(CheckpointError, match="cannot be read"):
            load_template_for("me/base", None, from_hub=True)
    reaches_hub.cache_clear()


def test_no_card_without_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no hub takes connections, the cache alone is looked into, without retries."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    reaches_hub.cache_clear()
    began = time.monotonic()
    assert load_template_for("me/base", None, from_hub=True).name == "r1_reward"
    assert time.monotonic() - began < 20  # retries take half a minute
    reaches_hub.cache_clear()


def test_what_a_number_depends_on() -> None:
    """Versions of what is installed, and the commit, or the version outside a checkout."""
    assert {"rewardlab", "torch", "transformers", "trl"} <= set(versions())
    assert commit() == f"v{rewardlab.__version__}" or len(commit().removesuffix("+dirty")) == 40


@pytest.mark.slow
def test_the_commit_of_an_installed_package(tmp_path: Path) -> None:
    """Copied into an environment that lies within a checkout of something else: the version, and what pip recorded of it; never
    the commit of the other."""
    for command in (
        ["init", "-q"],
        ["-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", "theirs"],
    ):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    site = tmp_path / "env"
    shutil.copytree(Path(rewardlab.__file__).parent, site / "rewardlab", ignore=shutil.ignore_patterns("__pycache__"))

    def said() -> str:
        code = "from rewardlab.models.checkpoints import commit; print(commit())"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=site
        )
        return done.stdout.strip()

    environment = {**os.environ, "PYTHONPATH": str(site)}
    assert said() == f"v{rewardlab.__version__}"
    (record := site / "rewardlab-9.9.dist-info").mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: rewardlab\nVersion: 9.9\n")
    (record / "direct_url.json").write_text(json.dumps({"url": "u", "vcs_info": {"vcs": "git", "commit_id": "c" * 40}}))
    assert said() == "c" * 40


@pytest.mark.parametrize("entry", [2, [1], "x", True, {"tau": 0}, {"tau": float("nan")}, {"tau": "2"}])
def test_a_temperature_that_is_none(entry: Any) -> None:
    assert card_temperature(None, "judge") == card_temperature({}, "judge") == 1.0
    assert card_temperature({"verdict_temperature": {"tau": 2}}, "judge") == 2.0
    with pytest.raises(CheckpointError, match="expected a positive number"):
        card_temperature({"verdict_temperature": entry}, "judge")


def test_another_template_than_a_checkpoints_is_named(tmp_path: Path) -> None:
    """Of a folder with a card; a hub id, and a folder that is not there, have none."""
    plain, verdict = load_template("plain"), load_template("verdict")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / CARD).write_text(json.dumps({"template": "plain", "template_hash": plain.hash}))
    assert template_change(tmp_path, plain) == ""
    assert template_change(tmp_path, verdict) == "plain"
    assert template_change("Qwen/Qwen2.5-VL-7B-Instruct", verdict) == ""
    assert template_change(tmp_path / "absent", verdict) == ""


def test_a_checkpoint_is_known_by_its_content(tmp_path: Path) -> None:
    """In any folder, at any time, in one file or two; another value, dtype, name or config is another checkpoint."""
    tensors = {"a": torch.arange(60_000.0), "b": torch.ones(3)}

    def stored(name: str, *files: dict[str, torch.Tensor], config: str = '{"hidden_size": 8}') -> str:
        folder = tmp_path / name
        folder.mkdir()
        for number, part in enumerate(files):
            save_file(part, folder / f"model-{number}.safetensors")
        (folder / "config.json").write_text(config)
        return weights_id(folder)

    known = stored("known", tensors)
    assert len(known) == 16
    os.utime(tmp_path / "known" / "model-0.safetensors", (1, 1))
    assert weights_id(tmp_path / "known") == known
    assert stored("files", {"b": tensors["b"]}, {"a": tensors["a"]}) == known
    assert stored("version", tensors, config='{"hidden_size": 8, "transformers_version": "5.17.0"}') == known
    last = tensors["a"].clone()
    last[-1] = 0
    others = [
        stored("value", {**tensors, "a": last}),
        stored("dtype", {**tensors, "b": tensors["b"].bfloat16()}),
        stored("name", {"a": tensors["a"], "c": tensors["b"]}),
        stored("config", tensors, config='{"hidden_size": 9}'),
    ]
    assert len({known, *others}) == 5
    assert weights_id(tmp_path / "none") == ""


@pytest.mark.parametrize(
    "header", ["[]", "{}", "{", '{"w": 1}', '{"w": {"dtype": "F32", "shape": [1], "data_offsets": [-9, 4]}}', "[" * 5000]
)
def test_a_file_that_is_no_safetensors_is_known_as_a_whole(header: str, tmp_path: Path) -> None:
    names = []
    for last in (b"a", b"b"):
        data = len(header).to_bytes(8, "little") + header.encode() + bytes(99) + last
        (tmp_path / "model.safetensors").write_bytes(data)
        names.append(weights_id(tmp_path))
    assert len(set(names)) == 2


def test_an_adapter_is_known_with_its_base(tmp_path: Path) -> None:
    """By the content of a local base, wherever that is; by the name of one of the hub."""

    def adapter_on(base: str) -> str:
        folder = tmp_path / f"adapter_{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        save_file({"lora": torch.ones(2)}, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({"r": 2, "base_model_name_or_path": base}))
        return weights_id(folder)

    for name, value in (("base", 1.0), ("copy", 1.0), ("other", 2.0)):
        (tmp_path / name).mkdir()
        save_file({"w": torch.full((2,), value)}, tmp_path / name / "model.safetensors")
    on = {name: adapter_on(str(tmp_path / name)) for name in ("base", "copy", "other")}
    assert on["base"] == on["copy"] != on["other"]
    assert adapter_on("team/model") == adapter_on("team/model") != adapter_on("team/other")
    own = tmp_path / f"adapter_{len(list(tmp_path.iterdir()))}"  # beside its base, as PEFT writes it there
    assert len(adapter_on(str(own))) == 16
