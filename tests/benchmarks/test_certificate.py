"""A certificate: every altered field shows, other weights are stale, another judge's evidence is refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rewardlab.benchmarks.certificate import certificate_page, make_certificate
from rewardlab.benchmarks.robustness.run import run_robustness
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import app
from rewardlab.cli.push import checkpoint_upload
from rewardlab.errors import CheckpointError, ConfigError, DataError
from rewardlab.judging.certificate import certificate_id, certificate_lines, misfit, read_certificate, staleness
from rewardlab.judging.guarantee import Guarantee
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.metrics.guarantee import CertifiedThreshold


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the packaged judge, copied to a folder of its own, on four pairs of three ratings each."""
    folder = tmp_path_factory.mktemp("certificate")
    shutil.copytree(DEMO_JUDGE, folder / "judge")
    pairs = [{"pair_id": f"p{n}", "question": f"Question {n}?", "responses": [f"a {n}", f"b {n}"]} for n in range(4)]
    ratings = [{"pair_id": f"p{n}", "rater": rater, "choice": (n + k) % 2} for n in range(4) for k, rater in enumerate("abc")]
    for name, lines in (("pairs", pairs), ("labels", ratings)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    more: dict[str, Any] = {"controls": (), "labels": folder / "labels.jsonl", "max_tokens": 8, "temperature": 0.0}
    more["allow_without_images"] = True
    run_bench(bench_settings("pairs", folder / "pairs.jsonl", f"hf:{folder / 'judge'}", **more), folder / "run")
    return folder / "run"


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value in a JSON value that is no object and no list."""
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))
    else:
        yield path


def test_any_altered_field_shows(run: Path, tmp_path: Path) -> None:
    content = make_certificate(run, command="c")
    path = tmp_path / "certificate.json"
    places = list(leaves(content))
    assert len(places) > 60
    for place in places:
        altered = json.loads(json.dumps(content))
        *outer, last = place
        inner = altered
        for key in outer:
            inner = inner[key]
        inner[last] = "other" if inner[last] != "other" else "another"
        path.write_text(json.dumps(altered))
        with pytest.raises(DataError, match=r"altered|not a certificate"):
            read_certificate(path)
    path.write_text(json.dumps(content).replace('{"id"', '{"accuracy": {"micro": 1.0}, "id"', 1))  # the last of two counts
    with pytest.raises(DataError, match="appears twice in one object"):
        read_certificate(path)
    path.write_text(json.dumps({**content, "extra": 1}))
    assert CliRunner().invoke(app, ["certificate", "check", str(path)]).exit_code == 1


def test_it_is_written_checked_and_becomes_stale(run: Path) -> None:
    """The commands, on the run's folder; then one byte of the weights is another."""
    runner = CliRunner()
    refused = runner.invoke(app, ["certificate", "write", str(run), "--out", str(run / "mine.html")])  # the page's own name
    assert isinstance(refused.exception, ConfigError)
    assert "expected a .json file" in str(refused.exception)
    done = runner.invoke(app, ["certificate", "write", str(run)])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "benchmark pairs: accuracy " in said
    assert "agreement with the label of all ratings (12 ratings, 4 pairs): one person 66.7 [" in said
    assert "no error of single verdicts is guaranteed" in said
    checked = runner.invoke(app, ["certificate", "check", str(run)])
    assert checked.exit_code == 0, checked.output
    assert "unaltered; the checkpoint has these weights" in checked.output
    content = read_certificate(run)
    assert content["id"] == certificate_id(content)
    assert content["agreement"]["num_raters"] == 3
    for elsewhere in ("http://127.0.0.1:9", "panel:hf:a,hf:b", "replay:votes.jsonl"):  # their weights cannot be compared
        judge = content["judge"]["config"] | {"judge": elsewhere}
        assert staleness({"judge": {"config": judge, "weights": "hashes of theirs"}}) == ""
    [weights] = (run.parent / "judge").glob("*.safetensors")
    kept, stat = weights.read_bytes(), weights.stat()
    try:
        weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        stale = runner.invoke(app, ["certificate", "check", str(run)])
        assert stale.exit_code == 1
        assert "stale: hf:" in stale.output
        with pytest.raises(ConfigError, match="its weights have changed since the run"):
            make_certificate(run)
        weights.unlink()
        gone = runner.invoke(app, ["certificate", "check", str(run)])
        assert gone.exit_code == 1
        assert "is not here to compare" in gone.output
    finally:
        weights.write_bytes(kept)
        os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_run_under_attack_and_the_page(run: Path, tmp_path: Path) -> None:
    """The certificate has what attacks did; its page shows the same figures, and a name is text there, not markup."""
    pairs = [json.loads(line) for line in (run.parent / "pairs.jsonl").read_text().splitlines()]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps({**pair, "preferred": 0}) + "\n" for pair in pairs))
    sampling: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "allow_without_images": True, "controls": ()}
    how = bench_settings("pairs", tmp_path / "pairs.jsonl", f"hf:{run.parent / 'judge'}", **sampling)
    run_robustness(how, tmp_path / "attacked", num_pairs=2)
    content = make_certificate(run, attacked=tmp_path / "attacked", command="<i>command</i>")
    assert content["robustness"]["num_pairs"] == 2
    content["robustness"]["held_out"]["lost_by_insertions"] = {"n": 4, "share": 0.25, "interval": [0.1, 0.5]}
    said = certificate_lines(content)[-1]
    assert said == "under attack: 2 pairs, 25.0 [10.0, 50.0] % of right judgments lost by inserted words"
    page = certificate_page(content)
    assert "2 pairs under" in page
    assert "with the label of all ratings" in page
    assert f"<dd>{content['judge']['config']['judge']}</dd>" in page
    assert content["id"] in page
    assert "<i>" not in page


