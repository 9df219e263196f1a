"""A policy that learns under a judge, and a judge that learns the policy's wrong answers that it pays, in turns.

A round: the policy learns; its wrong answers with a high reward become hard negatives; the judge learns from them, mixed with
pairs of the set; unless it is worse on held-out pairs it replaces the old one, in a running server too. The next round starts
from the latest checkpoint of the policy that is as good as the best. The stages are command lines
(``configs/harden/loop.yaml``), run in the folder of the loop with paths that start there: it may be moved.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.comparison import against, read_run
from rewardlab.config import PolicyConfig, RLConfig, SFTConfig, TrainConfig, find_config, load_config, parse_overrides
from rewardlab.config.pipeline import HardenConfig
from rewardlab.data.files import read_complete_lines, write_atomic
from rewardlab.data.pair_table import fingerprint_of, pair_facts
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError, RewardlabError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.spec import JudgeSpec, local_checkpoint
from rewardlab.metrics.intervals import wilson_interval
from rewardlab.models.checkpoints import check_folder, load_template_for
from rewardlab.pipelines.runner import Pipeline, fill_stages, launcher_words
from rewardlab.processes import num_processes
from rewardlab.prompts import load_template
from rewardlab.reporting.pages import page_environment
from rewardlab.reporting.plots import INK, LEAF, WARM, Series, figure_uri, plot_series
from rewardlab.reporting.progress import log_line
from rewardlab.samplers.base import HF, OPENAI
from rewardlab.training.run.folder import FINAL, METRICS
from rewardlab.training.run.inputs import pairs_of

ROUND, ROUNDS, PAGE = "round.json", "rounds.jsonl", "index.html"
NEGATIVES, POLICY, JUDGMENTS = "negatives.parquet", "policy.json", "distilled.parquet"  # as the stages name them
FREE = {"rounds", "policy_keys", "sft_keys", "judge_keys", "launcher", "stages"}  # settings that may change in a run
SCHEMAS_OF_STAGES: dict[str, type[TrainConfig]] = {"policy": PolicyConfig, "sft": SFTConfig, "rl": RLConfig}
CONFIGS = {"policy_config": "policy", "sft_config": "sft", "judge_config": "rl"}  # and their stages
COARSE = 0.03  # half an interval of a difference of accuracies from which on the gate sees little
FIGURES = {
    "Reward beside truth": {"reward": ("reward", INK), "answers/right": ("right\nanswers", LEAF)},
    "Signs of deception": {
        "answers/overpaid": ("paid more\nthan right", WARM),
        "answers/novelty": ("new bigrams", INK),
        "judge/order_agreement": ("orders agree", LEAF),
    },
}


@dataclass
class Round:
    """The result of a round. ``accepted``: its new judge replaces the old one; None if none was trained.

    ``start`` is the policy that it started from, ``policy`` its last checkpoint; ``answers`` counts the answers to held-out
    questions by policy, oldest first: those that a round started from (``starts``), and this round's checkpoints. Paths within
    the run start at its folder.
    """

    number: int
    judge: str
    start: str
    policy: str
    starts: list[str] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    next_policy: str = ""
    negatives: int = 0
    accepted: bool | None = None
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    difference: tuple[float, float] | None = None
    next_judge: str = ""


def run_loop(config: HardenConfig, out: Path, **how: Any) -> Round:
    """Run the loop in ``out``, or resume it; return the last round, with the judge and the policy that it ends with. ``how``
    goes to the :class:`Pipeline`.

    Raise ConfigError if ``out`` holds another run or a launcher has started several processes of the loop, DataError for a set
    that lacks labels, RewardlabError if a stage fails.
    """
    if (several := num_processes()) > 1:
        raise ConfigError(
            f"`rewardlab harden` is a single process, but a launcher started {several}; start it without a launcher, and set "
            f"launcher='accelerate launch --num_processes {several}', which starts its training stages"
        )
    out = out.resolve()
    config = with_paths(config, out)
    check_config(config, out)  # first: a refused config leaves nothing behind
    settings = config.model_dump(mode="json", exclude=FREE)
    return _Loop(config, Pipeline(out, settings, folder=out, launcher=config.launcher, **how)).run()


def with_paths(config: HardenConfig, out: Path) -> HardenConfig:
    """Return the config with paths that hold from ``out``, the stages' working directory: relative within it, else absolute."""

    def moved(name: str) -> str:
        path = Path(name)  # the last name of a file stays as it is: that of a link tells the kind of file
        full = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
        return str(full.relative_to(out) if full.is_relative_to(out) else full)

    paths = {name: moved(path) for name in ("data", "held_out", "judge_file") if (path := getattr(config, name))}
    paths |= {name: moved(model) for name in ("policy", "judge") if Path(model := getattr(config, name)).is_dir()}
    named = {name: getattr(config, name) for name in CONFIGS if getattr(config, name)}
    paths |= {name: moved(str(find_config(given, CONFIGS[name]))) for name, given in named.items()}
    teacher = config.truth.removeprefix("judge:")
    if teacher != config.truth and (folder := local_checkpoint(teacher)):
        paths["truth"] = f"judge:{replace(JudgeSpec.parse(teacher), target=moved(str(folder)))}"
    return config.model_copy(update=paths)


