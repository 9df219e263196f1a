"""Scorers of diffusion trainers: flow_grpo's batches and verl-omni's single samples, judged by a real server.

With FLOW_GRPO or VERL_OMNI, the folder of a checkout, their own code calls the scorers.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from rewardlab.data.images import decode_image
from rewardlab.errors import DataError, EndpointError
from rewardlab.integrations import flow_grpo, verl_omni
from rewardlab.serving.app import create_app
from rewardlab.serving.limits import Limits
from rewardlab.serving.service import GroupRules, ServerOptions
from rewardlab.types import Choice, Message
from rewardlab.verdicts.parse import format_verdict
from tests.support.servers import running
from tests.support.serving import judge_of

ROOT = Path(__file__).parents[2]
WHITE, BLACK = "A white square", "A black square"
SIZE = 4  # of a group
RANKS = (-1.0, -1 / 3, 1 / 3, 1.0)  # net win rates in a group of four


def by_brightness(prompt: tuple[Message, ...], draw: int) -> str:
    """Prefer the response whose last picture is brighter, or darker if the prompt wants black; none if it wants red."""
    text, shown = "", dict[str, int]()
    for part in prompt[0].parts:
        text += part.text
        if part.image is not None and "Response 1" in text:
            name = "Response 2" if "Response 2" in text else "Response 1"
            shown[name] = decode_image(part.image).convert("RGB").getpixel((1, 1))[0]  # type: ignore[index]
    if "red" in text:
        return "I cannot tell"
    first, second = (-shown[name] if "black" in text else shown[name] for name in ("Response 1", "Response 2"))
    return format_verdict(Choice.FIRST if first >= second else Choice.SECOND, "so it is")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    rules, limits = GroupRules(group_size=SIZE), Limits(group_timeout=2)
    with running(create_app(judge_of(by_brightness), ServerOptions(rules=rules, limits=limits))) as address:
        yield address


@pytest.fixture(autouse=True)
def settings(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of the server that do not wait for a failing judge, in a single process."""
    monkeypatch.setenv("REWARDLAB_URL", url)
    monkeypatch.setenv("REWARDLAB_DEADLINE_S", "4")
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, Any], list[Any]]]:
    """A server that gives one answer to every request, and the bodies of these."""
    bodies: list[Any] = []
    answer: list[tuple[int, Any]] = []

    async def respond(request: Request) -> JSONResponse:
        bodies.append(await request.json())
        status, content = answer[0]
        return JSONResponse(content, status)

    routes = [Route(path, respond, methods=["POST"]) for path in ("/v1/rewards", "/pooling")]
    with running(Starlette(routes=routes)) as address:

        def script(status: int, content: Any) -> list[Any]:
            monkeypatch.setenv("REWARDLAB_URL", address)
            answer[:] = [(status, content)]
            return bodies

        yield script


def gray(*levels: int) -> torch.Tensor:
    """Return images (N, 3, 32, 32) of floats in 0..1."""
    return torch.tensor(levels).view(-1, 1, 1, 1).expand(-1, 3, 32, 32) / 255


LEVELS = (200, 10, 120, 60)
FORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "floats": lambda images: images,
    "half floats": lambda images: images.bfloat16(),
    "uint8": lambda images: (images * 255).round().to(torch.uint8),
    "array": lambda images: (images * 255).round().to(torch.uint8).numpy().transpose(0, 2, 3, 1),
    "PIL": lambda images: [Image.fromarray(image) for image in FORMS["array"](images)],
    "videos": lambda images: torch.stack([torch.zeros_like(images), images], 1),  # (N, 2, 3, 32, 32), black at first
}


@pytest.mark.parametrize("form", FORMS)
def test_flow_grpo_compares_images_of_one_prompt(form: str) -> None:
    """Two prompts in turn, which want opposite pictures."""
    images = FORMS[form](gray(*(level for level in LEVELS for _ in range(2))))
    rewards, info = flow_grpo.judge_score()(images, [WHITE, BLACK] * SIZE, [{}] * 2 * SIZE)
    assert info == {}
    assert rewards[::2] == pytest.approx([1, -1, 1 / 3, -1 / 3])
    assert rewards[1::2] == pytest.approx([-1, 1, -1 / 3, 1 / 3])


