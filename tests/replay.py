"""Replays traces of calls against a tuner and compares it with an oracle that knows the fastest tool of each call.

The machines and noises here are SYNTHETIC: they are made up to be like the spreads in which real tools lie, and no
number that comes out is a measurement of a disk. The traces in ``traces/`` are RECORDED timings of real tools.
``python tests/replay.py`` prints a table of both.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fastio.dicts.context import bucket_nbytes
from fastio.dicts.priors import NOTHING, Rule
from fastio.dicts.tuner import Tuner

TOOLS = ("uring", "posix", "torch", "numpy")
BANDWIDTH = 2.9e9
TRACES = sorted((Path(__file__).parent / "traces").glob("*.csv"))

Machine = dict[str, tuple[float, float]]
"""Of each tool: seconds per call, seconds per byte."""


def machine(latencies: Sequence[float], relative: Sequence[float]) -> Machine:
    """A machine on which the tools' times are latency + relative * size / bandwidth."""
    return {t: (a, r / BANDWIDTH) for t, a, r in zip(TOOLS, latencies, relative, strict=True)}


MACHINES = {
    "crossing": machine((2.5e-3, 0.8e-3, 1.0e-3, 1.2e-3), (1.0, 1.15, 2.0, 1.5)),
    "parallel": machine((1e-3, 1.15e-3, 2e-3, 1.5e-3), (1.0, 1.15, 2.0, 1.5)),
    "quick": machine((60e-6, 35e-6, 50e-6, 45e-6), (1.0, 1.3, 2.0, 1.5)),
    "reversed": machine((2e-3, 1.5e-3, 1e-3, 1.2e-3), (2.0, 1.5, 1.0, 1.15)),
}
LAYERS = (3145728, 12582912, 2359296, 589824, 98304, 3145728, 100663296)
SIZES: dict[str, Callable[[random.Random, int], list[int]]] = {
    "4 KiB to 1 GiB": lambda rng, n: [int(2 ** rng.uniform(12, 30)) for _ in range(n)],
    "1 to 128 MiB": lambda rng, n: [int(2 ** rng.uniform(20, 27)) for _ in range(n)],
    "around 8 MB": lambda rng, n: [max(1, int(8e6 * math.exp(rng.gauss(0, 1.5)))) for _ in range(n)],
    "seven layers": lambda _, n: [LAYERS[i % len(LAYERS)] for i in range(n)],
    "784 MiB": lambda _, n: [784 << 20] * n,
}


@dataclass(frozen=True, slots=True)
class Call:
    """One replayed call: the tool chosen, the truly best tool, and what both took, with noise and without."""

    nbytes: int
    tool: str
    exploring: bool
    best: str
    seconds: float
    best_seconds: float
    true_seconds: float
    true_best_seconds: float


def prior_from(made: Machine, doubt: float = 0.3) -> Rule:
    """A prior that knows the machine's true ratios at every second octave."""
    costs = []
    for bucket in range(0, 160, 8):
        times = {tool: a + b * bucket_nbytes(bucket) for tool, (a, b) in made.items()}
        least = min(times.values())
        costs.append((bucket, {tool: math.log(time / least) for tool, time in times.items()}))
    return Rule({}, costs, doubt, {})


def replay(
    made: Machine,
    sizes: Sequence[int],
    *,
    noise: float = 0.1,
    outliers: float = 0.02,
    seed: int = 0,
    rule: Rule = NOTHING,
    slower: Callable[[int, str], float] = lambda call, tool: 1.0,
    tuner: Tuner | None = None,
) -> list[Call]:
    """Run the tuner over calls of the given sizes (bytes).

    ``noise`` is the deviation of the times' logarithm; a share ``outliers`` takes three times as long. ``slower`` gives
    a factor by call and tool. All tools' times are drawn for each call, so the oracle meets the same luck.
    """
    rng = random.Random(seed)
    tuner = tuner or Tuner(rule)
    warm: set[str] = set()
    calls = []
    for index, nbytes in enumerate(sizes):
        true = {tool: (a + b * nbytes) * slower(index, tool) for tool, (a, b) in made.items()}
        real = {
            tool: time * math.exp(rng.gauss(0, noise)) * (3 if rng.random() < outliers else 1)
            for tool, time in true.items()
        }
        best = min(true, key=lambda tool: true[tool])
        choice = tuner.choose(nbytes, tuple(made))
        tool = choice.tool
        tuner.observe(nbytes, tool, real[tool], first=tool not in warm)
        warm.add(tool)
        calls.append(Call(nbytes, tool, choice.exploring, best, real[tool], real[best], true[tool], true[best]))
    return calls