def values_of(config: HardenConfig, **values: Any) -> dict[str, Any]:
    """Return the values that the stages' command lines name. Answers are sampled as the policy's config says."""
    known = {**config.model_dump(exclude={"stages"}), "signs": config.signs, "out": "OUT"}
    policy = config_of_stage(config, "policy", known)
    assert isinstance(policy, PolicyConfig)
    sampling = {name: getattr(policy, name) for name in ("template", "contract", "frames", "temperature")}
    return {**known, "pairs": "PAIRS", "judgments": "JUDGMENTS", **sampling, **values}


def config_of_stage(config: HardenConfig, name: str, values: Mapping[str, Any]) -> TrainConfig:
    """Return the config that the command line of a training stage comes to."""
    [stage] = fill_stages({name: config.stages[name]}, values)
    words, named = list(stage.words), ("config", "model", "judge", "seed")
    options = {each: words[words.index(f"--{each}") + 1] for each in named if f"--{each}" in words}
    keys = parse_overrides(word for word in words if re.match(r"[a-z_.]+=", word))
    return load_config(SCHEMAS_OF_STAGES[name], options.pop("config", None), keys, **options)


def check_config(config: HardenConfig, out: Path) -> None:
    """Raise what a stage would raise after hours: ConfigError for a config, its keys, a launcher or a judge file, DataError for
    pairs, CheckpointError for a folder that does not exist or a judge of another template, EndpointError if a teacher or the
    consistency model does not answer."""
    from rewardlab.training.rl import require_consistency_judge

    launcher_words(config.launcher)
    if config.judge_file and (out / config.judge_file).is_dir():
        raise ConfigError(f"judge_file {config.judge_file}: is a folder; expected the name of a file")
    for name in ("data", "held_out", "judge"):
        if not (out / getattr(config, name)).exists():
            raise ConfigError(f"{name} {getattr(config, name)}: no such file or folder")
    if config.truth.startswith("judge:"):
        _check_teacher(config.truth.removeprefix("judge:"), out)
    values = values_of(config)
    rl = config_of_stage(config, "rl", values)
    if config.sft_config:
        sft = config_of_stage(config, "sft", values)
        if load_template(rl.template).hash != load_template(sft.template).hash:
            raise ConfigError(
                f"judge_config {config.judge_config}: has the template {rl.template}, and sft_config {config.sft_config} has "
                f"{sft.template}; RL continues from SFT, so give both the same"
            )
    else:
        load_template_for(str(out / config.judge), rl.template)
    _check_held_out(config, out, values["frames"])
    assert isinstance(rl, RLConfig)
    require_consistency_judge(rl)


def _check_teacher(spec: str, out: Path) -> None:
    parsed = JudgeSpec.parse(spec)
    if parsed.engine == HF:
        check_folder(str(out / parsed.target) if (out / parsed.target).exists() else parsed.target)
    elif parsed.engine == OPENAI:
        open_generative_judge(spec, max_tokens=1).check()


def _check_held_out(config: HardenConfig, out: Path, frames: int) -> None:
    data, held_out = (pairs_of(out / path, frames, config.judge) for path in (config.data, config.held_out))
    facts = list(pair_facts(held_out))
    if unlabelled := sum(each.preferred is None for each in facts):
        raise DataError(
            f"{config.held_out}: {unlabelled:,} of {len(facts):,} pairs have no label; both judges are tested on all of them"
        )
    if len({each.pair_id for each in facts}) < len(facts):
        raise DataError(f"{config.held_out}: some pairs share a pair_id, but answers are matched by it; give each pair its own")
    if fingerprint_of(held_out) == fingerprint_of(data):
        raise ConfigError(f"{config.held_out}: contains pairs of `data`; the judge would be tested on its training pairs")
    if shared := len({each.pair_id for each in facts} & {each.pair_id for each in pair_facts(data)}):
        log_line(f"{config.held_out}: {shared:,} of {len(facts):,} pairs have the pair_id of a pair of data; are they others?")


