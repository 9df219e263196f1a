"""Stages that make data."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from rewardlab.config.base import Schema, nested
from rewardlab.config.judge import QueryConfig, SamplingConfig


class Prices(Schema):
    """US dollars per million tokens, as the provider lists them; 0: not known, or one's own machine."""

    prompt: float = Field(0.0, ge=0, description="US dollars per million tokens of prompts.")
    cached_prompt: float | None = Field(None, ge=0, description="US dollars per million cached prompt tokens; null: as prompt.")
    completion: float = Field(0.0, ge=0, description="US dollars per million tokens of answers.")

    def usd(self, prompt: int, completion: int, cached: int = 0) -> float:
        """Return the price of one answer; ``cached`` are among ``prompt``."""
        of_cached = self.prompt if self.cached_prompt is None else self.cached_prompt
        return ((prompt - cached) * self.prompt + cached * of_cached + completion * self.completion) / 1e6


class Budget(Schema):
    """What a run may spend in all, its earlier parts included; null: no limit."""

    usd: float | None = Field(None, gt=0, description="Maximum US dollars to spend; null: no limit.")
    tokens: int | None = Field(None, gt=0, description="Maximum tokens of prompts and answers together; null: no limit.")


NO_PRICES, NO_BUDGET = Prices.model_validate({}), Budget.model_validate({})


class RayConfig(Schema):
    """Ray actors that send the requests of a distillation; the data are then a folder of Parquet shards."""

    workers: int = Field(ge=1, description="Ray actors that send requests.")
    address: str | None = Field(None, description="Address of a Ray cluster, or `auto`; null: start a local one.")


class DistillConfig(SamplingConfig):
    """The teacher stage. The paper's text says temperature 0 and its authors' notes 1; retrying at 0 asks the same again."""

    model: str = Field("gpt-4o", description="Name of the teacher at its endpoint.")
    base_url: str | list[str] = Field(
        "https://api.openai.com/v1", description="URL of an OpenAI-compatible endpoint, or a list of equal ones."
    )
    api_key_env: str | list[str] = Field("OPENAI_API_KEY", description="Environment variable of the key, or one per URL.")
    template: str = Field("r1_reward", description="Prompt template of the judgments; the same as in training.")
    max_attempts: int = Field(3, ge=1, le=3, description="Maximum attempts until a judgment is right (the difficulty).")
    votes: int = Field(0, ge=0, le=64, description="Judgments per pair, half in each order; 0: until one is right.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; 0 is greedy: each attempt gives the same answer.")
    max_tokens: int = Field(2048, ge=1, description="Maximum tokens of a judgment; twice R1-Reward's.")
    transport: Literal["chat", "batch"] = Field("chat", description="Single requests, or the batch API.")
    ray: RayConfig | None = Field(None, description="Send requests from Ray actors; null: from this process.")
    concurrency: int = Field(32, ge=1, description="Requests in flight at each URL; reduced while it refuses many.")
    try_s: float = Field(60.0, gt=0, description="Seconds for one try of a request.")
    deadline_s: float = Field(300.0, gt=0, description="Seconds for one request, retries included.")
    retries: int = Field(4, ge=0, description="Retries of a failed request.")
    batch_requests: int = Field(10_000, ge=1, le=50_000, description="Requests per batch; providers accept 50,000 and 200 MB.")
    batch_bytes: int = Field(150_000_000, ge=1000, description="Bytes of one batch.")
    poll_s: float = Field(30.0, gt=0, description="Seconds between queries of the batches' status.")
    prices: Prices = nested(Prices, "Token prices, for reports and budgets.")
    budget: Budget = nested(Budget, "Most to spend, earlier runs included.")
    seed: int = Field(0, description="Random seed.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.votes % 2:
            raise ValueError(f"votes is {self.votes}; use an even number, so that both orders get as many votes")
        if not self.base_urls:
            raise ValueError("base_url is an empty list; name an endpoint")
        keys = self.api_key_env
        if isinstance(keys, list) and len(keys) != len(self.base_urls):
            raise ValueError(f"{len(keys)} values of api_key_env for {len(self.base_urls)} of base_url; give one, or one a URL")
        if self.budget.usd is not None and not (self.prices.prompt or self.prices.completion):
            raise ValueError("budget.usd needs prices (US dollars per million tokens); without prices no cost is counted")
        if self.transport == "batch" and len(self.base_urls) > 1:
            raise ValueError("transport: batch takes one base_url, because a batch stays with its provider")
        if self.transport == "batch" and self.ray is not None:
            raise ValueError("transport: batch sends whole files from one process; leave out ray")
        return self

    @property
    def base_urls(self) -> list[str]:
        return [self.base_url] if isinstance(self.base_url, str) else self.base_url

    @property
    def api_key_envs(self) -> list[str]:
        """One for each of ``base_urls``."""
        keys = self.api_key_env
        return [keys] * len(self.base_urls) if isinstance(keys, str) else keys


class SelfDistilConfig(Schema):
    """Rejection sampling of a judge's own judgments."""

    samples: int = Field(8, ge=1, description="Samples of each pair in each order.")
    keep: int = Field(1, ge=1, description="Maximum judgments to keep per pair; those with different openings first.")
    alpha: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Keep a pair only if guessing is right as often with at most this probability; 1 keeps everything right.",
    )
    hot_token: float | None = Field(
        None, ge=0.1, le=1000, description="FIRE: temperature of the first token after `<think>`, for example 2; null: off."
    )
    seed: int = Field(0, description="Random seed.")


