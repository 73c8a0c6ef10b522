"""An object of a volume is whole or not there after a power cut at any write, and the others stay as they are."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fastio.errors import VolumeFullError
from fastio.volumes import Volume
from power_cuts import FragileDevice, PowerCut

BLOCKS, JOURNAL = 48, 6  # small: objects soon lie in pieces, and the journal is soon full
Model = dict[str, bytes]
Step = Callable[[Volume, Model], None]


def a_step(chance: random.Random) -> Step:
    """Save an object, replace one or remove one: what becomes of the model, too."""
    name = chance.choice("abcd")
    data = chance.randbytes(chance.choice((0, 1, 4096, chance.randrange(60_000))))

    def step(volume: Volume, model: Model) -> None:
        if chance_of_removal < 0.25 and name in model:
            volume.rm(name)
            del model[name]
            return
        try:
            volume.write(name, data)
            model[name] = data
        except VolumeFullError:
            pass

    chance_of_removal = chance.random()
    return step


def contents(volume: Volume) -> Model:
    return {entry.name: volume.read(entry.name) for entry in volume.ls()}


def empty() -> bytes:
    device = FragileDevice(bytes(BLOCKS * 4096))
    Volume.create_on(device, JOURNAL)
    return device.read(0, device.nbytes)


def run(image: bytes, steps: list[Step], cut_at: int) -> tuple[FragileDevice, Model, Model]:
    """Carry out the steps until the power is cut: the device, and the model before and after the step under way."""
    device, model, following = FragileDevice(image, cut_at), Model(), Model()
    try:
        volume = Volume(device, True)
        for step in steps:
            following = dict(model)
            rehearse(step, following, device)
            step(volume, model)
    except PowerCut:
        return device, model, following
    return device, model, model


def rehearse(step: Step, model: Model, device: FragileDevice) -> None:
    """What the model is after a step that nothing interrupts."""
    copy = FragileDevice(device.read(0, device.nbytes))
    step(Volume(copy, True), model)


@pytest.mark.parametrize("cuts", [300, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_objects_are_whole_or_absent_after_a_power_cut_at_any_write(cuts: int) -> None:
    done = seed = 0
    seen = {"old": 0, "new": 0}
    while done < cuts:
        chance = random.Random(seed)
        seed += 1
        steps = [a_step(chance) for _ in range(16)]
        whole, _, _ = run(empty(), steps, -1)
        for cut_at in range(whole.steps):
            device, before, after = run(empty(), steps, cut_at)
            survived = FragileDevice(device.after_cut(chance))
            reader = contents(Volume(survived, False))
            assert reader in (before, after), (seed, cut_at)
            seen["old" if reader == before else "new"] += 1
            volume = Volume(survived, True)
            assert contents(volume) == reader, (seed, cut_at)
            volume.write("last", b"saved after the cut")
            reader["last"] = b"saved after the cut"
            assert contents(Volume(survived, False)) == reader, (seed, cut_at)
            done += 1
    assert min(seen.values()) > cuts // 20


@pytest.mark.parametrize("histories", [60, pytest.param(3_000, marks=pytest.mark.nightly)])
def test_cuts_and_kills_one_after_the_other_lose_nothing(histories: int) -> None:
    for seed in range(histories):
        chance = random.Random(seed)
        device, model = FragileDevice(empty()), Model()
        unflushed: list[Model] = []  # what the next power cut may bring back: a killed process had not flushed its step
        for _ in range(12):
            step, before, after = a_step(chance), dict(model), dict(model)
            rehearse(step, after, device)
            device.cut_at = device.steps + chance.randrange(12)
            device.tears = chance.random() < 0.6  # else only the process ends
            try:
                step(Volume(device, True), model)
                unflushed = []
            except PowerCut:
                if device.tears:
                    device = FragileDevice(device.after_cut(chance))
                else:
                    unflushed.append(before)
            model = contents(Volume(device, False))
            assert model in (before, after, *unflushed), seed
            unflushed = unflushed if device.steps else []
