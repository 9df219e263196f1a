"""What `rewardlab push` leaves in a hub's repository, sent over HTTP and read back byte for byte; what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import parse_eval_result_entries

from rewardlab.benchmarks.registry import find_benchmark
from rewardlab.benchmarks.robustness.run import run_robustness
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import main
from rewardlab.cli.push import checkpoint_upload
from rewardlab.data.images import encode_png
from rewardlab.data.pairs import read_pairs, write_jsonl, write_parquet, write_shards
from rewardlab.errors import ConfigError
from rewardlab.models.model_card import write_model_card
from rewardlab.reporting.cards import BEGIN, END, author_text, merge_card, render_card
from rewardlab.types import PreferencePair
from tests.support.hub_server import READ_ONLY, TOKEN, HubServer
from tests.support.servers import running
from tests.support.shell import ROOT, TERMINAL, run_main

Push = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub() -> HubServer:
    return HubServer()


@pytest.fixture
def push(hub: HubServer, tmp_path: Path) -> Iterator[Push]:
    """``rewardlab push ...`` in a process of its own, against the hub of this test."""
    with running(hub.app) as endpoint:
        env = {**os.environ, **TERMINAL, "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
        env |= {"HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": TOKEN}

        def run(*arguments: object, **changes: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "rewardlab.cli", "push", *map(str, arguments)]
            return subprocess.run(command, capture_output=True, text=True, env={**env, **changes}, cwd=ROOT)

        yield run


def front_matter(readme: bytes) -> dict[str, Any]:
    return dict(yaml.safe_load(readme.decode().split("---\n")[1]))


def pairs(number: int = 5) -> list[PreferencePair]:
    from PIL import Image

    image = encode_png(Image.new("RGB", (30, 20), (9, 40, 200)))
    return [PreferencePair(f"mine-{n}", f"Which {n}?", ("a", f"b{n}"), n % 2, (image,)) for n in range(number)]


@pytest.fixture
def fake_checkpoint(tmp_path: Path) -> Path:
    """A folder that looks like an adapter: the files of a trainer among it."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct", "r": 8}))
    (folder / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 40)
    (folder / "training_args.bin").write_bytes(b"pickle")
    (folder / "rewardlab.json").write_text(json.dumps({"stage": "sft", "template": "plain", "template_hash": "ab12"}))
    (folder / "README.md").write_text("# Model Card for Model ID\n[More Information Needed]\n")
    return folder


def test_a_checkpoint_arrives_whole_and_judges(push: Push, hub: HubServer, finished_run: Path, tmp_path: Path) -> None:
    """A trained judge with a report of a bench run: same bytes, a card with the report's figures, loads and votes again."""
    final, run = finished_run / "rl" / "final", tmp_path / "bench"
    data = finished_run / "demo" / "test.parquet"
    report, _ = run_bench(bench_settings("pairs", data, f"hf:{final}", limit=6, max_tokens=8, controls=()), run)
    assert author_text((final / "README.md").read_text()) == ""
    done = push(final, "me/judge", "license=apache-2.0", "datasets=me/pairs", "--report", run)
    assert done.returncode == 0, done.stderr
    stored = hub.repos["models/me/judge"]
    sent = {path.name: path.read_bytes() for path in final.iterdir() if path.name not in ("README.md", "training_args.bin")}
    assert {name: content for name, content in stored.files.items() if name != "README.md"} == sent
    assert stored.commits == ["rewardlab push"]
    assert "training_args.bin" in done.stdout
    card = stored.files["README.md"].decode()
    front = front_matter(card.encode())
    assert (front["license"], front["datasets"], front["pipeline_tag"]) == ("apache-2.0", ["me/pairs"], "image-text-to-text")
    metrics = {one["type"]: one["value"] for one in front["model-index"][0]["results"][0]["metrics"]}
    assert metrics["accuracy"] == round(report.scores.accuracy.micro, 4)
    recorded = json.loads((final / "rewardlab.json").read_text())
    for fact in (recorded["template_hash"], recorded["commit"], "swap consistency", "invalid rate", "micro average"):
        assert fact in card
    with running(hub.app) as endpoint:
        code = (
            f"from huggingface_hub import snapshot_download as d; print(d('me/judge', local_dir={str(tmp_path / 'again')!r}))"
        )
        env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        subprocess.run([sys.executable, "-c", code], check=True, env=env, capture_output=True)
    again, _ = run_bench(
        bench_settings("pairs", data, f"hf:{tmp_path / 'again'}", limit=6, max_tokens=8, controls=()), tmp_path / "second"
    )
    assert again.scores.accuracy == report.scores.accuracy