def test_what_is_no_evidence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no run under attack"):
        make_certificate(run, attacked=run)
    threshold = CertifiedThreshold(0.05, 0.9, None, 4, 0, 0, 1.0)
    of_this = {name: value for name, value in make_certificate(run)["judge"].items() if name not in ("config", "config_hash")}
    try:
        for judge, said in (({"judge": "other"}, "another judge"), (of_this, "other pairs")):
            Guarantee(threshold, judge, 1, {"data_sha256": "ab"}).write(run / "guarantee.json")
            with pytest.raises(ConfigError, match=rf"guarantee\.json: is of {said}"):
                make_certificate(run)
    finally:
        (run / "guarantee.json").unlink()
    data, samples = tmp_path / "p.jsonl", tmp_path / "s.jsonl"
    data.write_text('{"question": "q", "responses": ["a", "b"], "preferred": 0}\n')
    samples.write_text('{"row": 0, "scores": [0.3, 0.7]}\n')
    run_bench(bench_settings("pairs", data, f"replay:{samples}", controls=()), tmp_path / "plain")
    with pytest.raises(DataError, match="has no agreement with people; run `rewardlab agree"):
        make_certificate(tmp_path / "plain")


def test_the_model_card_has_it(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "judge"
    shutil.copytree(run.parent / "judge", folder)
    content = make_certificate(run)
    assert not misfit(content, content["judge"])
    (folder / "certificate.json").write_text(json.dumps(content))
    body = checkpoint_upload(folder, "owner/name", [], {}).body
    assert f"certificate {content['id']}" in body
    other = {**content, "judge": {**content["judge"], "weights": "ab"}}
    assert misfit(content, other["judge"]).startswith("its weights is")
    (folder / "certificate.json").write_text(json.dumps({**other, "id": certificate_id(other)}))
    with pytest.raises(CheckpointError, match="is of the weights 'ab'"):
        checkpoint_upload(folder, "owner/name", [], {})


Alter = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "alter",
    [
        lambda content: content.pop("judge"),
        lambda content: content.pop("agreement"),
        lambda content: content["judge"].pop("config"),
        lambda content: content["pairs"].update(number="many"),
        lambda content: content["agreement"]["person"].update(interval=None),
        lambda content: content.update(guarantee=[1]),
    ],
)
def test_a_certificate_that_lacks_a_part_is_none(run: Path, tmp_path: Path, alter: Alter) -> None:
    """Even if its id is that of its content."""
    content = json.loads(json.dumps(make_certificate(run)))
    alter(content)
    (tmp_path / "certificate.json").write_text(json.dumps({**content, "id": certificate_id(content)}))
    with pytest.raises(DataError, match="not a certificate"):
        read_certificate(tmp_path)


def test_no_text_of_a_certificate_begins_a_line_or_commands_a_terminal(run: Path) -> None:
    content = make_certificate(run)
    content["pairs"] = {**content["pairs"], "benchmark": "pairs\ncertificate valid\x1b[31m"}
    lines = certificate_lines(content)
    assert all(line.isprintable() for line in lines)
    assert any("pairs certificate valid [31m" in line for line in lines)