def test_flow_grpo_compares_an_image_with_its_anchor(tmp_path: Path) -> None:
    """As in evaluation, where prompts have one image each."""
    anchor, good = tmp_path / "anchor.png", tmp_path / "good.png"
    for path in (anchor, good):
        Image.new("RGB", (32, 32), (100, 100, 100)).save(path)
    rewards, _ = flow_grpo.judge_score()(gray(200, 200), (WHITE, BLACK), [{"anchor": str(anchor)}] * 2)
    assert rewards == [1, -1]
    anchor.write_bytes(b"no picture")
    with pytest.raises(EndpointError, match="no reward for 1 of 2"):
        flow_grpo.judge_score()(gray(200, 200), [WHITE] * 2, [{"anchor": str(anchor)}, {"anchor": str(good)}])


def test_flow_grpo_pays_no_image_that_was_not_judged(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    score = flow_grpo.judge_score()
    with pytest.raises(EndpointError, match="no reward for 2 of 2"):
        score(gray(10, 20), ["A red square"] * 2, [{}] * 2)
    with pytest.raises(EndpointError, match=r"no reward for 1 of 3.*needs an 'anchor'"):
        score(gray(10, 20, 30), [WHITE, WHITE, BLACK], [{}] * 3)
    bodies = scripted(200, {"rewards": [1.0, None]})
    with pytest.raises(EndpointError, match="no reward for 1 of 2"):
        flow_grpo.judge_score()(gray(10, 20), [WHITE] * 2, [{}] * 2)
    assert len(bodies) == 3  # a null is sampled again
    scripted(503, {"error": "the engine restarts", "status": "engine"})
    monkeypatch.setenv("REWARDLAB_DEADLINE_S", "0.5")
    with pytest.raises(EndpointError, match="no reward for 2 of 2"):
        flow_grpo.judge_score()(gray(10, 20), [WHITE] * 2, [{}] * 2)
    with pytest.raises(EndpointError, match="no reward for 2 of 2"):
        flow_grpo.judge_score("http://127.0.0.1:9")(gray(10, 20), [WHITE] * 2, [{}] * 2)


BROKEN: dict[str, tuple[Any, str]] = {
    "not a number": (torch.stack([gray(10)[0], torch.full((3, 32, 32), torch.nan)]), "image 1: pixels from nan"),
    "-1..1": (gray(10, 20) * 2 - 1, r"image 0: pixels from -0\.9.*expected floats in 0\.\.1"),
    "latents": (torch.rand(2, 16, 4, 4), r"image 0: values of float32, shape \(16, 4, 4\), are no picture"),
    "other integers": (gray(10, 20).to(torch.int32), "image 0: values of int32"),
    "another number": (gray(10), "1 images for 2 prompts"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_one_broken_image_ends_the_call_before_anything_is_sent(name: str, scripted: Any) -> None:
    bodies = scripted(200, {"rewards": [1.0, 1.0]})
    images, sentence = BROKEN[name]
    with pytest.raises(DataError, match=sentence):
        flow_grpo.judge_score()(images, [WHITE] * 2, [{}] * 2)
    assert bodies == []


BATCH = """
import asyncio, json, sys, torch
from rewardlab.integrations.flow_grpo import judge_score
from rewardlab.integrations.verl_omni import compute_score
levels, prompts = json.loads(sys.argv[1])
images = torch.tensor(levels, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 32, 32)
async def scores():
    return await asyncio.gather(*(compute_score("demo", *sample) for sample in zip(images, prompts)))
"""
PROCESSES = {
    "flow_grpo": "print(json.dumps(judge_score()(images / 255, prompts, [{}] * len(prompts))[0]))",
    "verl_omni": "print(json.dumps([result['score'] for result in asyncio.run(scores())]))",
}


def in_processes(code: str, arguments: list[Any]) -> list[Any]:
    """Return what each process of a run prints, which each get one argument."""
    settings = {**os.environ, "WORLD_SIZE": str(len(arguments)), "REWARDLAB_DEADLINE_S": "60", "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen([sys.executable, "-c", code, json.dumps(argument)], stdout=subprocess.PIPE, text=True, env=settings)
        for argument in arguments
    ]
    told = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started)
    return [json.loads(text) for text in told]


@pytest.fixture
def patient_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    rules, limits = GroupRules(group_size=SIZE), Limits(group_timeout=60)  # two processes start one after the other
    with running(create_app(judge_of(by_brightness), ServerOptions(rules=rules, limits=limits))) as address:
        monkeypatch.setenv("REWARDLAB_URL", address)
        yield address


@pytest.mark.slow
@pytest.mark.usefixtures("patient_url")
@pytest.mark.parametrize("name", PROCESSES)
def test_samples_of_two_processes_are_compared(name: str) -> None:
    """The first has one image of white and three of black, the second the others."""
    batches = [[[60, 200, 10, 120], [WHITE, BLACK, BLACK, BLACK]], [[10, 200, 60, 120], [WHITE, WHITE, BLACK, WHITE]]]
    first, second = in_processes(BATCH + PROCESSES[name], batches)
    assert first == pytest.approx([-1 / 3, -1, 1, -1 / 3])
    assert second == pytest.approx([-1, 1, 1 / 3, 1 / 3])


def omni(image: Any, prompt: str = WHITE, **info: Any) -> Any:
    return verl_omni.compute_score("demo", image, "x", {"prompt": prompt, **info})


async def together(*calls: Any) -> list[Any]:
    return [result if isinstance(result, BaseException) else result["score"] for result in await gathered(*calls)]


async def gathered(*calls: Any) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def test_verl_omni_compares_samples_that_come_one_by_one() -> None:
    """Of two prompts in turn; what the manager adds to the call is ignored."""
    images = FORMS["uint8"](gray(*LEVELS))
    scores = asyncio.run(together(*(omni(image, prompt) for image in images for prompt in (WHITE, BLACK))))
    assert scores[::2] == pytest.approx([1, -1, 1 / 3, -1 / 3])
    assert scores[1::2] == pytest.approx([-1, 1, -1 / 3, 1 / 3])
    calls = [verl_omni.compute_score("demo", images[0], WHITE, reward_router_address="a:1", model_name="m") for _ in images]
    results = asyncio.run(gathered(*calls))
    assert results == [{"score": 0.0}] * SIZE


def test_verl_omni_sends_frames_of_a_video(scripted: Any) -> None:
    bodies = scripted(200, {"data": [{"data": [0.5]}]})
    video = FORMS["uint8"](gray(*range(17)))
    for clip in (video, video.transpose(0, 1)):  # frames or channels first
        assert asyncio.run(together(omni(clip))) == [0.5]
        parts = bodies[-1]["messages"][1]["content"]
        frames = [base64.b64decode(part["image_url"]["url"].partition(",")[2]) for part in parts]
        assert [decode_image(frame).getpixel((1, 1))[0] for frame in frames] == [0, 2, 4, 6, 9, 11, 13, 16]  # type: ignore[index]


def test_verl_omni_sends_the_images_of_an_edit_and_an_anchor() -> None:
    source, anchor = Image.new("RGB", (32, 32), "white"), Image.new("RGB", (32, 32), (100, 100, 100))
    dark, bright = FORMS["uint8"](gray(10, 200))
    calls = [omni(image, images=[source], anchor=anchor) for image in (dark, bright)]
    assert asyncio.run(together(*calls)) == [-1, 1]
    group = [omni(image, BLACK, images=np.array([source, None], dtype=object)[:1]) for image in (dark, bright) * 2]
    assert asyncio.run(together(*group)) == pytest.approx([2 / 3, -2 / 3] * 2)


@pytest.mark.slow
def test_verl_omni_pays_no_sample_that_was_not_judged(scripted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    images = FORMS["uint8"](gray(*LEVELS))

    def failures(*calls: Any) -> list[str]:
        results = asyncio.run(gathered(*calls))
        assert {type(result) for result in results} == {EndpointError}
        return [str(result) for result in results]

    assert len(failures(*(omni(image, "A red square") for image in images))) == SIZE
    failures(*(omni(image) for image in images[:2]))  # the others of its group do not come
    scripted(503, {"error": "the engine restarts", "status": "engine"})
    monkeypatch.setenv("REWARDLAB_DEADLINE_S", "0.5")
    failures(omni(images[0]))
    scripted(200, {"data": [{"data": [None]}]})
    assert "the answer has no reward" in failures(omni(images[0]))[0]
    monkeypatch.setenv("REWARDLAB_URL", "http://127.0.0.1:9")
    failures(omni(images[0]))


def test_verl_omni_refuses_latents_and_samples_without_a_prompt() -> None:
    with pytest.raises(DataError, match=r"torch\.float32; expected pixels of uint8.*latents"):
        asyncio.run(omni(gray(10)[0]))
    with pytest.raises(DataError, match="num_frames is 0"):
        asyncio.run(verl_omni.compute_score("demo", FORMS["uint8"](gray(10))[0], WHITE, num_frames=0))
    with pytest.raises(DataError, match="the prompt is"):
        asyncio.run(verl_omni.compute_score("demo", FORMS["uint8"](gray(10))[0], ""))


def checkout(name: str) -> Path:
    """Return the folder of a trainer's code, or skip the test."""
    if name not in os.environ:
        pytest.skip(f"needs {name}, the folder of its checkout")
    return Path(os.environ[name])


def module_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"checkout_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def flow_grpo_rewards() -> Any:
    """flow_grpo's own file, with the judge in the place of a scorer that exchanges pickles."""
    rewards = module_of(checkout("FLOW_GRPO") / "flow_grpo" / "rewards.py")
    rewards.deqa_score_remote = flow_grpo.judge_score
    return rewards


@pytest.mark.extra("torch")
def test_flow_grpo_itself_adds_up_the_rewards(flow_grpo_rewards: Any, scripted: Any) -> None:
    score = flow_grpo_rewards.multi_score("cpu", {"deqa": 2.0})
    details, _ = score(gray(*LEVELS), (WHITE,) * SIZE, ({},) * SIZE, only_strict=True)
    assert details["deqa"] == pytest.approx([1, -1, 1 / 3, -1 / 3])
    assert details["avg"] == pytest.approx([2, -2, 2 / 3, -2 / 3])
    beside = flow_grpo_rewards.multi_score("cpu", {"jpeg_compressibility": 1.0, "deqa": 1.0})
    details, _ = beside(gray(*LEVELS), [WHITE] * SIZE, [{}] * SIZE)
    assert details["avg"] == pytest.approx(np.array(details["deqa"]) + details["jpeg_compressibility"])
    scripted(200, {"rewards": [1.0, None, 0.0, 0.0]})
    failing = flow_grpo_rewards.multi_score("cpu", {"deqa": 1.0})
    with pytest.raises(EndpointError, match="no reward for 1 of 4"):
        failing(gray(*LEVELS), [WHITE] * SIZE, [{}] * SIZE)


RANK = """
import json, sys
from tests.integrations.test_generated_pictures import WHITE, checkout, flow_grpo, gray, module_of
rewards = module_of(checkout("FLOW_GRPO") / "flow_grpo" / "rewards.py")
rewards.deqa_score_remote = flow_grpo.judge_score
levels, prompts = json.loads(sys.argv[1])
print(json.dumps(rewards.multi_score("cpu", {"deqa": 1.0})(gray(*levels), prompts, [{}] * len(prompts))[0]["avg"]))
"""


@pytest.mark.slow
@pytest.mark.extra("torch")
@pytest.mark.usefixtures("patient_url")
def test_flow_grpo_itself_over_two_processes() -> None:
    """Its sampler deals a group over the processes, each scores its part, its tracker makes the advantages."""
    folder = checkout("FLOW_GRPO")
    tree = ast.parse((folder / "scripts" / "train_sd3.py").read_text("utf-8"))
    [sampler] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "DistributedKRepeatSampler"]
    names: dict[str, Any] = {"torch": torch, "Sampler": torch.utils.data.Sampler}
    exec(compile(ast.Module([sampler], []), "train_sd3.py", "exec"), names)
    texts = [f"{color} number {n}" for n in range(5) for color in (WHITE, BLACK)]
    dealt = [next(iter(names["DistributedKRepeatSampler"](texts, 6, SIZE, 2, rank))) for rank in range(2)]
    prompts = [[texts[index] for index in batch] for batch in dealt]
    assert set(prompts[0]) & set(prompts[1])  # groups are spread over both
    levels = [[20 * n + 5 for n in range(6)], [20 * n + 15 for n in range(6)]]
    rewards = in_processes(RANK, [list(part) for part in zip(levels, prompts, strict=True)])
    everything = [row for part in zip(prompts, levels, rewards, strict=True) for row in zip(*part, strict=True)]
    for prompt in {text for text, _, _ in everything}:
        group = sorted((-level if "black" in prompt else level, reward) for text, level, reward in everything if text == prompt)
        assert [reward for _, reward in group] == pytest.approx(RANKS)
    tracker = module_of(folder / "flow_grpo" / "stat_tracking.py").PerPromptStatTracker()
    advantages = tracker.update([text for text, _, _ in everything], [reward for _, _, reward in everything])
    assert advantages == pytest.approx(np.concatenate(rewards) / (np.std(RANKS) + 1e-4))


@pytest.fixture
def managers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """verl-omni's own reward managers, on stand-ins for the four names of verl that they import."""
    folder = checkout("VERL_OMNI") / "verl_omni"

    class Base:
        def __init__(self, config: Any, tokenizer: Any, compute_score: Any) -> None:
            self.config, self.tokenizer, self.compute_score = config, tokenizer, compute_score

    def load(path: str, name: str) -> Any:
        return getattr(importlib.import_module(path.removeprefix("pkg://")), name)

    names: dict[str, dict[str, Any]] = {
        "verl": {"DataProto": list},
        "verl.experimental": {},
        "verl.experimental.reward_loop": {},
        "verl.experimental.reward_loop.reward_manager": {},
        "verl.experimental.reward_loop.reward_manager.base": {"RewardManagerBase": Base},
        "verl.utils": {},
        "verl.utils.reward_score": {"default_compute_score": None},
        "verl.utils.import_utils": {"load_extern_object": load},
        "verl_omni": {"__path__": [str(folder)]},
        "verl_omni.reward_loop": {"__path__": [str(folder / "reward_loop")]},
        "verl_omni.reward_loop.reward_manager": {"__path__": [str(folder / "reward_loop" / "reward_manager")]},
    }
    for name, values in names.items():
        module = ModuleType(name)
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, module)
    yield importlib.import_module("verl_omni.reward_loop.reward_manager.multi")
    for name in [name for name in sys.modules if name.startswith("verl_omni.")]:
        monkeypatch.delitem(sys.modules, name, raising=False)


def omni_sample(image: torch.Tensor, prompt: str) -> list[Any]:
    rows = {"data_source": "demo", "reward_model": {"ground_truth": prompt}, "extra_info": {}}
    return [SimpleNamespace(batch={"responses": image}, non_tensor_batch=rows, meta_info={"validate": False})]


class Settings(dict[str, Any]):
    """A config whose keys are attributes too, as omegaconf's."""

    __getattr__ = dict.__getitem__


def omni_config(**functions: Any) -> Any:
    rollout = Settings(pipeline=Settings(output_type="image"), val_kwargs=Settings(pipeline=Settings()))
    return Settings(actor_rollout_ref=Settings(rollout=rollout), reward=Settings(reward_functions=functions))


JUDGE = {"path": "pkg://rewardlab.integrations.verl_omni", "name": "compute_score", "weight": 2.0, "required": True}


@pytest.mark.extra("torch")
def test_verl_omni_itself_calls_the_scorer(managers: Any, scripted: Any) -> None:
    """Its manager of one reward and that of several; an error goes through both, unless the reward is not required."""
    images = FORMS["uint8"](gray(*LEVELS))
    single = managers.VisualRewardManager(omni_config(), None, verl_omni.compute_score)
    several = managers.MultiVisualRewardManager(omni_config(judge=JUDGE), None, None)

    async def scores(manager: Any, prompt: str) -> list[Any]:
        return await asyncio.gather(*(manager.run_single(omni_sample(image, prompt)) for image in images))

    results = asyncio.run(scores(single, WHITE))
    assert [result["reward_score"] for result in results] == pytest.approx([1, -1, 1 / 3, -1 / 3])
    assert results[0]["reward_extra_info"] == {}
    results = asyncio.run(scores(several, BLACK))
    assert [result["reward_score"] for result in results] == pytest.approx([-2, 2, -2 / 3, 2 / 3])
    assert results[0]["reward_extra_info"]["reward/judge"] == pytest.approx(-1)
    with pytest.raises(EndpointError, match="no reward for a sample"):
        asyncio.run(scores(single, "A red square"))
    scripted(422, {"error": "x", "status": "input"})
    with pytest.raises(RuntimeError, match=r"'judge' failed.*no reward for a sample"):
        asyncio.run(several.run_single(omni_sample(images[0], WHITE)))
    lenient = managers.MultiVisualRewardManager(omni_config(judge={**JUDGE, "required": False}), None, None)
    result = asyncio.run(lenient.run_single(omni_sample(images[0], WHITE)))
    assert result["reward_score"] == 0.0  # as our page warns


@pytest.mark.extra("torch")
def test_verl_omnis_own_client_is_refused(url: str) -> None:
    """The one that exchanges pickles: an error there too, not a score."""
    client = module_of(checkout("VERL_OMNI") / "verl_omni" / "utils" / "reward_score" / "http_scorer_client.py")

    async def score() -> Any:
        try:
            return await client.compute_score(gray(10)[0].mul(255).to(torch.uint8), WHITE, f"{url}/v1/rewards", max_retries=0)
        finally:
            await client.compute_score._session.close()

    with pytest.raises(RuntimeError, match="HTTP 4"):
        asyncio.run(score())