class StepsConfig(Schema):
    """Step labels by completing prefixes (arXiv 2410.17621): 20 completions each, of which a guesser gets half right."""

    source: Literal["judge", "pairs"] = Field("judge", description="Judgments to label: of the `judge`, or the `pairs`' own.")
    completions: int = Field(20, ge=1, description="Completions per tested prefix.")
    alpha: float = Field(0.025, gt=0, lt=0.5, description="Significance level; at 0.025, 15 of 20 completions must be right.")
    judgments_per_order: int = Field(1, ge=1, description="Judgments to sample in each order; at most `completions`.")
    pairs_per_batch: int = Field(16, ge=1, description="Pairs searched in parallel; a kill loses one such batch.")
    seed: int = Field(0, description="Random seed.")

    @model_validator(mode="after")
    def _can_tell(self) -> Self:
        if 0.5**self.completions > self.alpha:
            raise ValueError(
                f"guessing gets all {self.completions} right with probability {0.5**self.completions:.3g}, more than alpha "
                f"{self.alpha}: raise completions"
            )
        if self.judgments_per_order > self.completions:
            raise ValueError(
                "judgments_per_order cannot exceed completions, because these judgments are completions of the empty prefix"
            )
        return self


class NegativesConfig(SamplingConfig):
    """Hard negatives from a policy's answers. `temperature`, `top_p`, `max_tokens` and `template` are the policy's."""

    number: int = Field(1000, ge=1, description="Number of questions; each gets one answer.")
    least_reward: float = Field(0.25, ge=0, le=1, description="Minimum reward (0 to 1) of a wrong answer to become a negative.")
    template: str = Field("answer", description="Prompt template of a question to the policy.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature of the answers; above 1 gives unusual answers.")
    max_tokens: int = Field(1024, ge=1, description="Token limit of an answer.")
    batch_size: int = Field(64, ge=1, description="Sequences that the policy samples at a time.")
    frames: int = Field(8, ge=1, description="Frames per video, if the policy's family has no default.")
    contract: Literal["boxed", "box", "answer"] = Field(
        "boxed", description="Format in which `--truth rules` finds an answer's result."
    )
    judge: QueryConfig = nested(QueryConfig, "How the judge that rewards the answers is queried.")
    teacher: QueryConfig = nested(QueryConfig, "How the teacher of `--truth judge:SPEC` is queried.")
    seed: int = Field(0, description="Random seed.")


class BuildConfig(Schema):
    """A set of pairs from a public source."""

    similarity: float = Field(
        0.9, ge=0, le=1, description="Minimum text similarity at which pairs about one image are duplicates; 0: keep all."
    )
    media_folder: bool = Field(
        False, description="Write media to OUT/media, named by content, instead of into the Parquet files."
    )
    download: bool = Field(False, description="Download the files of an hf: source first, if its rows refer to media by path.")
    frames: int = Field(8, ge=1, description="Maximum frames to read from a video given as a folder of frames.")
    images: Path | None = Field(None, description="Folder that paths of media start at; null: that of the source.")
    limit: int | None = Field(None, ge=1, description="Stop after this many pairs; null: all.")
    seed: int = Field(0, description="Random seed.")