def test_pairs_arrive_whole(push: Push, hub: HubServer, tmp_path: Path) -> None:
    """Shards as they are; JSON lines as Parquet with media inside; fewer shards later leave no old one among them."""
    list(write_shards(pairs(), tmp_path / "set", rows_per_shard=2))
    assert push(tmp_path / "set", "me/pairs", "license=cc-by-4.0", "--private").returncode == 0
    stored = hub.repos["datasets/me/pairs"]
    shards = {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()}
    assert {name: content for name, content in stored.files.items() if name != "README.md"} == shards
    assert stored.private
    assert front_matter(stored.files["README.md"])["size_categories"] == ["n<1K"]
    write_jsonl(pairs(3), tmp_path / "lines" / "pairs.jsonl")
    done = push(tmp_path / "lines" / "pairs.jsonl", "me/pairs")
    assert (done.returncode, sorted(stored.files)) == (0, ["README.md", "part-00000.parquet"]), done.stderr
    (tmp_path / "back.parquet").write_bytes(stored.files["part-00000.parquet"])
    assert read_pairs(tmp_path / "back.parquet") == pairs(3)


def test_only_what_pushes_leave_is_deleted(push: Push, hub: HubServer, fake_checkpoint: Path, tmp_path: Path) -> None:
    """A person's files stay, in folders and beside the shards; what goes is named, by a dry run too. One commit each time."""
    list(write_shards(pairs(), tmp_path / "set", rows_per_shard=2))
    assert push(tmp_path / "set", "me/pairs").returncode == 0
    stored = hub.repos["datasets/me/pairs"]
    persons = {"raw/part-00000.parquet": b"1", "prompts.parquet": b"2", "part-two.parquet": b"3"}
    stored.files |= persons
    list(write_shards(pairs(), tmp_path / "fewer", rows_per_shard=4))
    shown = push(tmp_path / "fewer", "me/pairs", "--dry-run")
    assert [line.split()[1] for line in shown.stdout.splitlines() if "  deleted  " in line] == ["part-00002.parquet"]
    done = push(tmp_path / "fewer", "me/pairs")
    assert "deleted  part-00002.parquet" in done.stdout
    assert sorted(stored.files) == sorted(["README.md", "part-00000.parquet", "part-00001.parquet", *persons])
    assert stored.commits == ["rewardlab push"] * 2
    assert push(fake_checkpoint, "me/adapter").returncode == 0
    weights = hub.repos["models/me/adapter"]
    weights.files |= {"onnx/old.safetensors": b"4", "model-00001-of-00002.safetensors": b"5"}
    assert "deleted  model-00001-of-00002.safetensors" in push(fake_checkpoint, "me/adapter").stdout
    assert "onnx/old.safetensors" in weights.files