@dataclass
class _Loop:
    """The rounds of a run, in the folder of its pipeline."""

    config: HardenConfig
    pipeline: Pipeline

    @property
    def out(self) -> Path:
        return self.pipeline.out

    def run(self) -> Round:
        rounds = list[Round]()
        while (result := read_round(self.out, len(rounds))) is not None:
            rounds.append(result)
        if len(rounds) > self.config.rounds:
            raise ConfigError(f"{self.out}: already has {len(rounds)} rounds; set rounds to that number or more")
        while True:
            self.publish(rounds[-1].next_judge if rounds else self.config.judge)
            write_loop_page(self.config, rounds, self.out)
            if len(rounds) == self.config.rounds:
                return rounds[-1]
            rounds.append(self.run_round(rounds))

    def run_stage(self, name: str, folder: str, **values: Any) -> Path:
        """Run a stage of the config into a folder of the run, once; return the folder."""
        [stage] = fill_stages({folder: self.config.stages[name]}, values_of(self.config, out=folder, **values))
        self.pipeline.run([stage])
        return self.out / folder

    def run_round(self, rounds: Sequence[Round]) -> Round:
        """Run the stages of the next round; return its result, which is written."""
        number, last = len(rounds), rounds[-1] if rounds else None
        judge, policy = (last.next_judge, last.next_policy) if last else (self.config.judge, self.config.policy)
        here, seed = f"round_{number}", self.config.seed + number
        log_line(f"round {number}: the policy learns under {judge}")
        self.run_stage("policy", f"{here}/policy", judge=judge, policy=policy, seed=seed)
        trained = f"{here}/policy/{FINAL}"
        starts = list(dict.fromkeys([*(last.starts if last else ()), policy]))
        result = Round(number, judge, policy, trained, starts, next_judge=judge)
        self.compare_policies(result, last)
        made = self.run_stage("negatives", f"{here}/negatives", judge=judge, policy=trained, seed=seed) / NEGATIVES
        result.negatives = len(pairs_of(made, 1, judge)) if made.exists() else 0
        candidate = self.train_judge(result) if result.negatives else None
        if candidate:
            self.compare_judges(result, candidate)
        else:
            why = "too few wrong answers have a high reward" if result.negatives else "no wrong answer has a high reward"
            log_line(f"round {number}: {why}; the judge stays as it is")
        write_atomic(self.out / here / ROUND, json.dumps(asdict(result), indent=1) + "\n")
        return result

    def compare_policies(self, result: Round, last: Round | None) -> None:
        """Have the policy that the round started from and each of its checkpoints answer held-out questions; choose the policy
        that the next round starts from among these and the ones that earlier rounds started from.

        The policy of the start answers again in every round, and all its answers so far count."""
        here, seed = f"round_{result.number}", self.config.seed + result.number
        names = [*checkpoints_before_last(self.out / here / "policy"), FINAL]
        policies = {"start": result.start, **{name: f"{here}/policy/{name}" for name in names}}
        answers = {name: last.answers[name] for name in result.starts} if last else {}
        for name, policy in policies.items():
            folder = self.run_stage("answers", f"{here}/answers_{name}", judge=result.judge, policy=policy, seed=seed)
            counts = read_record(folder / POLICY)
            answers[policy] = add_answers(answers[policy], counts) if policy in answers else counts
        result.answers, result.next_policy = answers, latest_as_good(answers)
        log_line(f"round {result.number}: the next round starts from {result.next_policy}")

    def train_judge(self, result: Round) -> str | None:
        """Train the judge on the negatives of all rounds beside labelled pairs of the set; return the folder of the new one, or
        None if they are fewer than a batch of rollouts."""
        here, seed, judge = f"round_{result.number}", self.config.seed + result.number, result.judge
        pairs = f"{here}/pairs.parquet"
        rl = config_of_stage(self.config, "rl", values_of(self.config))
        assert isinstance(rl, RLConfig)
        if not (self.out / pairs).exists():
            self.write_pairs(result.number, self.out / pairs, rl.frames)
        from rewardlab.training.rl import hard_pairs

        prompts = len(hard_pairs(pairs_of(self.out / pairs, rl.frames, judge), rl)) * (2 if rl.both_orders else 1)
        if prompts * rl.group_size < rl.rollout_batch_size:
            return None
        start = judge
        if self.config.sft_config:
            judgments = self.run_stage("judgments", f"{here}/judgments", pairs=pairs, judge=judge, seed=seed) / JUDGMENTS
            taught = judgments.relative_to(self.out)
            self.run_stage("sft", f"{here}/sft", judgments=taught, judge=judge, seed=seed)
            start = f"{here}/sft/{FINAL}"
        self.run_stage("rl", f"{here}/judge", pairs=pairs, judge=start, seed=seed)
        return f"{here}/judge/{FINAL}"

    def write_pairs(self, number: int, path: Path, frames: int) -> None:
        made = [self.out / f"round_{n}" / "negatives" / NEGATIVES for n in range(number + 1)]
        tables = [pairs_of(each, frames, self.config.judge) for each in made if each.exists()]
        # An answer that the policy gave in several rounds is one negative.
        negatives = {facts.pair_id: (table, n) for table in tables for n, facts in enumerate(pair_facts(table))}
        pairs = pairs_of(self.out / self.config.data, frames, self.config.judge)
        labelled = [n for n, facts in enumerate(pair_facts(pairs)) if facts.preferred is not None]
        size = min(len(labelled), math.ceil(self.config.mix * len(negatives)))
        if size < 1 and self.config.mix:
            raise DataError(f"{self.config.data}: has no labelled pair to mix with the judge's negatives; label some")
        chosen = sorted(random.Random(f"harden {self.config.seed + number}").sample(labelled, size))
        places = [*negatives.values(), *((pairs, n) for n in chosen)]
        write_parquet((table[n] for table, n in places), path)  # one at a time: they may have large pictures

    def compare_judges(self, result: Round, candidate: str) -> None:
        """Benchmark both judges on held-out pairs; accept the new one unless it is worse beyond noise."""
        here = f"round_{result.number}"
        folders = [
            self.run_stage("bench", f"{here}/bench_{name}", judge=judge)
            for name, judge in (("before", result.judge), ("after", candidate))
        ]
        before, after = runs = [read_run(folder) for folder in folders]
        for folder, run in zip(folders, runs, strict=True):
            if run.report.failure:  # says nothing about either judge
                raise RewardlabError(
                    f"{folder}: the benchmark failed ({run.report.failure}); delete it and run the command again"
                )
        low, high = result.difference = against(before, after).interval
        result.accuracy_before, result.accuracy_after = (run.report.scores.accuracy.micro for run in runs)
        result.accepted = high >= 0
        result.next_judge = candidate if result.accepted else result.judge
        if (seen := (high - low) / 2) > COARSE:
            log_line(f"{self.config.held_out}: too few pairs to see a loss of accuracy below some {100 * seen:.0f} points")
        log_line(f"round {result.number}: the new judge {'is taken' if result.accepted else 'is worse on held-out pairs'}")

    def publish(self, judge: str) -> None:
        """Name the judge in the file that a server follows. Raise ConfigError for a judge that is no folder."""
        if self.config.judge_file:
            path, folder = self.out / self.config.judge_file, self.out / judge
            if not folder.is_dir():
                raise ConfigError(f"judge_file {path}: the judge {folder} does not exist here; restore it, or unset judge_file")
            if not path.exists() or path.read_text(encoding="utf-8") != f"prob:{folder}\n":
                write_atomic(path, f"prob:{folder}\n")


