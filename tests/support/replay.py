"""Runs the tuner on synthetic machines, and compares it with an oracle that knows each call's fastest tool.

The machines and noises are SYNTHETIC: they resemble the spreads of real tools, but no resulting number measures a disk.
``python tests/support/replay.py`` prints a table of them. ``fastio-bench tools`` prints the tuner's results on RECORDED
timings of real tools.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from fastio.dicts.priors import NOTHING, Prior, Rule, usual_doubt
from fastio.dicts.sizes import bucket_nbytes
from fastio.dicts.tuner import Tuner
from fastio_bench.tools import replaying
from fastio_bench.tools.replaying import Call, Timed, expected_over_oracle, share_best

TOOLS = ("uring", "posix", "torch", "numpy")
BANDWIDTH = 2.9e9

Machine = dict[str, tuple[float, float]]
"""By tool: seconds per call, seconds per byte."""


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


def prior_from(made: Machine, doubts: Callable[[float], float] = usual_doubt) -> Rule:
    """A prior with the machine's true ratios at every second octave; ``doubts`` gives its uncertainty by size."""
    costs = []
    for bucket in range(0, 160, 8):
        nbytes = bucket_nbytes(bucket)
        times = {tool: a + b * nbytes for tool, (a, b) in made.items()}
        least, doubt = min(times.values()), doubts(nbytes)
        costs.append((bucket, {tool: (math.log(time / least), doubt) for tool, time in times.items()}))
    return Rule({}, Prior(costs), {})


def made_up(
    made: Machine,
    sizes: Sequence[int],
    *,
    noise: float = 0.1,
    outliers: float = 0.02,
    seed: int = 0,
    slower: Callable[[int, str], float] = lambda call, tool: 1.0,
) -> list[Timed]:
    """Simulated calls of the given sizes (bytes) on a machine.

    ``noise`` is the standard deviation of the times' logarithm; a share ``outliers`` takes three times as long.
    ``slower`` gives a factor by call and tool. Every call draws the times of all tools, so tuner and oracle see the
    same times.
    """
    rng = random.Random(seed)
    calls = []
    for index, nbytes in enumerate(sizes):
        true = {tool: (a + b * nbytes) * slower(index, tool) for tool, (a, b) in made.items()}
        real = {
            tool: time * math.exp(rng.gauss(0, noise)) * (3 if rng.random() < outliers else 1)
            for tool, time in true.items()
        }
        calls.append(Timed(nbytes, real, true))
    return calls


def replay(made: Machine, sizes: Sequence[int], *, rule: Rule = NOTHING, **chances: Any) -> list[Call]:
    """Run a tuner over calls of the given sizes on a machine; ``chances`` are arguments of :func:`made_up`."""
    return replaying.replay(made_up(made, sizes, **chances), Tuner(rule))


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
                    results = [(expected_over_oracle(run), share_best(run[100:])) for run in runs]
                    everything[column].extend(results)
                    total, share = (mean(values) for values in zip(*results, strict=True))
                    row.append(f"{total:.3f} / {share:.3f}")
                print(f"{name:10} {kind:16} {noise:.2f}   " + "  ".join(row))
    for label, results in zip(("no prior", "right prior", "wrong prior"), everything, strict=True):
        totals = sorted(total for total, _ in results)
        print(
            f"{label}: mean {mean(totals):.4f}, median {totals[len(totals) // 2]:.4f}, "
            f"95th percentile {totals[len(totals) * 95 // 100]:.4f}, share {mean(share for _, share in results):.4f}"
        )


if __name__ == "__main__":
    main()
