"""A local checkpoint through vLLM in this process; behind a server of its own see :mod:`rewardlab.samplers.vllm_server`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rewardlab.data.images import decode_image
from rewardlab.errors import CheckpointError, ConfigError
from rewardlab.models.checkpoints import check_folder
from rewardlab.models.families import vision_token_ids
from rewardlab.samplers.base import VLLM, EngineArgsParser, EngineOptions, Sampler, SamplingParams, prompt_seed
from rewardlab.samplers.hf import chat_of, special_tokens, thinking_opening
from rewardlab.samplers.vllm_server import FORBIDDEN, TOP_LOGPROBS, VLLMServerSampler, margin_of
from rewardlab.types import Completion, FinishReason, Message
from rewardlab.verdicts.parse import continuation


def engine_args(text: str) -> dict[str, Any]:
    """Return options of ``vllm serve`` as keyword arguments of its LLM. Raise ConfigError for others."""
    from vllm.engine.arg_utils import EngineArgs

    parser = EngineArgs.add_cli_args(EngineArgsParser(text, "options of vllm serve"))
    defaults = vars(parser.parse_args([]))
    return {name: value for name, value in vars(parser.parse_args(shlex.split(text))).items() if value != defaults[name]}


class VLLMSampler:
    """Samples from ``vllm.LLM``. A prompt is read once for all its draws, and what several begin with once for all of them.

    Log-probs are the model's own at temperature 1, before suppression and top_p.
    """

    def __init__(self, llm: Any, *, name: str = VLLM) -> None:
        self._llm, self._name = llm, name
        self._tokenizer = llm.get_tokenizer()
        self._specials = special_tokens(self._tokenizer)
        self._opening = thinking_opening(self._tokenizer)
        self._bias = dict.fromkeys(vision_token_ids(llm.llm_engine.model_config.hf_config), FORBIDDEN)

    @staticmethod
    def load(path: str | Path, *, args: str = "") -> VLLMSampler:
        """Raise CheckpointError if vLLM cannot load it, ConfigError if vLLM is not installed."""
        check_folder(str(path))
        try:
            import vllm
        except ModuleNotFoundError as error:
            raise ConfigError(f"{VLLM}:{path} needs vLLM ({error.name} is missing): pip install 'rewardlab[vllm]'") from error
        options = {"enable_prefix_caching": True, "disable_log_stats": True} | engine_args(args)
        try:
            return VLLMSampler(vllm.LLM(model=str(path), **options), name=f"{VLLM}:{path}")
        except (OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{VLLM}:{path}: vLLM cannot load it ({error})") from error

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_batch_invariant(self) -> bool:
        return True  # every request has a generator of its own

    def check(self) -> None:
        """Do nothing: a loaded model always answers."""

    def _requests(self, prompts: Sequence[Sequence[Message]], beginnings: Sequence[str]) -> list[dict[str, Any]]:
        requests, decode = [], cache(decode_image)  # chats of one prompt share its images
        for prompt, beginning in zip(prompts, beginnings, strict=True):
            text = self._tokenizer.apply_chat_template(
                chat_of(prompt, self._specials), tokenize=False, add_generation_prompt=True
            )
            images = [decode(image) for message in prompt for image in message.images]
            text += continuation(beginning, self._opening)
            requests.append({"prompt": text, **({"multi_modal_data": {"image": images}} if images else {})})
        return requests

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        """Raise MediaError for an image that cannot be decoded."""
        from vllm import SamplingParams as Params

        drawn = [
            Params(
                n=params.num_samples if params.temperature > 0 else 1,
                temperature=params.temperature,
                top_p=params.top_p,
                max_tokens=params.max_tokens,
                seed=prompt_seed(params.seed, prompt) if params.temperature > 0 else None,
                logprobs=0,
                logit_bias=self._bias or None,
            )
            for prompt in prompts
        ]
        answers = self._llm.generate(self._requests(prompts, [""] * len(prompts)), drawn, use_tqdm=False)
        rows = [
            [_completion(output, len(answer.prompt_token_ids), self._opening) for output in answer.outputs]
            for answer in answers
        ]
        # Of greedy draws vLLM makes one; they are all the same.
        return rows if params.temperature > 0 else [row * params.num_samples for row in rows]

    def verdict_margins(
        self, prompts: Sequence[tuple[Message, ...]], beginnings: Sequence[str]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the margins of :meth:`rewardlab.samplers.hf.HFSampler.verdict_margins`, from the likeliest
        :data:`TOP_LOGPROBS` tokens."""
        from vllm import SamplingParams as Params

        params = Params(temperature=0.0, max_tokens=1, logprobs=TOP_LOGPROBS)
        answers = self._llm.generate(self._requests(prompts, beginnings), params, use_tqdm=False)
        likeliest = [answer.outputs[0].logprobs[0].values() for answer in answers]
        margins = [margin_of({token.decoded_token: token.logprob for token in tokens}) for tokens in likeliest]
        values = torch.tensor(margins, dtype=torch.float64).reshape(-1, 2)
        return values[:, 0], values[:, 1]


def _completion(answer: Any, num_prompt_tokens: int, opening: str) -> Completion:
    finish = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}.get(answer.finish_reason, FinishReason.ERROR)
    logprobs = tuple(row[token].logprob for row, token in zip(answer.logprobs, answer.token_ids, strict=True))
    error = f"vLLM ended it: {answer.finish_reason}" if finish is FinishReason.ERROR else ""
    ids = tuple(answer.token_ids)
    return Completion(opening + answer.text, finish, len(ids), num_prompt_tokens, ids, logprobs, error=error)


def open_sampler(target: str, options: EngineOptions) -> Sampler:
    """Return a sampler of a checkpoint folder or hub id, behind a watched server if it is to be restarted."""
    if options.restart_after_s is None:
        return VLLMSampler.load(target, args=options.query.engine_args)
    return VLLMServerSampler.load(target, args=options.query.engine_args, deadline_s=options.restart_after_s, logprobs=False)
