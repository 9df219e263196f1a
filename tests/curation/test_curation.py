"""From a source to a clean, balanced, split set; the page to look at it; and judgments that are not fit to teach from."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.config import FilterConfig
from rewardlab.curation import duplicates
from rewardlab.curation.build import Balance
from rewardlab.curation.duplicates import Duplicates, hold_out_groups, picture_groups
from rewardlab.curation.image_hashes import picture_of
from rewardlab.curation.overview import Overview
from rewardlab.curation.quality import examine_judgments, leaks_label, length_fences
from rewardlab.data.images import encode_png
from rewardlab.data.pairs import PairSet, read_pairs, validate_rows, write_jsonl, write_parquet, write_shards
from rewardlab.data.rows import with_frames
from rewardlab.data.texts import opening_of
from rewardlab.types import IMAGE_MARK, VIDEO_MARK, Choice, Order, PreferencePair, choice_of
from rewardlab.verdicts.parse import format_verdict


def jpeg(image: bytes, quality: int = 60, size: tuple[int, int] | None = None) -> bytes:
    buffer = io.BytesIO()
    seen = Image.open(io.BytesIO(image)).convert("RGB")
    (seen.resize(size) if size else seen).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def test_shards_stream_in_and_out(demo_pairs: Any, tmp_path: Path) -> None:
    """Three shards, media inside or by content beside them, JSON lines: each gives the same pairs; an image is stored once."""
    pairs = demo_pairs[0][:50]
    for embed in (True, False):
        files = list(write_shards(pairs, tmp_path / str(embed), rows_per_shard=20, embed=embed))
        assert [file.name for file in files] == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
        assert read_pairs(tmp_path / str(embed)) == pairs
    assert write_jsonl(pairs, tmp_path / "j" / "pairs.jsonl") == 50
    assert read_pairs(tmp_path / "j" / "pairs.jsonl") == pairs
    stored = [path for path in (tmp_path / "False" / "media").rglob("*") if path.is_file()]
    assert len(stored) == len({pair.images[0] for pair in pairs})
    listed = PairSet(tmp_path / "True", limit=7)
    assert list(listed) == list(listed) == pairs[:7]


def test_parts_marks_and_videos(tmp_path: Path) -> None:
    """Interleaved parts become marks and media; a video its frames, where it stands; all of it survives every form."""
    import av

    (tmp_path / "a.png").write_bytes(encode_png(Image.new("RGB", (20, 20), "red")))
    with av.open(str(tmp_path / "v.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 32
        for shade in range(0, 250, 25):
            frame = av.VideoFrame.from_image(Image.new("RGB", (32, 32), (shade, 0, 0)))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    parts = [
        {"type": "text", "text": "See "},
        {"type": "image", "image": "a.png"},
        {"type": "text", "text": " then "},
        {"type": "video", "video": "v.mp4"},
        {"type": "text", "text": "?"},
    ]
    row = {
        "question": parts,
        "responses": [[{"type": "image", "image": "a.png"}, {"type": "text", "text": "so"}], "no"],
        "preferred": 0,
    }
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n")
    (pair,) = read_pairs(tmp_path / "p.jsonl", frames=None)
    assert pair.question == f"See {IMAGE_MARK} then {VIDEO_MARK}?"
    assert (pair.responses, len(pair.images), len(pair.videos)) == ((f"{IMAGE_MARK}so", "no"), 1, 1)
    write_parquet([pair], tmp_path / "p.parquet")
    write_jsonl([pair], tmp_path / "again" / "p.jsonl")
    assert read_pairs(tmp_path / "p.parquet", frames=None) == read_pairs(tmp_path / "again" / "p.jsonl", frames=None) == [pair]
    shown = read_pairs(tmp_path / "p.parquet", frames=3)[0]
    assert shown.question == f"See {IMAGE_MARK} then {IMAGE_MARK * 3}?"
    assert (len(shown.images), shown.images[0], shown.videos) == (4, pair.images[0], ())
    plain = with_frames(replace(pair, question="What happens?"), 2)
    assert (plain.question, len(plain.images)) == ("What happens?", 3)


def test_bad_rows_are_listed_and_the_good_kept(demo_pairs: Any, tmp_path: Path) -> None:
    """The command: every bad row with its reason, exit status 1, the good ones in shards."""
    good = {"question": "Which?", "responses": ["a", "b"], "preferred": 0}
    rows = [good, good | {"preferred": 7}, good | {"responses": ["a", "a"]}, good | {"images": ["none.png"]}, good]
    rows += [
        good | {"judgment": 5},
        good | {"images": [{"bytes": "abcd"}]},
        good | {"images": ["a\0b"]},
        good | {"preferred": 0.5},
    ]
    rows += [good | {"pair_id": "row-0"}]
    lines = [json.dumps(row).encode() for row in rows] + [b"{broken", json.dumps(good).encode().replace(b"Which", b"Whi\xff")]
    (tmp_path / "p.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    done = CliRunner().invoke(app, ["data", "validate", str(tmp_path / "p.jsonl"), "--out", str(tmp_path / "good")])
    assert done.exit_code == 1
    lines = done.output.splitlines()
    said = [
        "expected 0 or 1",
        "are equal",
        "none.png",
        "'judgment' must be a string",
        "no base64",
        "cannot be read",
    ]
    said += ["expected 0 or 1", "appears twice", "not JSON", "not UTF-8"]
    assert [word in line for word, line in zip(said, lines, strict=False)] == [True] * len(said)
    assert lines[-1] == "2 good, 10 bad, 0 with images"
    assert len(read_pairs(tmp_path / "good")) == 2
    write_parquet(demo_pairs[0][:3], tmp_path / "fine.parquet")
    assert CliRunner().invoke(app, ["data", "validate", str(tmp_path / "fine.parquet")]).exit_code == 0
    assert all(isinstance(one, PreferencePair) for one in validate_rows(tmp_path / "fine.parquet"))


def test_balance_is_exact(demo_pairs: Any) -> None:
    """All preferred ones first: afterwards the four cells of each kind differ by one at most; the better text is the same."""
    pairs = [pair if pair.preferred == 0 else pair.swap() for pair in demo_pairs[0]]
    balance = Balance()
    placed = [balance.place(pair) for pair in pairs]
    for kind in {(pair.source, pair.category) for pair in placed}:
        own = [pair for pair in placed if (pair.source, pair.category) == kind]
        cells = Counter((pair.preferred, pair.order) for pair in own)
        counts = [cells[preferred, order] for preferred in (0, 1) for order in Order]
        assert max(counts) - min(counts) <= 1
    assert [p.responses[p.preferred or 0] for p in placed] == [p.responses[p.preferred or 0] for p in pairs]


def test_balance_keeps_judgments_true(demo_pairs: Any) -> None:
    """Exchanged responses exchange the order as well: what was shown first still is."""
    pairs = [replace(pair, judgment="<think>x</think><answer>1</answer>") for pair in demo_pairs[0][:60]]
    balance = Balance()
    placed = [balance.place(pair) for pair in pairs]
    assert [pair.shown(pair.order) for pair in placed] == [pair.shown(pair.order) for pair in pairs]
    assert abs(sum(pair.preferred or 0 for pair in placed) - 30) <= 8  # by kind and order, where both are free to be equal


LONG = "The picture shows a wide street with seven red cars and a tall grey tower behind an old stone bridge over the river"


def test_repetitions_are_found_and_nothing_else(demo_pairs: Any) -> None:
    """The same pair re-encoded, swapped, with a word changed; not the same words about another picture, nor other answers."""
    image, other = demo_pairs[0][0].images[0], demo_pairs[0][1].images[0]
    pair = PreferencePair("a", "What is in the picture, and where does the road lead to?", (LONG, LONG[::-1]), 0, (image,))
    same = [
        replace(pair, pair_id="b"),
        replace(pair.swap(), pair_id="c"),
        replace(pair, pair_id="d", images=(jpeg(image, 95),)),
        replace(pair, pair_id="e", responses=(LONG.replace("river", "brook"), LONG[::-1])),
    ]
    others = [
        replace(pair, pair_id="f", images=(other,)),
        replace(pair, pair_id="g", responses=("A short one", "Another short one")),
        replace(pair, pair_id="h", images=()),
        replace(pair, pair_id="i", question="Count the windows of the house on the left side of it, if you please"),
        # a question so long that most words of the pairs are the same
        replace(pair, pair_id="j", question=f"{LONG} {LONG[5:]} {LONG[9:]}", responses=("No.", "Yes.")),
        replace(pair, pair_id="k", question=f"{LONG} {LONG[5:]} {LONG[9:]}", responses=("It is.", "It is not.")),
    ]
    index = Duplicates(0.9)

    def found(one: PreferencePair) -> Any:
        return index.find_or_add(one, [picture_of(image) for image in one.images])

    assert found(pair) is None
    for one in same:
        assert found(one).pair_id == "a"
        assert not found(one).contradicts
    for one in others:
        assert found(one) is None
    assert found(replace(pair, pair_id="z", preferred=1)).contradicts
    assert found(replace(pair.swap(), pair_id="y", preferred=0)).contradicts


@pytest.mark.parametrize("of_answers", [True, False])
def test_pairs_of_other_videos_are_others(of_answers: bool) -> None:
    """One question, the same texts: the files tell them apart."""
    clips = [b"clip %d" % n for n in range(4)]
    made = [
        PreferencePair(name, "Which is better?", (VIDEO_MARK, VIDEO_MARK), 0, response_videos=((one,), (other,)))
        if of_answers
        else PreferencePair(name, "Is there a dog?", ("Yes.", "No."), 0, videos=(one, other))
        for name, one, other in (("a", *clips[:2]), ("b", *clips[2:]), ("c", *clips[:2]))
    ]
    index = Duplicates(0.9)
    assert [index.find_or_add(one, ()) for one in made[:2]] == [None, None]
    repeated = index.find_or_add(made[2], ())
    assert repeated is not None
    assert repeated.pair_id == "a"


def test_statistics_read_the_size_of_an_image_in_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read was decoded; to decode it once more would take most of the time."""
    image, overview = encode_png(Image.new("RGB", (300, 40))), Overview()
    monkeypatch.setattr("rewardlab.data.images.decode_image", lambda *_, **__: pytest.fail("decoded"))
    for n, one in enumerate((image, jpeg(image))):
        overview.add(PreferencePair(f"p{n}", "Which?", ("a", "b"), 0, images=(one,)))
    assert overview.numbers()["image_side"] == {"256": 2}