@pytest.mark.parametrize("form", ["shards in folders", "lines in folders", "flat files"])
def test_splits_load_as_splits(form: str, push: Push, hub: HubServer, tmp_path: Path) -> None:
    """`datasets` reads each split of what was pushed, from a download of the repository, and a person's file in none."""
    from datasets import load_dataset

    for name, number in (("train", 4), ("test", 2)):
        if form == "shards in folders":
            list(write_shards(pairs(number), tmp_path / "set" / name, rows_per_shard=3))
        elif form == "lines in folders":
            write_jsonl(pairs(number), tmp_path / "set" / name / "pairs.jsonl")
        else:
            write_parquet(pairs(number), tmp_path / "set" / f"{name}.parquet")
    done = push(tmp_path / "set", "me/pairs")
    assert done.returncode == 0, done.stderr
    for name, content in (hub.repos["datasets/me/pairs"].files | {"raw.parquet": b"no set"}).items():
        (tmp_path / "down" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "down" / name).write_bytes(content)
    loaded = load_dataset(str(tmp_path / "down"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(split) for name, split in loaded.items()} == {"train": 4, "test": 2}
    assert loaded["test"][1]["pair_id"] == "mine-1"
    assert 'split="test"' in hub.repos["datasets/me/pairs"].files["README.md"].decode()


def test_a_persons_readme_stays(push: Push, hub: HubServer, fake_checkpoint: Path) -> None:
    """A library's empty card is replaced; a text written on the hub is kept, said, and replaced only on demand; two different
    texts are not chosen between."""

    def card() -> bytes:
        return hub.repos["models/me/adapter"].files["README.md"]

    assert push(fake_checkpoint, "me/adapter").returncode == 0
    assert "More Information" not in card().decode()
    assert front_matter(card())["base_model_relation"] == "adapter"
    edited = card().decode().replace(BEGIN, f"My own words.\n{BEGIN}").replace("pipeline_tag: ", "pipeline_tag: my-")
    hub.repos["models/me/adapter"].files["README.md"] = edited.encode()
    again = push(fake_checkpoint, "me/adapter", "license=mit")
    assert "text by others is kept" in again.stdout
    assert "My own words." in card().decode()
    assert front_matter(card())["pipeline_tag"] == "my-image-text-to-text"
    assert front_matter(card())["license"] == "mit"
    (fake_checkpoint / "README.md").write_text("Other words.")
    refused = push(fake_checkpoint, "me/adapter")
    assert (refused.returncode, "differ; copy one over the other" in refused.stderr) == (2, True)
    assert push(fake_checkpoint, "me/adapter", "--replace-card").returncode == 0
    assert "words" not in author_text(card().decode())


@pytest.mark.parametrize(
    ("changes", "fail_at", "sentence"),
    [
        ({"HF_TOKEN": "hf_wrong"}, "", "hf auth login"),
        ({"HF_TOKEN": READ_ONLY}, "", "may not write there"),
        ({}, "commit", "the repository is unchanged"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "", "HF_ENDPOINT"),
    ],
)
def test_failures_are_one_sentence(
    changes: dict[str, str], fail_at: str, sentence: str, push: Push, hub: HubServer, fake_checkpoint: Path
) -> None:
    """A wrong token, one that may only read, a refused commit, no server: exit status 2, and no card claims anything."""
    hub.fail_at = fail_at
    done = push(fake_checkpoint, "me/adapter", **changes)
    assert (done.returncode, sentence in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
    assert not any("README.md" in repo.files for repo in hub.repos.values())


def test_dry_run_and_refusals(push: Push, hub: HubServer, fake_checkpoint: Path) -> None:
    """Nothing is sent; an adapter of a folder that nobody else has is refused, until its base is named."""
    shown = push(fake_checkpoint, "me/adapter", "--dry-run", HF_ENDPOINT="http://127.0.0.1:9")
    assert (shown.returncode, hub.repos) == (0, {})
    assert "10,240  adapter_model.safetensors" in shown.stdout
    assert "license" in shown.stdout
    (fake_checkpoint / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "runs/sft/final", "r": 8}))
    refused = push(fake_checkpoint, "me/adapter")
    assert (refused.returncode, "base_model=" in refused.stderr) == (2, True)
    assert push(fake_checkpoint, "me/adapter", "base_model=Qwen/Qwen2.5-VL-7B-Instruct").returncode == 0
    config = json.loads(hub.repos["models/me/adapter"].files["adapter_config.json"])
    assert config == {"base_model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct", "r": 8}
    (fake_checkpoint / "adapter_model.safetensors").unlink()
    assert "holds no *.safetensors" in push(fake_checkpoint, "me/adapter").stderr
    assert "expected OWNER/NAME" in push(fake_checkpoint, "adapter").stderr
    assert "did you mean license?" in push(fake_checkpoint, "me/adapter", "licence=mit").stderr


def test_cards_keep_what_others_wrote() -> None:
    """Each value and text that is somebody's; our section, wherever it stands, is the new one."""
    ours = render_card({"license": "mit", "tags": []}, "old")
    assert ours == f"---\nlicense: mit\n---\n{BEGIN}\nold\n{END}\n"
    mixed = f"---\nlicense: other\nmodel-index: old\n---\n# Mine\n\n{BEGIN}\nold\n{END}\nBelow.\n"
    merged = merge_card(mixed, {"license": "mit", "tags": ["x"]}, "new")
    assert merged == f"---\nlicense: other\ntags:\n- x\n---\n# Mine\n\n{BEGIN}\nnew\n{END}\nBelow.\n"
    assert merge_card(merged, {"license": "mit", "tags": ["x"]}, "new") == merged
    assert "license: mit" in merge_card(mixed, {"license": "mit"}, "new", given=["license"])
    assert merge_card("Only text.", {}, "new") == f"Only text.\n\n{BEGIN}\nnew\n{END}\n"


def test_a_trained_folder_has_a_card(fake_checkpoint: Path) -> None:
    """In place of a library's empty one: base, template hash, and that nothing was measured."""
    write_model_card(fake_checkpoint)
    text = (fake_checkpoint / "README.md").read_text()
    assert front_matter(text.encode())["base_model"] == "Qwen/Qwen2.5-VL-7B-Instruct"
    assert "ab12" in text
    assert "Not measured yet" in text


@pytest.fixture
def measured(demo_pairs: Any, tmp_path: Path) -> Path:
    """A folder with a run of a benchmark, ``plain``, and one under attack, ``attacked``."""
    write_parquet(demo_pairs[0][:12], tmp_path / "pairs.parquet")
    how = bench_settings("pairs", tmp_path / "pairs.parquet", "baseline:shortest", votes=1, orders="both", controls=())
    run_bench(how, tmp_path / "plain")
    run_robustness(how, tmp_path / "attacked", num_pairs=12)
    return tmp_path


