"""PAG on judges (arXiv 2506.10406): judge, verify the judgment, revise it only where the verification says that it is wrong.

All in one rollout, whose user's turns are context and not trained on. Advantages start anew at every turn and are whitened
apart for judging and for verifying.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rewardlab.metrics.running import Mean
from rewardlab.models.families import select_fields
from rewardlab.prompts.verification import REVISE, VERIFY, read_verification
from rewardlab.rl.self_verification import VERIFICATION, at_turn_ends, segments, turn_rewards
from rewardlab.training.policy_gradient.critic import ActorCriticTrainer


@dataclass
class Dialogue:
    """The tokens after the prompt, which turn of the policy's each belongs to (0: the user's), and its own turns apart."""

    tokens: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    own: list[list[int]] = field(default_factory=list)

    def hear(self, tokens: list[int]) -> None:
        self.tokens += tokens
        self.turns += [0] * len(tokens)

    def say(self, tokens: list[int]) -> None:
        self.own.append(tokens)
        self.tokens += tokens
        self.turns += [len(self.own)] * len(tokens)


class MultiTurnTrainer(ActorCriticTrainer):
    """ActorCriticTrainer on verified judgments; ``max_completion_length`` bounds each turn."""

    def _user_turn(self, content: str) -> list[int]:
        """The tokens from the end of the policy's turn to the beginning of its next one, as the chat template has them."""
        marker = "\u241e"
        chat = [("user", "."), ("assistant", marker), ("user", content)]
        text = self.processing_class.apply_chat_template(
            [{"role": role, "content": [{"type": "text", "text": said}]} for role, said in chat],
            tokenize=False,
            add_generation_prompt=True,
        )
        ids = list(self._tokenizer(text.partition(marker)[2], add_special_tokens=False)["input_ids"])
        return ids[1:] if ids[0] in self.eos_token_ids else ids  # the policy has said its end token itself

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: Any, multimodal_fields: dict[str, Any], *args: Any, **kwargs: Any
    ) -> tuple[list[list[int]], Any]:
        self._dialogues = [Dialogue() for _ in prompt_ids]
        answering = list(range(len(prompt_ids)))

        def answer(asked: list[int]) -> None:
            rows = asked or [0]  # where another process still has something to say, this one takes part and is not heard
            so_far = [prompt_ids[row] + self._dialogues[row].tokens for row in rows]
            fields = select_fields(multimodal_fields, images, rows, [len(ids) for ids in so_far])
            shown = None if images is None else [images[row] for row in rows]
            said, _ = super(MultiTurnTrainer, self)._generate_single_turn(so_far, shown, fields, *args, **kwargs)
            for row, tokens in zip(asked, said, strict=bool(asked)):
                self._dialogues[row].say(tokens)

        answer(answering)
        for content, goes_on in ((VERIFY, self._ended), (REVISE, self._found_wrong)):
            answering = [row for row in answering if goes_on(self._dialogues[row])]
            if self.everywhere(not answering):
                break
            for row in answering:
                self._dialogues[row].hear(self._user_turn(content))
            answer(answering)
        return [dialogue.tokens for dialogue in self._dialogues], None

    def _ended(self, dialogue: Dialogue, turn: int = -1) -> bool:
        return dialogue.own[turn][-1] in self.eos_token_ids

    def _said(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def _found_wrong(self, dialogue: Dialogue) -> bool:
        return self._ended(dialogue) and read_verification(self._said(dialogue.own[1])) is False

    def _generate(self, prompts: list[Any]) -> Any:
        """TRL's tuple, with the first judgments as the completions, and the user's turns masked."""
        ids, completion_ids, _, _, *rest = super()._generate(prompts)
        mask = [[int(turn > 0) for turn in dialogue.turns] for dialogue in self._dialogues]
        completions = [[{"role": "assistant", "content": self._said(dialogue.own[0])}] for dialogue in self._dialogues]
        return ids, completion_ids, mask, completions, *rest

    def _calculate_rewards(self, inputs: list[dict[str, Any]], prompts: Any, completions: Any, ids: Any) -> Tensor:
        """[global N, functions] of the first judgments; what each turn earns is kept in ``_turn_rewards_NK``."""
        own, weights = self._own(len(inputs)), self.reward_weights.to(self.accelerator.device)
        firsts = super()._calculate_rewards(inputs, prompts, completions, [one.own[0] for one in self._dialogues])
        first_right = [right > 0 for right in self._right]
        last = [one.own[-1] if len(one.own) > VERIFICATION else [] for one in self._dialogues]
        again = super()._calculate_rewards(
            [{**row, "unfinished": not tokens, "turn": "revised"} for row, tokens in zip(inputs, last, strict=True)],
            prompts,
            [[{"role": "assistant", "content": self._said(tokens)}] for tokens in last],
            last,
        )
        revised_right = [right > 0 for right in self._right]
        says = [
            read_verification(self._said(one.own[1])) if len(one.own) > 1 and self._ended(one, 1) else None
            for one in self._dialogues
        ]
        revised = (again * weights).nansum(1)[own].tolist()
        self._turn_rewards_NK = turn_rewards(
            (firsts * weights).nansum(1)[own].tolist(),
            first_right,
            says,
            [reward if tokens else None for reward, tokens in zip(revised, last, strict=True)],
            bonus=self.args.revision_bonus,
        )
        final = [b if tokens else a for a, b, tokens in zip(first_right, revised_right, last, strict=True)]
        self._count(verification_metrics(first_right, says, final, [bool(tokens) for tokens in last]))
        self._rewards, self._right = firsts, [float(right) for right in first_right]
        return firsts

    def finish_batch(self, batch: dict[str, Any], inputs: list[dict[str, Any]]) -> None:
        turns_NT = torch.zeros_like(batch["completion_mask"])
        for row, dialogue in enumerate(self._dialogues):
            turns_NT[row, : len(dialogue.turns)] = torch.tensor(dialogue.turns)
        batch |= {"turns": turns_NT, "turn_rewards": self._turn_rewards_NK.to(turns_NT.device)}
        super().finish_batch(batch, inputs)

    def _token_rewards(self, batch: dict[str, Any], rewards_N: Tensor, mask_NT: Tensor) -> Tensor:
        return at_turn_ends(batch["turn_rewards"], batch["turns"])

    def segments(self, batch: dict[str, Any]) -> list[Tensor]:
        return segments(batch["turns"])

    def roles(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        verifying_NT = (batch["turns"] == VERIFICATION).long()
        return {"judging/": batch["loss_mask"] * (1 - verifying_NT), "verifying/": batch["loss_mask"] * verifying_NT}


def verification_metrics(
    right: list[bool], says_correct: list[bool | None], final: list[bool], revised: list[bool]
) -> dict[str, float]:
    """What PAG's collapses show in: a verifier that always says one thing, a first judgment that slackens, free flips."""
    total = max(1, len(right))
    of_right = [said for said, ok in zip(says_correct, right, strict=True) if ok]
    of_wrong = [said for said, ok in zip(says_correct, right, strict=True) if not ok]
    metrics = {
        "verify/unclear_frac": sum(said is None for said in says_correct) / total,
        "verify/accuracy": (sum(s is True for s in of_right) + sum(s is False for s in of_wrong)) / total,
        "verify/revised_frac": sum(revised) / total,
        "verify/final_accuracy": sum(final) / total,
        "verify/gained_frac": sum(b and not a for a, b in zip(right, final, strict=True)) / total,
        "verify/lost_frac": sum(a and not b for a, b in zip(right, final, strict=True)) / total,
    }
    if of_right:
        metrics["verify/right_recognised"] = Mean(sum(said is True for said in of_right) / len(of_right), len(of_right))
    if of_wrong:
        metrics["verify/wrong_recognised"] = Mean(sum(said is False for said in of_wrong) / len(of_wrong), len(of_wrong))
    return metrics