def _template(n: int) -> PreferencePair:
    question = f"What does the sign of house number {n // 3} in the long street say, and to whom does it say so?"
    return PreferencePair(f"p{n}", question, (f"{LONG} {n % 3 // 2}", f"{LONG[9:]} {n % 2}"), n % 2)


@pytest.mark.slow
def test_pairs_of_one_template_are_not_compared_with_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions that differ in a number, and pictures of one question: few are compared, and the same are found."""
    noise = np.random.default_rng(0).integers(0, 256, (150, 8, 8, 3), dtype=np.uint8)
    views = [picture_of(encode_png(Image.fromarray(pixels).resize((64, 64)))) for pixels in noise]
    asked = [(PreferencePair(f"a{n}", "Is there a cat?", ("Yes.", "No."), 0), [views[n * n % 150]]) for n in range(300)]
    compared = 0

    def repeats(*pairs: Any) -> Any:
        nonlocal compared
        compared += 1
        return one_by_one(*pairs)

    one_by_one = Duplicates._repeats
    monkeypatch.setattr(Duplicates, "_repeats", repeats)

    def found(few: int) -> tuple[list[str | None], int]:
        nonlocal compared
        monkeypatch.setattr(duplicates, "FEW", few)
        index, compared = Duplicates(0.9), 0
        made = [*((_template(n), []) for n in range(300)), *asked]
        return [earlier and earlier.pair_id for earlier in (index.find_or_add(*one) for one in made)], compared

    (many, num_many), (few, num_few) = found(10**9), found(0)
    assert many == few
    assert 100 < sum(map(bool, many)) < 500
    assert num_few < 0.1 * num_many


def test_a_split_leaks_no_picture(demo_pairs: Any) -> None:
    """Copies of a picture, re-encoded or at half the size, are on one side; the share is never exceeded."""
    originals = list({pair.images[0]: pair for pair in demo_pairs[0]}.values())[:60]
    copies = [replace(pair, pair_id=pair.pair_id + "c", images=(jpeg(pair.images[0], 90),)) for pair in originals[:30]]
    texts = [PreferencePair(f"t{n}", f"Question {n // 2}?", ("a", "b"), 0) for n in range(10)]
    groups = picture_groups([*originals, *copies, *texts], lambda n: None)
    together = sum(groups[n] == groups[60 + n] for n in range(30))
    assert together >= 27
    assert [groups[90 + n] == groups[91 + n] for n in range(0, 10, 2)] == [True] * 5
    chosen = hold_out_groups(groups, 0.2, seed=0)
    assert 0.15 * len(groups) <= sum(group in chosen for group in groups) <= 0.2 * len(groups)
    assert chosen != hold_out_groups(groups, 0.2, seed=1)


@pytest.mark.slow
def test_build_stats_split_balance_convert(demo_pairs: Any, tmp_path: Path) -> None:
    """A source with everything in it: what is kept, what is left out, by kind; then the other commands on the set."""
    pairs = demo_pairs[0][:40]
    rows = []
    for pair in pairs:
        better, worse = pair.responses[pair.preferred or 0], pair.responses[1 - (pair.preferred or 0)]
        rows.append({"q": pair.question, "good": better, "bad": worse, "image": f"{pair.pair_id}.png"})
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{pair.pair_id}.png").write_bytes(pair.images[0])
    rows += [
        rows[0],
        rows[1] | {"good": rows[1]["bad"], "bad": rows[1]["good"]},
        rows[2] | {"bad": rows[2]["good"]},
        {"q": "no answers"},
    ]
    (tmp_path / "in" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "map.yaml").write_text("name: mine\nquestion: q\nchosen: good\nrejected: bad\nimages: [image]\nlicence: mit\n")
    write_parquet(pairs[5:8], tmp_path / "bench.parquet")
    command = ["data", "build", str(tmp_path / "map.yaml"), "--from", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    assert "name the benchmarks" in str(CliRunner().invoke(app, command).exception)
    done = CliRunner().invoke(app, [*command, "--against", f"pairs={tmp_path / 'bench.parquet'}"])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["converted"], report["dropped"], report["bad"]) == (42, 1, 1)
    assert report["contaminated"] >= 3
    assert report["duplicate"] >= 2
    assert report["kept"] == 42 - report["contaminated"] - report["duplicate"]
    rejected = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
    assert Counter(one["kind"] for one in rejected) == {
        kind: report[kind] for kind in ("dropped", "bad", "duplicate", "contaminated")
    }
    assert "repeats a pair, with the other preferred" in {one["reason"] for one in rejected}
    built = read_pairs(tmp_path / "out")
    assert len(built) == report["kept"]
    assert {pair.licence for pair in built} == {"mit"}
    again = CliRunner().invoke(app, [*command, "--against", "none"])
    assert "a finished set" in str(again.exception)
    for name, more in (("stats", []), ("balance", []), ("split", ["--share", "0.2"]), ("convert", [])):
        one = CliRunner().invoke(app, ["data", name, str(tmp_path / "out"), "--out", str(tmp_path / name), *more])
        assert one.exit_code == 0, one.output
    none = CliRunner().invoke(
        app, ["data", "split", str(tmp_path / "out"), "--share", "0.001", "--out", str(tmp_path / "none")]
    )
    assert "give a larger one" in str(none.exception)
    absent = CliRunner().invoke(
        app, [*command[:3], "--from", str(tmp_path / "x"), "--against", "none", "--out", str(tmp_path / "y")]
    )
    assert "no such file or folder" in str(absent.exception)
    assert not (tmp_path / "y").exists()
    twice = CliRunner().invoke(app, ["data", "split", str(tmp_path / "out"), "--out", str(tmp_path / "split")])
    assert "already has shards" in str(twice.exception)
    parts = [read_pairs(tmp_path / "split" / part) for part in ("train", "test")]
    assert not {pair.images[0] for pair in parts[0]} & {pair.images[0] for pair in parts[1]}
    assert sum(map(len, parts)) == len(built)
    assert read_pairs(tmp_path / "convert") == built
    numbers = json.loads((tmp_path / "stats" / "stats.json").read_text())
    assert numbers["num_pairs"] == len(built)
    table = CliRunner().invoke(app, ["data", "stats", str(tmp_path / "out"), "--out", str(tmp_path / "stats")]).stdout
    rows = dict(re.split(r" {2,}", line, maxsplit=1) for line in table.splitlines() if "  " in line)
    assert "{" not in table
    assert (rows["pairs"], rows["different images"]) == (str(len(built)), str(numbers["num_distinct_images"]))
    assert f"{next(iter(numbers['source']))} {len(built)} (100 %)" in rows["source"]
    share, low, high = numbers["longer_wins"]["all"]
    longer = f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}] % (95 % interval)"
    assert rows["the longer response is preferred"] == longer
    as_json = CliRunner().invoke(app, ["data", "stats", str(tmp_path / "out"), "--out", str(tmp_path / "stats"), "--json"])
    assert json.loads(as_json.stdout) == numbers


def build_own(folder: Path, *ids: str) -> Any:
    """`data build` of rows with these ids into ``folder / "set"``, by a mapping."""
    rows = [{"id": name, "q": f"What is {n}?", "good": f"it is {n}", "bad": f"no, {n}"} for n, name in enumerate(ids)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "m.yaml").write_text("name: m\nid: id\nquestion: q\nchosen: good\nrejected: bad\n")
    options = ("--from", folder / "rows.jsonl", "--against", "none", "--out", folder / "set", "similarity=0")
    return CliRunner().invoke(app, list(map(str, ("data", "build", folder / "m.yaml", *options))))


def test_media_of_a_source_are_elsewhere(demo_pairs: Any, tmp_path: Path) -> None:
    """As of a `datasets` folder whose rows name files: they need not be copied beside it."""
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(demo_pairs[0][0].images[0])
    row = {"q": "What is it?", "good": "a shape", "bad": "a song", "image": "a.png"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "m.yaml").write_text("name: m\nquestion: q\nchosen: good\nrejected: bad\nimages: [image]\n")
    command = ["data", "build", str(tmp_path / "m.yaml"), "--from", str(tmp_path / "rows.jsonl"), "--against", "none"]
    absent = CliRunner().invoke(app, [*command, "--images", str(tmp_path / "x"), "--out", str(tmp_path / "none")])
    assert "no such folder" in str(absent.exception)
    assert not (tmp_path / "none").exists()
    done = CliRunner().invoke(app, [*command, "--images", str(tmp_path / "pictures"), "--out", str(tmp_path / "set")])
    assert done.exit_code == 0, done.output
    assert read_pairs(tmp_path / "set")[0].images == (demo_pairs[0][0].images[0],)


def test_shards_of_others_survive_a_build(tmp_path: Path) -> None:
    """Refused the first time and the second; what a build that was cut off left is replaced."""
    (tmp_path / "set").mkdir()
    foreign = tmp_path / "set" / "part-00007.parquet"
    foreign.write_bytes(b"somebody's")
    for _ in range(2):
        done = build_own(tmp_path, "a")
        assert (done.exit_code, "already has shards" in str(done.exception)) == (1, True), done.output
        assert [path.name for path in (tmp_path / "set").iterdir() if path.name != ".lock"] == [foreign.name]
    (tmp_path / "set" / ".unfinished").touch()
    assert build_own(tmp_path, "a").exit_code == 0
    assert [path.name for path in (tmp_path / "set").glob("*.parquet")] == ["part-00000.parquet"]


def test_no_id_comes_twice(tmp_path: Path) -> None:
    """A number is passed over where somebody's own id has it."""
    done = build_own(tmp_path, "a", "a#2", "a", "a", "a#3")
    assert done.exit_code == 0, done.output
    ids = [pair.pair_id for pair in read_pairs(tmp_path / "set")]
    assert ids == ["a", "a#2", "a#3", "a#4", "a#3#2"]