def recorded(path: Path) -> list[tuple[int, dict[str, float]]]:
    """A recorded trace: of each call the size and the seconds that every tool took for it."""
    with open(path, newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return [
            (int(row["nbytes"]), {tool: float(us) * 1e-6 for tool, us in row.items() if tool != "nbytes"})
            for row in rows
        ]


def best_by_size(trace: Sequence[tuple[int, dict[str, float]]], window: int = 51) -> list[str]:
    """Of each call the tool that is fastest at its size: by the median bandwidth over the calls nearest in size."""
    order = sorted(range(len(trace)), key=lambda index: trace[index][0])
    best = [""] * len(trace)
    for place, index in enumerate(order):
        near = [trace[other] for other in order[max(0, place - window // 2) : place + window // 2 + 1]]
        best[index] = min(trace[0][1], key=lambda tool: median(times[tool] / nbytes for nbytes, times in near))
    return best


def replay_recorded(trace: Sequence[tuple[int, dict[str, float]]]) -> list[Call]:
    """Run the tuner over a recorded trace. The true times are the recorded ones: there are no others."""
    tuner, warm, calls = Tuner(), set(), []
    for (nbytes, times), best in zip(trace, best_by_size(trace), strict=True):
        choice = tuner.choose(nbytes, tuple(times))
        seconds = times[choice.tool]
        tuner.observe(nbytes, choice.tool, seconds, first=choice.tool not in warm)
        warm.add(choice.tool)
        calls.append(Call(nbytes, choice.tool, choice.exploring, best, seconds, times[best], seconds, times[best]))
    return calls


def over_oracle(calls: Sequence[Call]) -> float:
    """Total time over the oracle's, exploring included, with the noise of each call taken out."""
    return sum(call.true_seconds for call in calls) / sum(call.true_best_seconds for call in calls)


def share_best(calls: Sequence[Call], tie: float = 1.02) -> float:
    """Share of calls on the truly best tool, or one that is as good within two percent."""
    return sum(call.tool == call.best or call.true_seconds <= tie * call.true_best_seconds for call in calls) / len(
        calls
    )


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main(seeds: int = 8, calls: int = 1000) -> None:
    print("SYNTHETIC traces: total time over the oracle's / share on the best tool after 100 calls")
    print(f"{'machine':10} {'sizes':16} noise   no prior       right prior    wrong prior")
    everything: list[list[tuple[float, float]]] = [[], [], []]
    for name, made in MACHINES.items():
        wrong = MACHINES["parallel" if name == "reversed" else "reversed"]
        for kind, make in SIZES.items():
            for noise in (0.05, 0.10, 0.15):
                row = []
                for column, rule in enumerate((NOTHING, prior_from(made), prior_from(wrong))):
                    runs = [
                        replay(made, make(random.Random(seed), calls), noise=noise, seed=seed, rule=rule)
                        for seed in range(seeds)
                    ]
                    everything[column].extend((over_oracle(run), share_best(run[100:])) for run in runs)
                    total, share = (
                        mean([over_oracle(run) for run in runs]),
                        mean([share_best(run[100:]) for run in runs]),
                    )
                    row.append(f"{total:.3f} / {share:.3f}")
                print(f"{name:10} {kind:16} {noise:.2f}   " + "  ".join(row))
    for label, results in zip(("no prior", "right prior", "wrong prior"), everything, strict=True):
        totals = sorted(total for total, _ in results)
        print(
            f"{label}: mean {mean(totals):.4f}, median {totals[len(totals) // 2]:.4f}, "
            f"95th percentile {totals[len(totals) * 95 // 100]:.4f}, share {mean([share for _, share in results]):.4f}"
        )
    print("RECORDED traces, each in several orders")
    for path in TRACES:
        trace = recorded(path)
        runs = [replay_recorded(random.Random(seed).sample(trace, len(trace))) for seed in range(seeds)]
        alone = {tool: sum(times[tool] for _, times in trace) for tool in trace[0][1]}
        least = min(alone.values())
        others = ", ".join(f"{tool} alone {value / least:.2f}" for tool, value in alone.items())
        shares = mean([share_best(run[100:]) for run in runs])
        print(f"{path.stem}: {mean([over_oracle(run) for run in runs]):.3f} / {shares:.3f} ({others})")


if __name__ == "__main__":
    main()
