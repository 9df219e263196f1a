"""verl's own RewardLoopWorker, whose tokenizers are replaced: its preparation, its requests and its reading are verl's."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

sys.modules["torchvision"] = None  # type: ignore[assignment]  # not needed, and often of another build than torch
from calls import ANSWERS, CHATML, KEY, QUESTION, URL, call
from verl.experimental.reward_loop import reward_loop

Worker: Any = reward_loop.RewardLoopWorker
Worker = getattr(Worker, "__ray_metadata__", SimpleNamespace(modified_class=Worker)).modified_class


class Ids(list[int]):
    """Enough of a tensor of tokens."""

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    def __getitem__(self, index: Any) -> Any:
        return Ids(list.__getitem__(self, index)) if isinstance(index, slice) else list.__getitem__(self, index)

    def sum(self) -> int:
        return sum(self)


class Tokenizer:
    """One token for each character."""

    eos_token, bos_token = "<|im_end|>", None

    def decode(self, ids: Ids) -> str:
        return "".join(map(chr, ids))

    def apply_chat_template(self, chat: list[dict[str, str]], **options: Any) -> str:
        return CHATML.format(question=chat[0]["content"]) + chat[1]["content"] + "<|im_end|>\n"


def worker(engine: str) -> Any:
    made = Worker.__new__(Worker)
    rollout = SimpleNamespace(name=engine)
    made.config = SimpleNamespace(reward=SimpleNamespace(reward_model=SimpleNamespace(rollout=rollout, model_path="judge")))
    made.reward_router_address = URL.replace("http://", f"x:{KEY}@")
    made.input_tokenizer = made.reward_model_tokenizer = Tokenizer()
    return made


def item(answer: str, question: str) -> list[Any]:
    ids = Ids(map(ord, answer))
    prompt = [{"role": "user", "content": question}]
    return [
        SimpleNamespace(
            non_tensor_batch={"raw_prompt": prompt}, batch={"responses": ids, "attention_mask": Ids([1] * len(ids))}
        )
    ]


def scores(engine: str, question: str = QUESTION) -> list[float]:
    async def both() -> list[float]:
        calls = [worker(engine).compute_score_disrm(item(answer, question)) for answer in ANSWERS]
        return [result["reward_score"] for result in await asyncio.gather(*calls)]

    return asyncio.run(both())


if __name__ == "__main__":
    call("compute_score_disrm, vllm", lambda: scores("vllm"), [-1, 1])
    call("compute_score_disrm, sglang", lambda: scores("sglang"), [-1, 1])
    call("compute_score_disrm, marks of an image that stayed behind", lambda: scores("vllm", "<image>Which?"), refused="422")
