"""A finished run as records of Every Eval Ever (arXiv 2606.14516), schema 0.3.0: an aggregate, and a line for each vote.

The lines follow a profile, since the schema has no place for what a pairwise vote is: ``input.choices`` are the responses A
(index 0) and B, ``input.reference`` the better one or "tie", and ``metadata`` (texts) has ``profile`` "pairwise/1", ``row`` of
the data file, ``order`` ("AB": A was shown first, or "BA"), ``sample`` (the number of the vote in its order, from 0),
``status`` (a :class:`rewardlab.types.VerdictStatus`), ``verdict`` ("A", "B" or ""), ``group``, ``finish`` and ``num_tokens`` of
the answer and, if they are known, ``margin`` (log-odds of the response shown first), ``member`` (of a panel) and ``images``
(their number). A vote without a verdict has the score 0, as in the run's accuracy; ``status`` tells it from a wrong one.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import VOTES, Row, run_date
from rewardlab.benchmarks.browser import votes_of_rows
from rewardlab.benchmarks.comparison import Run, plain_run
from rewardlab.benchmarks.data_files import json_rows
from rewardlab.benchmarks.report_model import Report
from rewardlab.data.files import write_atomic
from rewardlab.data.votes import vote_of
from rewardlab.errors import ConfigError, DataError
from rewardlab.metrics.intervals import Interval
from rewardlab.reporting.tables import RESPONSE_LETTERS
from rewardlab.types import IMAGE_MARK, Order, VerdictStatus, Vote, choice_of

SCHEMA_VERSION, PROFILE = "0.3.0", "pairwise/1"
SHOWN = {Order.GIVEN: "AB", Order.SWAPPED: "BA"}


def write_every_eval_ever(run: Run, rows: Sequence[Row], out: Path, *, model: str, repo: str = "") -> Path:
    """Write the run, whose folder is ``run.name``, below the folder ``out`` as the datastore has it, and return the aggregate's
    file, ``data/BENCHMARK/OWNER/NAME/ID.json``; ``ID_samples.jsonl`` is in the same folder. Neither holds images.

    ``model`` is the OWNER/NAME of the judge's model, ``repo`` the benchmark's dataset on the Hub. Raise ConfigError for another
    form of ``model``, DataError for a run that failed, and where rows or votes are missing.
    """
    report, folder, by_row = plain_run(run).report, Path(run.name), {row.row: row for row in rows}
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)+", model):
        raise ConfigError(f"--model {model}: expected OWNER/NAME of the judge's model, of letters, digits, '.', '-' and '_'")
    labels = {score.row: score.preferred for score in (*run.rows, *run.ties)}
    votes = votes_of_rows(folder / VOTES, labels)
    if missing := [row for row in labels if row not in by_row or row not in votes]:
        raise DataError(f"{run.name}: row {missing[0]} is not in the data, or has no votes; give the run's own --data")
    benchmark, date, (owner, _, rest) = re.sub(r"[^\w.-]", "_", report.benchmark), run_date(folder), model.partition("/")
    digest = hashlib.sha256(f"{benchmark} {report.data_sha256} {model} {report.command} {date}".encode()).digest()
    name, seconds = str(uuid.UUID(bytes=digest[:16], version=4)), str(int(datetime.fromisoformat(date).timestamp()))
    place = Path("data", benchmark, owner, rest.replace("/", "_"))
    shared = {"schema_version": SCHEMA_VERSION, "evaluation_id": f"{benchmark}/{model}/{seconds}"}
    records = (record for row in labels for record in vote_records(by_row[row], labels[row], votes[row], benchmark))
    lines = [json.dumps({**shared, "model_id": model, **record}) + "\n" for record in records]
    source = {"source_name": "rewardlab bench run", "source_type": "evaluation_run"}
    aggregate: dict[str, Any] = {
        **shared,
        "evaluation_timestamp": date,
        "retrieved_timestamp": seconds,
        "source_metadata": {**source, "source_organization_name": "unknown", "evaluator_relationship": "other"},
        "eval_library": {"name": "rewardlab", "version": report.versions.get("rewardlab") or "unknown"},
        "model_info": {
            "name": report.judge,
            "id": model,
            "additional_details": {"deployment_type": "unknown", "model_availability": "unknown"},
        },
        "evaluation_results": list(_results(report, benchmark, repo)),
        "detailed_evaluation_results": {
            "format": "jsonl",
            "file_path": (place / f"{name}_samples.jsonl").as_posix(),
            "hash_algorithm": "sha256",
            "checksum": hashlib.sha256("".join(lines).encode()).hexdigest(),
            "total_rows": len(lines),
            "additional_details": {"profile": PROFILE},
        },
    }
    write_atomic(out / place / f"{name}_samples.jsonl", "".join(lines))
    write_atomic(path := out / place / f"{name}.json", json.dumps(aggregate, indent=1) + "\n")
    return path


def _results(report: Report, benchmark: str, repo: str) -> Iterator[dict[str, Any]]:
    """Yield the metrics of a report, each with its interval."""
    scores, ties = report.scores, report.ties
    source = {"source_type": "hf_dataset", "hf_repo": repo} if repo else {"source_type": "other"}
    how: dict[str, Any] = {"orders": report.orders, "votes_per_order": str(report.votes), "seed": str(report.seed)}
    sampling = {name: value for name, value in report.sampling.items() if value is not None}
    how = {"generation_args": {**sampling, "execution_command": report.command}, "additional_details": how}
    metrics: list[tuple[str, float | None, Interval | None]] = [
        ("accuracy", scores.accuracy.micro, scores.interval),
        *((f"accuracy/{name}", cell.accuracy, cell.interval) for name, cell in scores.groups.items()),
        *([("accuracy_three_classes", ties.three_way.accuracy, ties.three_way.interval)] if ties else []),
        ("invalid_rate", scores.invalid_rate, scores.invalid_interval),
        ("swap_consistency", scores.swap_consistency, scores.swap_interval),
        ("position_bias", scores.position_bias, scores.position_interval),
    ]
    for name, value, interval in metrics:
        if value is None:
            continue
        low, high = interval or (None, None)
        ends = {"confidence_interval": {"lower": low, "upper": high, "confidence_level": 0.95}}
        yield {
            "evaluation_result_id": f"{benchmark}/{name}",
            "evaluation_name": f"{benchmark}/{name}",
            "source_data": {**source, "dataset_name": benchmark, "additional_details": {"sha256": report.data_sha256}},
            "metric_config": {
                "metric_id": f"rewardlab.{name.partition('/')[0]}",
                "metric_unit": "proportion",
                "lower_is_better": name in ("invalid_rate", "position_bias"),
                "score_type": "continuous",
                "min_score": -1.0 if name == "position_bias" else 0.0,
                "max_score": 1.0,
            },
            "score_details": {"score": value, "uncertainty": {} if interval is None else ends},
            "generation_config": how,
        }


def vote_records(row: Row, preferred: int | None, votes: Sequence[Vote], benchmark: str) -> Iterator[dict[str, Any]]:
    """Yield the record of each vote on a row, without what all records of a run share; ``preferred`` is None of a tie."""
    pair, numbers = row.pair, Counter[Order]()
    better = "tie" if preferred is None else RESPONSE_LETTERS[preferred]
    name = f"{benchmark}/{'accuracy_three_classes' if preferred is None else 'accuracy'}"
    for vote in votes:
        completion, verdict = vote.completion, vote.verdict
        named = "" if vote.winner is None else RESPONSE_LETTERS[vote.winner]
        answer = "tie" if verdict.status is VerdictStatus.TIE else named
        facts = {
            "profile": PROFILE,
            "row": row.row,
            "order": SHOWN[vote.order],
            "sample": numbers[vote.order],
            "status": verdict.status.value,
            "verdict": named,
            "group": row.group,
            "finish": completion.finish.value,
            "num_tokens": completion.num_tokens,
            "margin": vote.margin,
            "member": vote.member or None,
            "images": len(pair.images) + sum(map(len, pair.response_images)) or None,
        }
        numbers[vote.order] += 1
        read = {"extracted_value": answer, "extraction_method": verdict.rule or "unknown", "is_terminal": True}
        yield {
            "evaluation_name": name,
            "evaluation_result_id": name,
            "sample_id": pair.pair_id,
            "interaction_type": "single_turn",
            "input": {
                "raw": pair.question.replace(IMAGE_MARK, "[image]"),
                "reference": [better],
                "choices": [text.replace(IMAGE_MARK, "[image]") for text in pair.responses],
            },
            "output": {"raw": [completion.text.encode(errors="replace").decode()]},
            "answer_attribution": [{"turn_idx": 0, "source": "output.raw", **read}],
            "evaluation": {"score": float(answer == better), "is_correct": answer == better},
            "error": completion.error or (verdict.status.value if completion.failed else None),
            "metadata": {name: str(fact) for name, fact in facts.items() if fact is not None},
        }


def recorded_votes(path: Path) -> Iterator[tuple[str, str, Vote]]:
    """Yield row, pair id and vote of each line of a ``*_samples.jsonl`` in the profile. Raise DataError for another profile,
    and for votes of a panel, which only the panel itself can count."""
    for record, where in json_rows(path, "votes of Every Eval Ever"):
        facts = record["metadata"] or {}
        if facts.get("profile") != PROFILE or "member" in facts:
            raise DataError(f"{where}: expected a vote of one judge in the profile {PROFILE}")
        order = {name: order for order, name in SHOWN.items()}[facts["order"]]
        choice = choice_of(RESPONSE_LETTERS.index(facts["verdict"]), order) if facts["verdict"] else None
        fields = {"order": order, "choice": choice, "rule": record["answer_attribution"][0]["extraction_method"]}
        fields |= {"text": record["output"]["raw"][0], "num_tokens": int(facts["num_tokens"]), "error": record["error"] or ""}
        fields |= {"margin": float(facts["margin"])} if "margin" in facts else {}
        yield facts["row"], str(record["sample_id"]), vote_of({**facts, **fields})