def test_the_numbers_of_a_set() -> None:
    """Counted by hand: four labelled pairs, the longer preferred in one of three that differ."""
    pairs = [
        PreferencePair("a", "one two", ("long answer", "short"), 1, source="s"),
        PreferencePair("b", "one two", ("short", "long answer"), 1, source="s"),
        PreferencePair("c", "one two", ("long answer", "short"), 1, source="t"),
        PreferencePair("d", "one two", ("equal", "alike"), 0, source="t"),
    ]
    overview = Overview()
    for pair in pairs:
        overview.add(pair)
    numbers = overview.numbers()
    assert numbers["longer_wins"]["all"][0] == pytest.approx(1 / 3)
    assert numbers["longer_wins"]["source s"][0] == 0.5
    assert numbers["preferred"] == {"0": 1, "1": 3}
    assert numbers["question_words"] == {"0": 4}
    assert numbers["num_distinct_images"] == 0


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        ("As the label says, response 1 is better.", True),
        ("According to the ground truth, the second wins.", True),
        ("The human annotators prefer the first.", True),
        ("I was told that response 2 is better.", True),
        ("Since the preferred answer is given as 1, it wins.", True),
        ("The label on the bottle reads WINE, as response 1 says.", False),
        ("According to the bottle's label it is wine.", False),
        ("Response 1 is labelled correctly; the truth is that there are two.", False),
        ("The reference to the river is wrong.", False),
    ],
)
def test_leaked_labels(text: str, leaks: bool) -> None:
    assert leaks_label(text) == leaks