def checkpoints_before_last(trained: Path) -> list[str]:
    """Return the names of a policy's checkpoints before its last step, oldest first."""
    last = max((row["step"] for row in read_complete_lines(trained / METRICS)), default=0)
    steps = {path.name: int(path.name.rpartition("-")[2]) for path in trained.glob("checkpoint-*")}
    return sorted((name for name, step in steps.items() if step < last), key=steps.__getitem__)


def read_record(path: Path) -> dict[str, Any]:
    """Return what the loop or a stage has written. Raise DataError if the file is corrupt."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict):
        raise DataError(f"{path}: the file is corrupt; restore or delete it (finished stages are kept)")
    return record


def read_round(out: Path, number: int) -> Round | None:
    """Return a finished round; None for one that is not finished."""
    path = out / f"round_{number}" / ROUND
    return Round(**read_record(path)) if path.exists() else None


def add_answers(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return the sum of two counts of a policy's answers, and the mean of both rewards."""
    both = {name: first[name] + second[name] for name in ("questions", "right", "wrong", "unknown", "paid")}
    paid = [(row["reward"], row["paid"]) for row in (first, second) if row["reward"] is not None]
    total = sum(number for _, number in paid)
    return {**both, "reward": sum(reward * number for reward, number in paid) / total if total else None}