class FilterConfig(Schema):
    """Which judgments are unfit as training targets."""

    most_alike: float = Field(
        0.02, ge=0, le=1, description="Largest fraction of judgments with the same first eight words; 1: any number."
    )
    length_fence: float = Field(
        3.0,
        ge=0,
        description="Interquartile ranges of log length beyond the quartiles at which a judgment is an outlier (3: Tukey's "
        '"far out").',
    )
    consistency: str | None = Field(
        None,
        pattern="^[^@]+@.+",
        description="Endpoint that judges whether verdict and reasoning agree, as MODEL@URL, for example "
        "Qwen/Qwen2.5-VL-7B-Instruct@http://HOST/v1; null: none.",
    )


class MatchConfig(Schema):
    """When a training pair and a benchmark row have the same image or text."""

    image_bits: int = Field(
        8, ge=0, le=32, description="Maximum differing bits (of 64) between perceptual hashes of the same image."
    )
    similarity: float = Field(0.7, ge=0.1, le=1, description="Minimum Jaccard similarity of two texts' word trigrams.")
    least_words: int = Field(8, ge=1, description="Texts with fewer words are not compared.")


class MappingConfig(Schema):
    """A source of pairs without a recipe of its own: which of its columns are what. ``a.b.0`` reaches into nested values."""

    name: str = Field(pattern=r"^[a-z0-9_]+$", description="Name of the source: lower-case letters, digits and underscores.")
    url: str = Field("", description="Where the source is published.")
    licence: str = Field("", description="Licence of the source.")
    published: int | None = Field(None, description="Number of rows that the source states; null: unknown.")
    files: list[str] = Field(
        ["**/*.parquet", "**/*.jsonl", "**/*.json", "**/*.csv", "**/*.tsv"],
        description="Patterns of its data files, tried in turn.",
    )
    id: str | None = Field(None, description="Column of the ids; null: ids are hashes of the content.")
    question: str | None = Field(None, description="Column of the question; null: the answers are chats that begin with it.")
    images: list[str] = Field([], description="Columns with an image or a list of images, embedded or as paths.")
    videos: list[str] = Field([], description="Columns with a video or a list of videos, embedded or as paths.")
    chosen: str | None = Field(None, description="Column of the better response.")
    rejected: str | None = Field(None, description="Column of the worse response.")
    responses: list[str] = Field([], description="Two columns, in place of chosen and rejected, or one with a list of answers.")
    preferred: str | None = Field(None, description="Column that names the better of `responses`.")
    first: str = Field("0", description="Value of `preferred` if the first response is better.")
    second: str = Field("1", description="Value of `preferred` if the second response is better.")
    ties: list[str] = Field([], description="Values of `preferred` that name neither response.")
    keep_ties: bool = Field(False, description="Keep ties, and equal scores, as pairs for benchmarks; false: leave them out.")
    scores: list[str] = Field([], description="One column per response, or one with a list: scores, higher is better.")
    ranks: list[str] = Field([], description="In place of scores: ranks, 1 is the best.")
    raters: list[str] = Field(
        [],
        description="In place of preferred: a column per person, or one with a list, of first, second or ties; empty: "
        "not rated.",
    )
    counts: list[str] = Field(
        [],
        description="In place of raters: numbers of votes for the first and the second response, and for ties; two or three "
        "columns, or one with a list.",
    )
    least_agreement: float = Field(
        0.0, ge=0, le=1, description="Pairs are left out if a smaller fraction of the ratings is for their label."
    )
    systems: list[str] = Field(
        [], description="Columns with the names of the models that wrote the responses, in their order, or one with a list."
    )
    truth: str | None = Field(
        None, description="Column of the truth that a rule compares with: an answer, tests, constraints; null: none."
    )
    category: str | None = Field(None, description="Column of the pair's category; null: none.")
    source: str | None = Field(None, description="Column of the pair's source; null: none.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        placed = self.chosen is not None and self.rejected is not None
        labelled = (
            len(self.responses) in (1, 2)
            and [self.preferred is not None, *map(bool, (self.scores, self.ranks, self.raters, self.counts))].count(True) == 1
        )
        is_of_two = self.preferred is not None or bool(self.raters or self.counts)
        if placed == labelled or (labelled and is_of_two and len(self.responses) != 2):
            raise ValueError(
                "give either chosen and rejected, or two responses and preferred, raters or counts, or responses and scores or "
                "ranks"
            )
        if self.least_agreement and not (self.raters or self.counts):
            raise ValueError("least_agreement needs raters or counts")
        if len({self.first, self.second, *self.ties}) < 2 + len(self.ties):
            raise ValueError(f"first, second and ties must be different values, got {[self.first, self.second, *self.ties]}")
        return self