def judged(n: int, text: str, **changes: Any) -> PreferencePair:
    return PreferencePair(f"p{n}", "Which?", ("a", "b"), 0, judgment=text, **changes)


def test_unfit_judgments() -> None:
    """Worked by hand: one leaks, one is far too long, one contradicts itself, and of thirty with one opening two may stay."""

    class Judge:
        async def score(self, question: str, reasoning: str, verdict: Choice) -> int:
            return -1 if "but the other" in reasoning else 0 if "unclear" in reasoning else 1

        async def check(self) -> None:
            pass

        async def aclose(self) -> None:
            pass

    def text(n: int, more: str = "") -> str:
        return format_verdict(Choice.FIRST, f"{n} looked at the {'abcdefghij'[n % 10]}{n} of picture {n} and more {more}")

    pairs = [judged(n, text(n)) for n in range(60)]
    pairs += [
        judged(100 + n, format_verdict(Choice.FIRST, f"Let us compare the two answers with great care {n}")) for n in range(30)
    ]
    pairs[3] = judged(3, text(3, "as the label says"))
    pairs[4] = judged(4, text(4, "word " * 500))
    pairs[5] = judged(5, text(5, "but the other is right"))
    pairs[6] = judged(6, text(6, "unclear"))
    pairs.append(PreferencePair("none", "Which?", ("a", "b"), 0))
    found = examine_judgments(pairs, FilterConfig(most_alike=0.02), Judge())
    assert {place: reason for place, reason in found.reasons.items() if reason != "collapse"} == {
        3: "leaked label",
        4: "length",
        5: "contradiction",
    }
    assert [place for place, reason in found.reasons.items() if reason == "collapse"] == list(range(62, 90))
    assert (found.unclear, found.openings[0][1]) == (1, 30)
    assert not examine_judgments(pairs[-1:], FilterConfig()).reasons
    assert opening_of("<think>There are 3 cats</think>") == opening_of("<think>There are 14 cats</think>")
    low, high = length_fences([100] * 50 + [120] * 50, 3.0)
    assert low < 100 < 120 < high < 1000


