"""Results in pages: ``<!-- results: NAME -->`` becomes a table of ``eval/results/NAME.json``, ``NAME.md`` that file."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

MARK = re.compile(r"^<!-- results: ([\w./]+) -->$", re.MULTILINE)
Cell = Mapping[str, Any]


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table; ``head`` names the columns, with bars between them."""
    columns = head.split("|")
    lines = [f"| {' | '.join(c.strip() for c in columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]) + "\n"


def percent(cell: Cell, *, key: str = "mean", scale: float = 100.0, sign: str = "") -> str:
    """Return a value with its interval, in percent."""
    low, high = (f"{scale * bound:{sign}.1f}" for bound in cell["interval"])
    return f"{scale * cell[key]:{sign}.1f} [{low}, {high}]"


def source(result: Cell, *, command: str = "") -> str:
    """Return the line with the command and the commit of a result."""
    name = re.sub(r" --vllm-args .*", " ...", str(result.get("command", command)))
    return f"\n`{name}`, commit {result['commit'][:7]}{' with changes' if result['commit'].endswith('+dirty') else ''}.\n"


def closed_loop(result: Cell) -> str:
    rows = [
        ("sampled answers, before", percent(result["before"]["sampled"])),
        (f"sampled answers, after {result['steps']} steps", percent(result["after"]["sampled"])),
        ("change, points", percent(result["change"], sign="+")),
        (f"best of {result['candidates']} by the judge, before", percent(result["before"]["best_of_n"])),
        (f"any of {result['candidates']} is right, before", percent(result["before"]["any_of_n"])),
        ("best of 8 by the judge, after", percent(result["after"]["chosen"])),
    ]
    return table("held-out answers | right, %", rows) + source(result)


def serving_rate(result: Cell) -> str:
    rates = result["pairs_per_second"]
    rows = [(name, f"{result['medians'][name]:.1f}", f"{min(turns):.1f}-{max(turns):.1f}") for name, turns in rates.items()]
    ratios = [
        (name.replace("_", " "), f"{100 * result[name]['median']:.0f} %", _span(result[name]["turns"], 100, 0))
        for name in ("endpoint_over_hf", "endpoint_over_vllm")
    ]
    latency = result["http_latency_ms"]
    return (
        table("judge | pairs per second, median of five turns | single turns", rows)
        + "\n"
        + table("ratio within a turn | median | single turns, %", ratios)
        + f"\nHTTP alone: {latency['median']:.1f} ms (median), {latency['p95']:.1f} ms (95th percentile).\n"
        + source(result)
    )


def _span(values: list[float], scale: float = 1.0, digits: int = 2) -> str:
    return f"{scale * min(values):.{digits}f}-{scale * max(values):.{digits}f}"


def serving_drills(result: Cell) -> str:
    rows = []
    for name, drill in result.items():
        if "answers" in drill:
            failed = sum(n for kind, n in drill["answers"].items() if kind != "right")
            span = f"{drill['first_failure_s']:.1f}-{drill['last_failure_s']:.1f}"
            unready = drill["unready_s"]
            said = "never" if unready is None else f"{unready[0]:.1f}-{unready[1]:.1f}"
            rows.append(
                (name, f"{drill['answers']['right']:,}", f"{failed:,}", span, said, f"{drill['right_answers_after']:,}")
            )
    crowd = result["crowd"]
    seen = [(kind, f"{number:,}") for kind, number in sorted(crowd["seen"].items())]
    memory = ", ".join(f"{name} {100 * growth:+.1f} %" for name, growth in crowd["rss_growth"].items())
    return (
        table(
            "fault | right answers | failed requests | failures, s after the fault | not ready, s | right afterwards",
            rows,
        )
        + f"\n{crowd['requests']:,} requests in {crowd['seconds']:.0f} s:\n\n"
        + table("kind and answer | requests", seen)
        + f"\nResident memory afterwards: {memory}.\n"
        + source(crowd)
    )


def serving_load(result: Cell) -> str:
    overload, end = result["overload"]["runs"], result["sigterm"]
    rows = [
        ("twice the capacity: good answers over capacity", ", ".join(f"{100 * over['goodput']:.0f} %" for over in overload)),
        (
            f"p50 and p99 of good answers, s (deadline {overload[0]['timeout_s']:g} s)",
            "; ".join(f"{over['good']['p50_s']:.2f}, {over['good']['p99_s']:.2f}" for over in overload),
        ),
        ("answers by status", "; ".join(_counts(over["statuses"]) for over in overload)),
        (
            "p50 of a lone client beside 64 requests, over its p50 alone",
            ", ".join(f"{fair['p50_ratio']:.2f}" for fair in result["fairness"]["runs"]),
        ),
        ("SIGTERM with 300 in flight: answers by status", _counts(end["statuses"])),
        ("exit status", end["exit_status"]),
    ]
    if memory := result.get("memory"):
        before, after = memory["rss_mb"]
        growth = "; ".join(f"{name} {mb:,.0f} → {after[name]:,.0f} MB" for name, mb in before.items())
        rows.append((f"memory over {memory['requests']:,} requests", growth))
    text = table("what | figure, of each run", rows) + source(result["overload"])
    if front_end := result.get("front_end"):
        costs = [(name, f"{ms:.1f}", f"{1000 / ms:,.0f}") for name, ms in front_end["cpu_ms"].items()]
        head = "of a front end, median of three turns | CPU ms | per second of a core"
        text += "\n" + table(head, costs) + source(front_end)
    if "rates" not in result:
        return text
    rates = result["rates"]
    speeds = [
        (
            name,
            f"{statistics.median(values):.1f}",
            f"{100 * rates['of_offline'][name]:.0f} %",
            *(f"{statistics.median(cost[who]):.1f}" if who in cost else "" for who in ("engine", "server")),
        )
        for name, values in rates["pairs_per_second"].items()
        for cost in [rates["cpu_ms_per_pair"][name]]
    ]
    head = "four votes in both orders | pairs per second, median of turns | over offline, median within a turn"
    head += " | CPU ms a pair, engine | server"
    return text + "\n" + table(head, speeds) + source(rates)


def serving_trainers(result: Cell) -> str:
    names = [name for name in result if isinstance(result[name], Mapping)]
    facts = [
        ("steps of the trainer", "steps"),
        ("rewards requested", "rewards"),
        ("nonzero rewards", "not_zero"),
        ("rewards that differ from an undisturbed server's", "other_than_of_an_undisturbed_server"),
        ("rewards that are None", "none"),
        ("of these, None for an undisturbed server as well", "none_of_an_undisturbed_server"),
    ]
    rows = [(words, *(f"{result[name][key]:,}" for name in names)) for words, key in facts]
    rows.append(("seconds", *(f"{result[name]['seconds']:.0f}" for name in names)))
    return table("|".join(["", *names]), rows) + source(result)


def _counts(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} × {status}" for status, number in sorted(statuses.items()))


def step_time(result: Cell, command: str = "python eval/step_time.py") -> str:
    rows = [
        (name, cell["against"], f"{cell['median_ratio']:.2f}", _span(cell["ratios"]), f"{cell['memory_ratio']:.2f}")
        for name, cell in result["recipes"].items()
        if not name.startswith("trl")
    ]
    turns = max(len(cell["ratios"]) for cell in result["recipes"].values())
    head = f"recipe | compared with | time, median ratio of {turns} turns | single turns | peak memory, ratio"
    return table(head, rows) + source(result, command=command)


def injections(result: Cell) -> str:
    text = ""
    for judge in (name for name in result if "/" in name):
        cells = result[judge]
        rows = [("harmless texts", percent(cells["harmless"], key="wrong"), "–")]
        rows += [
            (kind, percent(cell, key="wrong"), percent(cells["unfenced"][kind], key="wrong"))
            for kind, cell in cells["fenced"].items()
        ]
        text += f"**{'SFT judge' if 'sft' in judge else 'StableReinforce judge'}**\n\n"
        text += table("kind of attack | names the attacked answer, sanitised, % | not sanitised, %", rows) + "\n"
    return text + source(result)


WORK = {"validated": "validated into shards", "clean": "the same, near-duplicates left out", "read": "read back"}


def leaks(result: Cell) -> str:
    def cell(found: Cell) -> str:
        return percent(found, key="percent", scale=1.0) + f" ({found['found']:,} of {found['of']:,})"

    rows = [(kind, cell(found), cell(result["photographs"][kind])) for kind, found in result["scenes"].items()]
    speeds = result["speeds"]
    rates = [(WORK[name], f"{s['pairs_a_second']:,.0f}", f"{s['peak_mib']:.0f}") for name, s in speeds.items()]
    alarms, texts = result["false_alarms"], result["texts"]
    return (
        table("copy | drawn scenes found, % | pieces of photographs found, %", rows)
        + f"\nFalse alarms: {alarms['found']} of {alarms['of']:,} other scenes, {alarms['percent']:.2f} % "
        + "[{:.2f}, {:.2f}].\n\n".format(*alarms["interval"])
        + table("copy of a text of 40 words | found, %", [(kind, cell(hits)) for kind, hits in texts["copies"].items()])
        + f"\nFalse alarms: {texts['false_alarms']['found']} of {texts['false_alarms']['of']:,} other texts.\n\n"
        + table("200,000 text pairs | pairs a second | peak memory, MiB", rates)
        + f"\nThe speeds are of commit {result['speeds_commit'][:7]}.\n"
        + source(result)
    )


def distill_scale(result: Cell) -> str:
    rates, whole = result["rates"], result["whole"]
    rows = [(n, f"{statistics.median(v):.0f}", _span(v, 1.0, 0)) for n, v in rates["requests_per_second"].items()]
    over = [(n, f"{v:.2f}", _span(rates["turns"][n])) for n, v in rates["distill_over"].items()]
    money = [(f"{b['usd']:.2f}", f"{b['spent']:.4f}", f"{b['left_percent']:.2f}") for b in result["budgets"]]
    facts = [
        ("pairs in the set", f"{whole['pairs_in_the_set']:,} of {whole['pairs']:,}"),
        ("kills", whole["kills"]),
        ("seconds", f"{whole['seconds']:.0f}"),
        ("peak memory; in the first minute, MiB", "{peak}; {first_minute}".format(**whole["memory_mib"])),
        ("bill: server; journal, USD", "{server:.2f}; {journal:.2f}".format(**whole["cost_usd"])),
        ("answers lost to kills", whole["answers_lost_to_kills"]),
    ]
    return "\n".join(
        [
            table("client | requests per second, median of five turns | single turns", rows),
            table("`rewardlab distill` over | ratio within a turn, median | single turns", over),
            table("budget, USD | spent | left, %", money),
            table("200,000 pairs with pictures | ", facts),
            source(result),
        ]
    )


JUDGES = {"hf_sft": "SFT, votes", "prob_sft": "SFT, by probability", "hf_rl": "RL, votes", "prob_rl": "RL, by probability"}


def demo_judges(folder: Path) -> str:
    """Return one table over the benchmark reports of the demonstration's judges."""
    rows, result = [], {}
    for name, title in JUDGES.items():
        result = json.loads((folder / f"demo_judge_{name}.json").read_text(encoding="utf-8"))
        low, high = (100 * bound for bound in result["interval"])
        shares = (result["swap_consistency"], result["position_bias"], result["invalid_rate"])
        accuracy = f"{100 * result['accuracy']['micro']:.1f} [{low:.1f}, {high:.1f}]"
        rows.append((title, accuracy, *(f"{100 * share:.1f}" for share in shares)))
    head = "judge, 8 votes in each order | accuracy, % | swap consistency, % | position bias, points | invalid, %"
    return table(head, rows) + source(result)


TABLES: dict[str, Callable[[Cell], str]] = {
    "closed_loop": closed_loop,
    "serving_rate": serving_rate,
    "serving_drills": serving_drills,
    "serving_load": serving_load,
    "serving_trainers": serving_trainers,
    "step_time": step_time,
    "step_time_mixed": partial(step_time, command="python eval/step_time.py --mixed"),
    "injections": injections,
    "leaks": leaks,
    "distill_scale": distill_scale,
}


def included(text: str) -> str:
    """Return a results file without its title and pictures, with its headings one level lower."""
    body = re.sub(r"\A# .*\n|^!\[.*\n\n?", "", text, flags=re.MULTILINE)
    return re.sub(r"^(#+ )", r"#\1", body, flags=re.MULTILINE).strip() + "\n"


def _replacement(match: re.Match[str], *, folder: Path, where: str) -> str:
    name = match[1]
    if name == "demo_judges":
        return demo_judges(folder)
    if name.endswith(".md"):
        text = re.sub(r"^!\[.*\]\(.*\)\n\n?", "", (folder / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
        return included(text)  # a page places the pictures of its results itself
    if name not in TABLES:
        raise ValueError(f"{where}: no results {name!r}; expected {', '.join(TABLES)}, demo_judges, or a file of eval/results")
    return TABLES[name](json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))


def fill_results(markdown: str, folder: Path, *, where: str) -> str:
    """Return a page with its marks replaced. Raise ValueError for a mark without a result."""
    return MARK.sub(partial(_replacement, folder=folder, where=where), markdown)
