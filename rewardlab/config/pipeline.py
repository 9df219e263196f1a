"""Schemas of pipelines: stages that are command lines, and the hardening loop, which is made of them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rewardlab.config.base import Schema


class StageConfig(Schema):
    """One command line. Words in braces, such as `{out}`, are values of the pipeline; a list becomes several words."""

    run: str = Field(description="The command line; its first word is `rewardlab` or `python`.")
    result: str = Field(
        "",
        description="File that the stage writes, in the pipeline's folder; a finished stage is skipped while the file exists.",
    )
    is_atomic: bool = Field(
        False,
        description="Whether the result is written last and atomically, so that it alone shows that the stage is finished.",
    )
    needs: tuple[str, ...] = Field((), description="Stages that must finish first; a server only needs to be up.")
    ready: str = Field("", description="URL that answers once this server is up; the server runs as long as a stage needs it.")
    threads: int | None = Field(None, ge=1, description="Number of compute threads; null: the libraries' default.")
    launched: bool = Field(False, description="Whether the pipeline's launcher starts its processes.")
    statuses: tuple[int, ...] = Field((0,), description="Exit statuses that count as success.")

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if bool(self.result) == bool(self.ready):
            raise ValueError("a stage has either a result or, if it is a server, the URL `ready`; give one of them")
        if self.ready and not self.ready.startswith(("http://", "{")):
            raise ValueError(f"ready {self.ready!r}: expected a URL such as http://127.0.0.1:8000/health")
        return self


class PipelineConfig(Schema):
    """Stages by name."""

    stages: dict[str, StageConfig] = Field(description="The command lines by name, in the order in which they are started.")

    @model_validator(mode="after")
    def _needs_exist(self) -> Self:
        for name, stage in self.stages.items():
            if unknown := [need for need in stage.needs if need not in self.stages]:
                raise ValueError(f"stage {name} needs {unknown[0]!r}; expected one of {', '.join(self.stages)}")
        return self


STAGES_OF_ROUND = ("policy", "answers", "negatives", "judgments", "sft", "rl", "bench")


class HardenConfig(Schema):
    """A policy that learns under a judge, and a judge that learns the policy's wrong answers that it pays, in turns.

    Relative paths start at the working directory; those in `*_keys`, `stages` and other configs at the folder of the run."""

    data: str = Field(description="Set on disk with the policy's questions and the judge's labelled pairs.")
    held_out: str = Field(description="Labelled pairs on which neither judge nor policy may become worse.")
    policy: str = Field(description="Checkpoint folder or hub id of the initial policy.")
    judge: str = Field(description="Checkpoint folder of the initial judge.")
    truth: str = Field(
        "exact", description="How a wrong answer is known: `exact`, `rules` or `judge:SPEC`, as in `data negatives`."
    )
    rounds: int = Field(3, ge=1, description="Rounds; more may be added to a run that has ended.")
    seed: int = Field(0, description="Seed of the first round; each round adds 1.")
    policy_config: str = Field("pairwise_rl", description="Config of `rewardlab policy`: a file or a name.")
    judge_config: str = Field("stable_reinforce", description="Config of `rewardlab rl`: a file or a name.")
    sft_config: str | None = Field(
        None,
        description="Config of `rewardlab sft`, which teaches the judge its own right judgments before RL; null: RL alone.",
    )
    policy_keys: tuple[str, ...] = Field((), description="KEY=VALUE over `policy_config`.")
    judge_keys: tuple[str, ...] = Field((), description="KEY=VALUE over `judge_config`.")
    sft_keys: tuple[str, ...] = Field((), description="KEY=VALUE over `sft_config`.")
    questions: int = Field(1000, ge=1, description="Questions that each checkpoint of the policy answers, and for negatives.")
    least_reward: float = Field(0.25, ge=0, le=1, description="Minimum reward of a wrong answer to become a negative.")
    mix: float = Field(12.0, ge=0, description="Labelled pairs of `data` per negative in the judge's training.")
    max_tokens: int = Field(1024, ge=1, description="Maximum tokens per answer.")
    judge_max_tokens: int = Field(1024, ge=1, description="Maximum tokens per judgment.")
    judge_file: str | None = Field(
        None, description="File that `rewardlab serve --judge-file` follows: it names each accepted judge; null: none."
    )
    launcher: str = Field(
        "",
        description="Command line that starts the processes of training stages, such as `accelerate launch --num_processes 8`.",
    )

    stages: dict[str, StageConfig] = Field(description="The command lines by name; `configs/harden/loop.yaml` has them.")

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if not (self.truth in ("exact", "rules") or self.truth.startswith("judge:")):
            raise ValueError(
                f"truth {self.truth}: expected exact, rules or judge:SPEC (answers of a loop have no labels in a file)"
            )
        if set(self.stages) != set(STAGES_OF_ROUND):
            raise ValueError(f"stages are {', '.join(self.stages)}; expected {', '.join(STAGES_OF_ROUND)}")
        for name, stage in self.stages.items():
            if stage.needs or stage.ready:
                raise ValueError(
                    f"stages.{name}: a stage of a round has a result, and needs no other; leave out needs and ready"
                )
        if self.judge.startswith("prob:"):
            raise ValueError(f"judge {self.judge}: expected the folder alone, without prob:")
        return self

    @property
    def signs(self) -> Literal["exact", "rules", "none"]:
        """How the policy's trainer counts right answers while it trains."""
        return "exact" if self.truth == "exact" else "rules" if self.truth == "rules" else "none"