@pytest.mark.slow
def test_filter_asks_a_real_checker(demo_pairs: Any, demo_server: Any, tmp_path: Path) -> None:
    """The demonstration's own consistency checker behind its API: shallow judgments that praise the loser are taken out."""
    pairs = [
        replace(pair, judgment=format_verdict(choice_of(pair.preferred or 0, pair.order), text), order=pair.order)
        for pair in demo_pairs[0][:6]
        for text in (
            f"Response {1 + (choice_of(pair.preferred or 0, pair.order) is Choice.SECOND)} sounds right {pair.pair_id}.",
        )
    ]
    wrong = 1 + (choice_of(pairs[0].preferred or 0, pairs[0].order) is Choice.FIRST)
    pairs[0] = replace(
        pairs[0], judgment=format_verdict(choice_of(pairs[0].preferred or 0, pairs[0].order), f"Response {wrong} sounds right.")
    )
    write_parquet(pairs, tmp_path / "p.parquet")
    command = ["data", "filter", str(tmp_path / "p.parquet"), "--out", str(tmp_path / "out"), "most_alike=1"]
    command += ["length_fence=99"]
    refused = CliRunner().invoke(app, [*command, f"consistency={demo_server()}"])
    assert "consistency: String should match" in str(refused.exception)
    done = CliRunner().invoke(app, [*command, f"consistency=demo-checker@{demo_server()}"])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["reasons"] == {"contradiction": 1}
    assert [report[f"num_{name}"] for name in ("pairs", "pairs_kept", "judgments", "judgments_kept")] == [6, 5, 6, 5]
    assert json.loads((tmp_path / "out" / "filtered.jsonl").read_text())["pair_id"] == pairs[0].pair_id
    assert read_pairs(tmp_path / "out" / "kept.parquet") == pairs[1:]


def test_filter_counts_pairs_and_judgments_apart(demo_pairs: Any, tmp_path: Path) -> None:
    """Of 47 judgments that begin alike one is left, beside 13 pairs that never had one; SFT says so, and does not begin."""
    taught = [
        replace(pair, judgment=f"The same eight words begin each of these. {n}") for n, pair in enumerate(demo_pairs[0][:47])
    ]
    write_parquet([*taught, *demo_pairs[0][47:60]], tmp_path / "p.parquet")
    done = CliRunner().invoke(app, ["data", "filter", str(tmp_path / "p.parquet"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.output.splitlines()[0])
    assert printed == {
        "num_pairs": 60,
        "num_pairs_kept": 14,
        "num_judgments": 47,
        "num_judgments_kept": 1,
        "reasons": {"collapse": 46},
        "unclear": 0,
    }
