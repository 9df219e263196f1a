"""What stands in for a card: the model's arithmetic is left out, and its seconds are slept.

On two cores one micro-batch of four sequences over 152,064 entries takes a minute, one rollout batch of 256 x 600 tokens an
hour. None of it is about data. So hidden states are the embeddings of the tokens, a log-prob is the score of its own token
alone, and a rollout is a drawn judgment of about 600 tokens. All shapes, gradients of those weights, optimizer steps,
checkpoints and everything before and after the model are the run's own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

ANSWER_TOKENS = (600, 0.25)  # median, and sigma of its logarithm: r1_reward's judgments fall from 690 to 600 - 615
TOKEN_NATS = 11.9  # ln 152,064


def at_least(seconds: float, function: Callable[[], Any]) -> Any:
    """Return what ``function`` returns, not sooner than after ``seconds``."""
    end = time.perf_counter() + seconds
    result = function()
    time.sleep(max(0.0, end - time.perf_counter()))
    return result


class OwnTokenScore:
    """In place of TRL's fused head: the score of the label alone, [positions]; its other outputs are 0."""

    @staticmethod
    def apply(hidden: Any, weight: Any, bias: Any, labels: Any, temperature: float, *more: Any) -> tuple[Any, ...]:
        scores = (hidden * weight[labels]).sum(-1) / temperature
        zeros = scores.detach() * 0
        return scores - TOKEN_NATS, zeros, zeros, zeros, zeros.bool()


def draw_judgment(dice: random.Random, tokenizer: Any, most: int) -> list[int]:
    """Return the tokens of a judgment in the format of ``r1_reward``, of random words and at most ``most`` tokens."""
    median, sigma = ANSWER_TOKENS
    opening = tokenizer.encode("<think>", add_special_tokens=False)
    ending = tokenizer.encode(f"</think><answer>{dice.randint(1, 2)}</answer>", add_special_tokens=False)
    length = min(most - 1, round(median * dice.lognormvariate(0, sigma))) - len(opening) - len(ending)
    words = [dice.randrange(300, 3000) for _ in range(max(1, length))]
    return [*opening, *words, *ending, tokenizer.eos_token_id][:most]


def install(seconds: dict[str, float]) -> None:
    """Replace the arithmetic of Qwen2.5-VL, of TRL's head and of sampling in this process. ``seconds`` are a card's:
    ``sampling`` for a rollout, ``training`` for a sequence that is trained on."""
    import torch
    import trl.trainer.utils
    from transformers.modeling_outputs import BaseModelOutputWithPast
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
    from trl import GRPOTrainer, SFTTrainer

    from rewardlab.training.policy_gradient.trainer import PolicyTrainer

    def embed(self: Any, input_ids: Any = None, *args: Any, **fields: Any) -> Any:
        return BaseModelOutputWithPast(last_hidden_state=self.get_input_embeddings()(input_ids))

    def sample(self: Any, prompt_ids: list[list[int]], *args: Any, **fields: Any) -> Any:
        time.sleep(seconds["sampling"] * len(prompt_ids))
        dice = random.Random(f"{self.args.seed} {self.state.global_step} {self.accelerator.process_index}")
        tokenizer = self.processing_class.tokenizer
        tokens = [draw_judgment(dice, tokenizer, int(self.max_completion_length)) for _ in prompt_ids]
        return tokens, [[-TOKEN_NATS] * len(row) for row in tokens]

    def pace(loss: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(loss)
        def training(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            rows = self.args.per_device_train_batch_size
            return at_least(seconds["training"] * rows, lambda: loss(self, model, inputs, *args, **kwargs))

        return training

    torch.set_num_threads(1)  # what is left is small, and the cores are the data's
    Qwen2_5_VLModel.forward = embed
    trl.trainer.utils._ChunkedLogProbFunction = OwnTokenScore
    PolicyTrainer._sample_decoder = sample  # type: ignore[method-assign]
    GRPOTrainer._generate_single_turn = sample
    for trainer in (GRPOTrainer, SFTTrainer):
        trainer.compute_loss = pace(trainer.compute_loss)