def share_right(counts: Mapping[str, Any]) -> float:
    """Return the fraction of answers that are known to be right. An answer of which nothing is known is no success: a policy
    would gain by answers that no rule can read."""
    return float(counts["right"] / max(1, counts["questions"]))


def latest_as_good(answers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the last of some policies, oldest first, that is no worse than the best by more than one standard error of the
    difference (the rule of Breiman et al., Classification and Regression Trees, 1984, 3.4.3); the first if none has a right
    answer. Always taking the best would return to an old policy by luck, again and again."""
    best = answers[max(answers, key=lambda name: share_right(answers[name]))]

    def is_as_good(counts: Mapping[str, Any]) -> bool:
        shares = ((share_right(row), max(1, row["questions"])) for row in (best, counts))
        error = math.sqrt(sum(share * (1 - share) / number for share, number in shares))
        return counts["right"] > 0 and share_right(best) - share_right(counts) <= error

    good = [name for name, counts in answers.items() if is_as_good(counts)]
    return good[-1] if good else next(iter(answers))


def write_loop_page(config: HardenConfig, rounds: Sequence[Round], out: Path) -> None:
    """Write the rounds as lines of one file, and as one self-contained page with the policy's metrics over all of them."""
    write_atomic(out / ROUNDS, "".join(json.dumps(asdict(row)) + "\n" for row in rounds))
    metrics, before = list[dict[str, Any]](), 0
    for row in rounds:
        rows = read_complete_lines(out / Path(row.policy).parent / METRICS)
        metrics += [{**each, "step": before + each["step"]} for each in rows]
        before = max((each["step"] for each in metrics), default=before)
    figures = []
    for title, lines in FIGURES.items():
        numbers = {name: [row for row in metrics if isinstance(row.get(name), int | float)] for name in lines}
        series = [
            Series(label, [row["step"] for row in numbers[name]], [row[name] for row in numbers[name]], color)
            for name, (label, color) in lines.items()
            if numbers[name]
        ]
        if series:
            figures.append((title, figure_uri(plot_series(series, xlabel="policy step, all rounds"))))
    page = page_environment("rewardlab.pipelines").get_template("hardening.html")
    cells = [_cells(row) for row in rounds]
    settings = config.model_dump(mode="json", exclude={"stages"})
    text = page.render(name=out.name, settings=settings, rounds=rounds, columns=COLUMNS, rows=cells, figures=figures)
    write_atomic(out / PAGE, text)


COLUMNS = (
    "round",
    "right at its start, %",
    "right at its end, %",
    "mean reward",
    "next round starts at, %",
    "negatives",
    "old judge, %",
    "new judge, %",
    "difference, points",
    "new one taken",
)


def _cells(row: Round) -> list[str]:
    last = row.answers[row.policy]
    judges = [f"{100 * value:.1f}" if value is not None else "–" for value in (row.accuracy_before, row.accuracy_after)]
    return [
        str(row.number),
        _right(row.answers[row.start]),
        _right(last),
        f"{last['reward']:.3f}" if last["reward"] is not None else "–",
        _right(row.answers[row.next_policy]) + (" (its start)" if row.next_policy == row.start else ""),
        f"{row.negatives:,}",
        *judges,
        f"{100 * row.difference[0]:+.1f} to {100 * row.difference[1]:+.1f}" if row.difference else "–",
        {None: "none was trained", True: "yes", False: "no, it is worse"}[row.accepted],
    ]


def _right(counts: Mapping[str, Any]) -> str:
    if not (total := counts["questions"]):
        return "–"
    low, high = wilson_interval(counts["right"], total)
    unknown = f", {counts['unknown']:,} not known" if counts["unknown"] else ""
    return f"{100 * counts['right'] / total:.1f} [{100 * low:.1f}, {100 * high:.1f}]{unknown}"
