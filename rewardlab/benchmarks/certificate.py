"""The certificate of a finished run's judge (:mod:`rewardlab.judging.certificate`)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rewardlab.benchmarks.agreement import AgreementScores
from rewardlab.benchmarks.base import VOTES
from rewardlab.benchmarks.calibrate import guarantee_lines
from rewardlab.benchmarks.comparison import Run, read_plain_run, read_run
from rewardlab.benchmarks.report import ReportPart, attack_part, people_part
from rewardlab.benchmarks.report_model import Report, json_form
from rewardlab.benchmarks.robustness.model import Robustness
from rewardlab.benchmarks.settings import NO_ENGINES
from rewardlab.config.judge import JudgeConfig
from rewardlab.data.files import sha256_of
from rewardlab.data.votes import identity_of_votes
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.certificate import FORM, certificate_id, certificate_lines
from rewardlab.judging.guarantee import GUARANTEE, Guarantee, judge_facts, read_guarantee
from rewardlab.judging.spec import WITHOUT_SAMPLER, JudgeSpec, judge_config, judge_weights_id
from rewardlab.models.checkpoints import commit
from rewardlab.reporting.pages import page_environment


def make_certificate(folder: Path, *, attacked: Path | None = None, command: str = "") -> dict[str, Any]:
    """Return the certificate of the judge of the finished run in ``folder``: its config and weights, the pairs, the agreement
    with people, the guarantee if the folder has one, and the robustness of the run ``attacked`` (`bench run NAME:attacked`).

    Raise DataError for a run that failed or has no agreement with people, ConfigError for a guarantee or an attacked run of
    another judge, or weights that have changed since the run.
    """
    report, facts = _judge_of(read_plain_run(folder))
    if report.agreement is None:
        raise DataError(f"{folder}: has no agreement with people; run `rewardlab agree {folder} --labels FILE` first")
    content: dict[str, Any] = {
        "form": FORM,
        "judge": {"config": dict(report.judge_config), "config_hash": report.judge_config_hash, **facts},
        "pairs": {"benchmark": report.benchmark, "sha256": report.data_sha256, "number": report.scores.num_pairs},
        "votes_sha256": sha256_of(folder / VOTES),
        "accuracy": {"micro": report.scores.accuracy.micro, "interval": list(report.scores.interval)},
        "agreement": json_form(report.agreement),
        "guarantee": None,
        "robustness": None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "commit": commit(),
    }
    if (folder / GUARANTEE).exists():
        guarantee = read_guarantee(folder)
        if dict(guarantee.judge) != dict(facts) or guarantee.votes != report.votes:
            raise ConfigError(f"{folder}/{GUARANTEE}: is of another judge; run `rewardlab guarantee {folder}` again")
        if guarantee.evidence.get("data_sha256") != report.data_sha256:
            raise ConfigError(f"{folder}/{GUARANTEE}: is of other pairs; run `rewardlab guarantee {folder}` again")
        content["guarantee"] = json_form(guarantee)
    if attacked is not None:
        other, of_other = _judge_of(read_run(attacked))
        if other.robustness is None:
            raise DataError(f"{attacked}: is no run under attack; expected the folder of a `bench run NAME:attacked`")
        if (of_other["judge"], of_other["weights"]) != (facts["judge"], facts["weights"]):
            raise ConfigError(f"{attacked}: is of another judge, {of_other['judge']!r} with weights {of_other['weights']!r}")
        content["robustness"] = json_form(other.robustness)
    return {"id": certificate_id(content), **content}


def certificate_page(content: Mapping[str, Any]) -> str:
    """Return a certificate as one self-contained HTML page."""
    judge, pairs = content["judge"], content["pairs"]
    parts = [people_part(TypeAdapter(AgreementScores).validate_python(content["agreement"]))]
    if (guarantee := content["guarantee"]) is not None:
        lines = guarantee_lines(TypeAdapter(Guarantee).validate_python(guarantee))
        parts.append(ReportPart("Guaranteed error", " ".join(f"{line[0].upper()}{line[1:]}." for line in lines)))
    if (attacks := content["robustness"]) is not None:
        parts.append(attack_part(TypeAdapter(Robustness).validate_python(attacks)))
    values = {**judge["config"], **{name: value for name, value in judge.items() if name not in ("config", "judge")}}
    values |= {f"pairs: {name}": value for name, value in pairs.items()} | {"votes: sha256": content["votes_sha256"]}
    values |= {name: content[name] for name in ("date", "command", "commit", "id")}
    facts = [(name.replace("_", " "), "–" if value in ("", None, {}) else str(value)) for name, value in values.items()]
    page = page_environment("rewardlab.benchmarks").get_template("certificate.html")
    return page.render(judge=judge["config"]["judge"], lines=certificate_lines(content), parts=parts, facts=facts)


def _judge_of(run: Run) -> tuple[Report, Mapping[str, Any]]:
    """Return the report of a run, and what its judge is. Raise ConfigError if its weights have changed since the run."""
    report, identity = run.report, identity_of_votes(Path(run.name) / VOTES)
    if report.failure:
        raise DataError(f"{run.name}: the run failed ({report.failure}); the same `bench run` command retries its votes")
    config = judge_config(JudgeConfig.model_validate(dict(report.judge_config)))
    is_local = JudgeSpec.parse(config.judge, *NO_ENGINES, *WITHOUT_SAMPLER).checkpoint is not None
    if is_local and judge_weights_id(config.judge) != identity.get("weights"):
        raise ConfigError(f"{config.judge}: its weights have changed since the run {run.name}, or are not here; run it again")
    return report, judge_facts(config, identity)
