"""How fast a planned run is: whether its pictures come fast enough, who should draw the rollouts, what evaluating costs.

Each function returns the finding of one question. Seconds are those of a card that the finding names.
"""

from __future__ import annotations

from collections.abc import Iterator

from rewardlab.health.cards import GraphicsCard
from rewardlab.health.decoding import decoding_load, decoding_sentence, decoding_time
from rewardlab.health.feeding import feeding_of, measure_decoding
from rewardlab.health.finding import Finding, Outcome
from rewardlab.health.memory import Setup
from rewardlab.health.step_time import evaluation_seconds, training_seconds
from rewardlab.health.units import hours_text
from rewardlab.processes import num_cores

A_MACHINE = 8  # processes that share a machine's cores and memory, at most
MOST_EVALUATING = 0.05  # of the time, that evaluating may take


def speed_findings(
    setup: Setup, card: GraphicsCard, *, is_given: bool, steps: int | None = None, price: float | None = None
) -> Iterator[Finding]:
    """Yield the findings on a run's speed on ``card``; where nobody has said which it is, ``is_given`` is False and nothing is
    said of pictures. ``steps``: optimizer steps of the run, where they are known; ``price``: US dollars of a card's hour."""
    if is_given:
        yield _pictures(setup, card)
    note = "" if is_given else " (--card says which card it is; an H100 is assumed)"
    yield from _sampling(setup, card, note)
    yield from _evaluation(setup, card, note, steps)
    if steps is not None:
        yield Finding("time", "ok", _time_sentence(setup, card, steps, price) + note)


def _time_sentence(setup: Setup, card: GraphicsCard, steps: int, price: float | None) -> str:
    """Return the hours of a run, an estimate, and what they cost."""
    one = step_seconds(setup, card)
    seconds = steps * one
    if setup.evaluation is not None:
        every = setup.config.evaluation.every_steps  # type: ignore[attr-defined]
        seconds += (1 + -(-steps // every)) * evaluation_seconds(setup, card)
    processes = setup.launch.processes
    cards = processes * seconds / 3600
    text = f"{steps:,} steps of {one:,.3g} s on {processes} {'card' if processes == 1 else 'cards'}: {hours_text(seconds)}"
    if processes > 1:
        text += f", {cards:,.3g} card-hours"
    cost = f", {cards * price:,.2f} US dollars" if price is not None else "" if cards < 1 else " (--price says what they cost)"
    engine = setup.method.engine if setup.method else None
    of_engine = ", nor the engine's own cards" if engine and (engine.devices or engine.base_url) else ""
    before = setup.method.value_pretrain_steps if setup.method else 0
    of_critic = f", nor the {before:,} steps of the critic before it (value_pretrain_steps)" if before else ""
    return f"{text} on an {card.name}{cost}; estimated from shapes, start, saving and waiting not counted{of_critic}{of_engine}"


def _pictures(setup: Setup, card: GraphicsCard) -> Finding:
    """Return whether pictures come as fast as the card reads them, by this machine's own rate of decoding."""
    rate, need, lengths = measure_decoding(), feeding_of(setup, card), setup.lengths
    what = "rollout batch" if setup.method else "step"
    if not need.pictures:
        return Finding("decoding", "ok", "no pictures in the data")
    if lengths.png is None:
        worst, size = lengths.megapixels * rate.png_ms, f"a picture of {lengths.megapixels:g} MP"
        times = f"{size} in {lengths.megapixels * rate.jpeg_ms:.0f} ms (JPEG) or {worst:.0f} ms (PNG)"
    else:
        worst = lengths.megapixels * (lengths.png * rate.png_ms + (1 - lengths.png) * rate.jpeg_ms)
        times = f"one of the data ({lengths.megapixels:.1f} MP, {lengths.png:.0%} PNG) in {worst:.0f} ms"
    cores = max(1, num_cores() // min(setup.launch.processes, A_MACHINE))
    workers = max(1, min(setup.config.data_workers, cores))
    share = need.share(worst, workers)
    message = f"a {what} has {need.pictures:,.0f} pictures a process, and {need.seconds:.3g} s of arithmetic on an {card.name}"
    waits = "ahead of the card" if need.ahead else "while the card waits"
    message += f"; a core here decodes {times}: {_workers(workers)} {100 * share:.1f} % of that time, {waits}"
    needed = need.workers(worst)
    if needed <= workers:
        return Finding("decoding", "ok", message)
    if needed <= cores:
        return Finding("decoding", "look", f"{message}; data_workers={needed} keep up")
    few = f"; {needed:,} would keep up, and this machine has {cores} cores a process"
    if workers < cores:
        few += f": data_workers={cores} is the most here"
    return Finding("decoding", "look", f"{message}{few}; the card will wait where the run's machine has no more")


def _workers(number: int) -> str:
    return f"{number} data workers take" if number > 1 else "one data worker takes"


def _sampling(setup: Setup, card: GraphicsCard, note: str) -> Iterator[Finding]:
    """Yield who should draw the rollouts: the trainer's own decoder, or an engine."""
    if (load := decoding_load(setup, card)) is None or setup.method is None:
        return
    seconds = decoding_time(load)
    outcome: Outcome = "look" if setup.method.engine is None and seconds.needs_engine else "ok"
    yield Finding("sampling", outcome, decoding_sentence(setup.method, load, seconds) + note)


def step_seconds(setup: Setup, card: GraphicsCard) -> float:
    """Return the seconds of one optimizer step, its part of drawing rollouts included."""
    if (load := decoding_load(setup, card)) is None or setup.method is None:
        return training_seconds(setup, card)
    seconds, method = decoding_time(load), setup.method
    drawing_s = seconds.own_s if method.engine is None else seconds.engine_s
    ahead = method.engine is not None and method.engine.ahead > 0  # then the one goes on beside the other
    both_s = max(drawing_s, seconds.training_s) if ahead else drawing_s + seconds.training_s
    return both_s * method.batch_size / (method.rollout_batch_size * method.iterations)


def _evaluation(setup: Setup, card: GraphicsCard, note: str, steps: int | None) -> Iterator[Finding]:
    """Yield what share of the time goes into judging held-out pairs."""
    if (load := setup.evaluation) is None:
        return
    every = setup.config.evaluation.every_steps  # type: ignore[attr-defined]
    one, step = evaluation_seconds(setup, card), step_seconds(setup, card)
    times, of_steps = (1, every) if steps is None else (1 + -(-steps // every), max(1, steps))
    share = times * one / (times * one + of_steps * step)
    orders = "" if load.is_scalar else " in both orders"
    blank = f", {'and' if load.blank == load.pairs else f'{load.blank:,}'} again with grey pictures" if load.blank else ""
    when = f"every {every:,} steps" if steps is None else f"{times} times in {steps:,} steps"
    message = f"{load.pairs:,} pairs{orders}{blank}, {when}: {one:,.0f} s each on an {card.name}, beside {step:,.1f} s a step"
    message += f", {100 * share:.1f} % of the time"
    if share <= MOST_EVALUATING:
        yield Finding("evaluation", "ok", message + note)
        return
    fewer = ["raise evaluation.every_steps"] if times > 2 or steps is None else []  # at the start and the end it always is
    cures = [*fewer, "lower evaluation.num_pairs", *(["set evaluation.blank_images to false"] if load.blank else [])]
    yield Finding("evaluation", "look", f"{message}; {', or '.join(cures)}{note}")
