"""The candidate tools of a call, their order, and the contexts of their times, for arbitrary capabilities."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastio.dicts.context import load_context, save_context
from fastio.transports.selection import candidates
from fastio.transports.transport import LOAD, SAVE, Capabilities

FORMATS = ["pt", "safetensors", "npy", "raw"]
operations = st.sampled_from([SAVE, LOAD])
formats = st.sampled_from(FORMATS)
places = st.frozensets(st.sampled_from(["cpu", "cuda", "xpu"]), max_size=2)
some_formats = st.frozensets(formats)
capabilities = st.builds(
    Capabilities,
    operations=st.frozensets(operations),
    formats=st.none() | some_formats,
    devices=st.frozensets(st.sampled_from(["cpu", "cuda"]), min_size=1),
    whole=some_formats,
    checksums=st.booleans(),
    automatic=st.booleans(),
    direct=st.booleans(),
)
tools = st.dictionaries(st.sampled_from("abcdefgh"), capabilities)


@given(tools, operations, formats, places)
def test_candidates_are_the_automatic_tools_that_support_the_operation(
    tools: dict[str, Capabilities], operation: str, form: str, devices: frozenset[str]
) -> None:
    found = candidates(tools, operation, form, devices)
    assert len(set(found)) == len(found)
    for name, own in tools.items():
        able = operation in own.operations and (own.formats is None or form in own.formats)
        reaches = devices - {"cpu"} <= own.devices if devices - {"cpu"} else "cpu" in own.devices
        assert (name in found) == (able and reaches and own.automatic)


@given(tools, operations, formats, places)
def test_candidates_are_ordered_by_their_extra_work(
    tools: dict[str, Capabilities], operation: str, form: str, devices: frozenset[str]
) -> None:
    work = [
        (not own.direct, not own.checksums, bool(own.whole))
        for own in (tools[name] for name in candidates(tools, operation, form, devices))
    ]
    assert work == sorted(work)


@given(
    formats,
    st.sampled_from(["cpu", "cuda H100"]),
    st.booleans(),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 20),
)
def test_contexts_differ_in_what_affects_the_time(
    form: str, device: str, state: bool, nbytes: int, extents: int
) -> None:
    save = save_context(form, device, state, nbytes, extents)
    load = load_context(form, device, state, nbytes, extents)
    assert (save.op, save.durable, save.resident) == (SAVE, state, None)
    assert (load.op, load.durable, load.resident) == (LOAD, None, state)
    for key in (save, load):
        assert key.format == form
        assert key.device == device
    assert save_context(form, device, not state, nbytes, extents) != save
    assert load_context(form, device, not state, nbytes, extents) != load