@pytest.mark.parametrize("name", ["plain", "attacked"])
def test_a_failed_run_is_on_no_card(name: str, measured: Path, fake_checkpoint: Path) -> None:
    """One sentence with the run's own and the cure, exit status 2, and nothing of the card is printed."""
    path, failure = measured / name / "report.json", "28 of 80 votes failed at the endpoint"
    path.write_text(json.dumps({**json.loads(path.read_text()), "failure": failure}))
    refused = run_main(main, "push", fake_checkpoint, "me/judge", "--report", path.parent, "--dry-run")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"a card cannot report a failed run: {failure}; " in " ".join(refused.stderr.split())
    assert "run the same benchmark command again" in " ".join(refused.stderr.split())
    other = measured / ("plain" if name == "attacked" else "attacked")
    with pytest.raises(ConfigError, match="28 of 80 votes failed"):
        checkpoint_upload(fake_checkpoint, "me/judge", [other, path.parent], {})


def test_attacked_pairs_are_no_result_of_the_hub(measured: Path, fake_checkpoint: Path) -> None:
    """Alone they leave no model-index, beside a benchmark none of theirs; their accuracies say what they are of, above the
    sentence that speaks of the accuracy on top."""
    plain, attacked = measured / "plain", measured / "attacked"
    given = {"license": "mit"}
    alone = checkpoint_upload(fake_checkpoint, "me/judge", [attacked], given)
    assert "model-index" not in alone.front
    assert [note for note in alone.notes if "model-index" in note and "`rewardlab bench run`" in note]
    assert "| accuracy on attacked pairs, 95 % interval |" in alone.body
    assert alone.body.index("| micro average |") < alone.body.index("The accuracy of this run is of attacked pairs")
    both = checkpoint_upload(fake_checkpoint, "me/judge", [attacked, plain], given)
    [model] = both.front["model-index"]
    assert [result["dataset"]["name"] for result in model["results"]] == ["pairs"]
    [note] = both.notes
    assert note == "pairs: no .eval_results for leaderboards of the Hub, for its data is no dataset of the Hub"
    assert both.changed == {}
    assert re.findall("accuracy.*(?=, 95 % interval [|])", both.body) == ["accuracy on attacked pairs", "accuracy"]


def test_results_of_the_hub(measured: Path, fake_checkpoint: Path) -> None:
    """The library reads each figure of a whole benchmark back, an accuracy in percent with its interval, order policy and
    command; a run on a part of it is no result, and says so."""
    path = measured / "plain" / "report.json"
    values = json.loads(path.read_text())
    cell = next(iter(values["groups"].values()))
    groups = {name: {**cell, "n": n} for name, n in find_benchmark("vl_rewardbench").sizes.items()}
    whole = {**values, "benchmark": "vl_rewardbench", "num_pairs": 1250, "groups": groups, "command": "rewardlab bench run x"}
    path.write_text(json.dumps(whole))
    os.utime(measured / "plain" / "votes.jsonl", (1_790_000_000, 1_790_000_000))
    upload = checkpoint_upload(fake_checkpoint, "me/judge", [measured / "plain"], {"license": "mit"})
    read = {name: yaml.safe_load(content) for name, content in upload.changed.items()}
    names = ["vl_rewardbench", *(f"vl_rewardbench-{name}" for name in groups)]
    assert list(read) == [f".eval_results/rewardlab-{name}.yaml" for name in names]
    entries = [entry for content in read.values() for entry in parse_eval_result_entries(content)]
    assert [entry.task_id for entry in entries] == ["default", *groups]
    first, low, high = entries[0], *(f"{100 * end:.1f}" for end in values["interval"])
    assert (first.dataset_id, first.value) == ("MMInstruction/VL-RewardBench", round(100 * values["accuracy"]["micro"], 2))
    assert (first.date, first.source_url) == ("2026-09-21T14:13:20+00:00", "https://huggingface.co/me/judge")
    assert f"[{low}, {high}]; orders: both; votes of each: 1; invalid 0.00 %" in first.notes
    assert first.notes.endswith("rewardlab bench run x")
    old = [".eval_results/rewardlab-other.yaml", ".eval_results/mine.yaml", *upload.changed]
    assert upload.leftovers(old) == old[:1]
    path.write_text(json.dumps({**whole, "num_pairs": 1249}))
    part = checkpoint_upload(fake_checkpoint, "me/judge", [measured / "plain"], {"license": "mit"})
    assert (part.changed, "1,249 pairs are not the whole benchmark" in " ".join(part.notes)) == ({}, True)
