"""Dictionaries on disk: what ships, what is kept between real processes, and what happens to damaged files."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warm_python
from fastio import dicts
from fastio.dicts import Context, Dictionary, RDic, WDic, WRDic, fingerprint, shipped, storage
from fastio.dicts.json_form import SCHEMA
from fastio.errors import DictionaryError

MIB = 1 << 20
SAVE = Context("save", "pt", "cpu", durable=True)
LOAD = Context("load", "pt", "cpu", resident=False)
TOOLS = ("uring", "posix")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "dictionaries"
    monkeypatch.setenv("FASTIO_DICTIONARY_DIR", str(path))
    dicts.forget()
    return path


def fill(dictionary: Dictionary, times: dict[str, float], context: Context = SAVE, nbytes: int = MIB) -> None:
    for _ in range(6):
        for tool, seconds in times.items():
            dictionary.observe(context, nbytes, tool, seconds)


def kept(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*.json")
    plain: dict[str, Any] = json.loads(path.read_text())
    return plain


def in_a_process(program: str, *, check: bool = True) -> str:
    """Run a program in a process of its own; what it printed."""
    start = "import os, sys\nfrom fastio import dicts\nfrom fastio.dicts import Context\n"
    start += f"SAVE, MIB, TOOLS = {SAVE!r}, {MIB}, {TOOLS!r}\n"
    done = warm_python.run(start + textwrap.dedent(program))
    assert not check or done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_what_ships_is_valid_and_marked_as_prior() -> None:
    rules = shipped.shipped_rules()
    assert rules
    for name in ("wdic.json", "rdic.json"):
        plain = json.loads(Path(shipped.__file__).with_name(name).read_text())
        assert "prior" in plain["note"]
        assert all(rule["source"] for rule in plain["priors"])
        assert Dictionary.load(Path(shipped.__file__).with_name(name)).choose(SAVE, MIB, TOOLS).order


@pytest.mark.parametrize("kind", [Dictionary, WDic, RDic, WRDic])
def test_dump_and_load(tmp_path: Path, kind: type[Dictionary]) -> None:
    dictionary = kind()
    for context in (SAVE, LOAD):
        fill(dictionary, {"uring": 2e-3, "posix": 1e-3}, context)
    dictionary.fail(SAVE, MIB, "gds", "no driver")
    path = tmp_path / "mine.json"
    dictionary.dump(path)
    loaded = kind.load(path)
    assert type(loaded) is kind
    for context in (SAVE, LOAD):
        expected = dictionary.times(context, MIB, TOOLS)
        assert loaded.times(context, MIB, TOOLS) == pytest.approx(expected, rel=0.05)
    if kind is not RDic:
        assert "no driver" in str(loaded.explain(SAVE, MIB, ("gds", *TOOLS)))
    assert os.listdir(tmp_path) == ["mine.json"]


def test_the_file_is_that_of_figure_4(tmp_path: Path) -> None:
    dictionary = WDic(rules=())
    fill(dictionary, {"uring": 2e-3, "posix": 1e-3})
    dictionary.dump(tmp_path / "mine.json")
    (context,) = json.loads((tmp_path / "mine.json").read_text())["contexts"]
    ((size, entry),) = context["sizes"].items()
    assert int(size) == pytest.approx(MIB, rel=0.1)
    assert entry["best"] == "posix"
    assert entry["microseconds"]["uring"] == pytest.approx([2e3 * int(size) / MIB] * 5, rel=0.1)
    assert set(entry["first"]) == {"uring", "posix"}


def test_a_hand_made_dictionary_of_priors(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    rule = {
        "where": {"op": "save"},
        "bandwidth": {"4096": {"uring": 1, "posix": 9}, "1073741824": {"uring": 9, "posix": 1}},
    }
    path.write_text(json.dumps({"schema": "fastio-dictionary/1", "priors": [rule]}))
    assert WDic.load(path).choose(SAVE, 4096, TOOLS).tool == "posix"
    assert WDic.load(path).choose(SAVE, 1 << 30, TOOLS).tool == "uring"
    copy = tmp_path / "copy.json"
    WDic.load(path).dump(copy)
    assert WDic.load(copy).choose(SAVE, 4096, TOOLS).tool == "posix"


DAMAGED = {
    "empty": "",
    "cut": '{"schema": "fastio-dictionary/1", "contexts": [{"op": "sa',
    "not JSON": "\x00\x01\x02",
    "a list": "[]",
    "another program's": '{"name": "fastio"}',
    "a later schema": '{"schema": "fastio-dictionary/9", "contexts": []}',
    "contexts that are none": '{"schema": "fastio-dictionary/1", "contexts": {"a": 1}}',
    "a context without names": '{"schema": "fastio-dictionary/1", "contexts": [{"op": 3}]}',
    "a negative size": '{"schema": "fastio-dictionary/1", "contexts": [{"op": "save", "format": "pt", "device": "cpu", '
    '"durable": true, "resident": null, "small": 0, "sizes": {"-4": {"microseconds": {"a": [1]}}}}]}',
    "times that are none": '{"schema": "fastio-dictionary/1", "contexts": [{"op": "save", "format": "pt", '
    '"device": "cpu", "durable": true, "resident": null, "small": 0, "sizes": {"4": {"microseconds": {"a": [-1]}}}}]}',
    "a reason that is no text": '{"schema": "fastio-dictionary/1", "contexts": [{"op": "save", "format": "pt", '
    '"device": "cpu", "durable": true, "resident": null, "small": 0, "failures": {"a": {"reason": "\\ud800"}}}]}',
    "a tool that is no text": '{"schema": "fastio-dictionary/1", "contexts": [{"op": "save", "format": "pt", '
    '"device": "cpu", "durable": true, "resident": null, "small": 0, '
    '"sizes": {"4": {"microseconds": {"\\udfff": [1]}}}}]}',
    "priors of a tool that is no text": '{"schema": "fastio-dictionary/1", "priors": [{"where": {}, '
    '"bandwidth": {"4096": {"\\ud800": 1}}}]}',
    "priors that are none": '{"schema": "fastio-dictionary/1", "priors": [{"where": {"colour": "red"}}]}',
    "priors of two sizes that are one": '{"schema": "fastio-dictionary/1", "priors": [{"where": {}, '
    '"bandwidth": {"4096": {"a": 1}, "4097": {"b": 2}}}]}',
    "deep nesting": '{"schema": "fastio-dictionary/1", "contexts": ' + "[" * 100_000 + "}",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_that_the_caller_named_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(DictionaryError, match=r"mine\.json: not a usable dictionary"):
        Dictionary.load(path)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DictionaryError, match=r"none\.json.*No such file"):
        Dictionary.load(tmp_path / "none.json")
    with pytest.raises(DictionaryError, match="directory"):
        Dictionary.load(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DictionaryError, match="not a regular file"):
        Dictionary.load(tmp_path / "pipe")  # nobody writes to it
    descriptor = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        with pytest.raises(DictionaryError, match="not a regular file"):
            Dictionary.load(tmp_path / "pipe")
    finally:
        os.close(descriptor)
    with open(tmp_path / "huge.json", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(DictionaryError, match="larger than"):
        Dictionary.load(tmp_path / "huge.json")
    (tmp_path / "mode.json").write_text('{"schema": "fastio-dictionary/1", "mode": ["w"]}')
    with pytest.raises(DictionaryError, match="'mode' must be one of"):
        WRDic.load(tmp_path / "mode.json")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def nearly_valid(draw: st.DrawFn) -> str:
    """A real file's JSON with some of its parts replaced by anything."""
    plain: Any = {
        "schema": SCHEMA,
        "contexts": [
            {
                "op": "save", "format": "pt", "device": "cpu", "durable": True, "resident": None, "small": 0,
                "sizes": {"1048576": {"best": "a", "microseconds": {"a": [1.5, 2.5]}, "first": {"b": [7]}}},
                "failures": {"c": {"reason": "no", "count": 1}},
            }
        ],
        "priors": [{"where": {"op": "save"}, "bandwidth": {"4096": {"a": 1, "b": 2}}, "doubt": {"4096": {"a": 0.1}}}],
    }  # fmt: skip
    for _ in range(draw(st.integers(1, 3))):
        node, places = plain, []
        while isinstance(node, dict | list) and node:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            places.append((node, draw(st.sampled_from(keys))))
            node = places[-1][0][places[-1][1]]
        if places:
            node, key = draw(st.sampled_from(places))
            node[key] = draw(PLAIN)
    return json.dumps(plain)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nearly_valid() | PLAIN.map(json.dumps) | st.text())
def test_any_file_gives_a_dictionary_that_works_or_a_dictionary_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        dictionary = Dictionary.load(path)
    except DictionaryError:
        return
    for nbytes in (0, 4096, 1 << 20, 1 << 40):
        choice = dictionary.choose(SAVE, nbytes, ("a", "b", "c"))
        dictionary.observe(SAVE, nbytes, choice.tool, 1.0)
    dictionary.dump(path)
    Dictionary.load(path)


def test_the_default_is_kept_between_processes(folder: Path) -> None:
    program = """
        dictionary = dicts.default("save", ".")
        for _ in range(6):
            dictionary.observe(SAVE, MIB, "uring", 2e-3)
            dictionary.observe(SAVE, MIB, "posix", 1e-3)
    """
    assert in_a_process(program) == ""
    assert kept(folder)["fingerprint"]["kernel"] == os.uname().release
    said = in_a_process("print(dicts.default('save', '.').choose(SAVE, MIB, TOOLS))")
    assert "tool='posix'" in said
    assert "was the fastest" in said


def test_processes_of_one_call_each_still_find_the_best_tool() -> None:
    times = {"uring": 1.3, "posix": 1.0, "torch": 2.0}
    state = Dictionary(rules=()).__getstate__()
    tools = []
    for _ in range(20):  # what a process leaves, and the next one finds
        dictionary = Dictionary.__new__(Dictionary)
        dictionary.__setstate__(state)
        tool = dictionary.choose(SAVE, MIB, tuple(times)).tool
        dictionary.observe(SAVE, MIB, tool, times[tool])
        tools.append(tool)
        state = dictionary.__getstate__()
    assert set(tools) == set(times)
    assert tools[10:].count("posix") >= 9


def test_processes_of_a_few_calls_do_not_each_begin_with_a_try_of_a_slow_tool() -> None:
    times, warm = {"posix": 0.02, "numpy": 0.045}, Context("load", "pt", "cpu", resident=True)
    dictionary, tries = Dictionary(), 0
    for number in range(30):  # a model of four shards, loaded by one process after the other
        dictionary = pickle.loads(pickle.dumps(dictionary))
        tools = []
        for _ in range(4):
            tools.append(dictionary.choose(warm, 100 * MIB, tuple(times)).tool)
            dictionary.observe(warm, 100 * MIB, tools[-1], times[tools[-1]])
        tries += tools.count("numpy") if number >= 5 else 0
    assert tries <= 5  # of 100 calls


def test_processes_of_three_calls_that_begin_with_what_ships_take_little_more_than_with_the_best_tool() -> None:
    context, least = Context("load", "safetensors", "cpu", resident=True), 4e-3
    times, took, best = {"uring": 1.0, "posix": 1.1, "torch": 1.8, "numpy": 1.5}, 0.0, 0.0
    for seed in range(3):
        chance, dictionary = random.Random(seed), Dictionary()
        for number in range(40):
            dictionary, warm = pickle.loads(pickle.dumps(dictionary)), set[str]()
            for call in range(3):
                tool = dictionary.choose(context, 12 * MIB, tuple(times)).tool
                seconds = least * times[tool] * (1.0 if tool in warm else 1.4) * chance.lognormvariate(0, 0.08)
                dictionary.observe(context, 12 * MIB, tool, seconds)
                warm.add(tool)
                took += seconds if number >= 5 else 0.0
                best += least * (1.0 if call else 1.4) if number >= 5 else 0.0
    assert took <= 1.15 * best


def test_what_another_process_wrote_meanwhile_is_kept(folder: Path) -> None:
    mine = dicts.default("save", ".")
    fill(mine, {"uring": 2e-3})
    in_a_process("""
        dictionary = dicts.default("save", ".")
        for _ in range(6):
            dictionary.observe(SAVE, MIB, "posix", 1e-3)
    """)
    dicts.flush()
    (context,) = kept(folder)["contexts"]
    (entry,) = context["sizes"].values()
    assert set(entry["microseconds"]) == {"uring", "posix"}
    assert entry["best"] == "posix"


def test_many_processes_may_write_at_once(folder: Path) -> None:
    program = "import sys\nfrom fastio import dicts\nfrom fastio.dicts import Context\n" + textwrap.dedent("""
        dictionary = dicts.default("save", ".")
        for number in range(20):
            dictionary.observe(Context("save", sys.argv[1], "cpu", True), 1 << 20, "posix", 1e-3)
            dicts.flush()
    """)
    running = [warm_python.WarmPopen([sys.executable, "-c", program, name]) for name in "abcd"]
    assert [process.wait(timeout=600) for process in running] == [0] * 4
    assert {context["format"] for context in kept(folder)["contexts"]} == set("abcd")
    assert not list(folder.glob("*.tmp"))


def test_a_forked_child_does_not_write_what_its_parent_learned(folder: Path) -> None:
    in_a_process("""
        dictionary = dicts.default("save", ".")
        for _ in range(4):
            dictionary.observe(SAVE, MIB, "uring", 1e-3)
        child = os.fork()
        if not child:
            dictionary.observe(SAVE, MIB, "posix", 1e-3)
            dictionary.observe(SAVE, MIB, "posix", 1e-3)
            dicts.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """)
    (context,) = kept(folder)["contexts"]
    (entry,) = context["sizes"].values()
    assert {tool: len(times) for tool, times in entry["microseconds"].items()} == {"uring": 3, "posix": 1}


def test_a_fork_while_other_threads_learn_does_not_hang() -> None:
    in_a_process("""
        import threading
        dictionary, stop = dicts.default("save", "."), threading.Event()
        def learn():
            while not stop.is_set():
                dictionary.observe(SAVE, MIB, dictionary.choose(SAVE, MIB, TOOLS).tool, 1e-3)
        threads = [threading.Thread(target=learn) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            child = os.fork()
            if not child:
                dictionary.observe(SAVE, MIB, dictionary.choose(SAVE, MIB, TOOLS).tool, 1e-3)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
    """)


def test_it_is_written_now_and_then_without_being_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "WRITE_EVERY_SECONDS", 0.0)
    dictionary = dicts.default("save", ".")
    for _ in range(storage.FIRST_WRITE_CALLS - 1):
        dictionary.observe(SAVE, MIB, "posix", 1e-3)
    assert not folder.exists()
    dictionary.observe(SAVE, MIB, "posix", 1e-3)
    assert kept(folder)["contexts"]
    (written,) = folder.glob("*.json")
    for calls in (2 * storage.FIRST_WRITE_CALLS, storage.WRITE_EVERY_CALLS, storage.WRITE_EVERY_CALLS):
        before = written.stat().st_ino
        for _ in range(calls - 1):
            dictionary.observe(SAVE, MIB, "posix", 1e-3)
        assert written.stat().st_ino == before
        dictionary.observe(SAVE, MIB, "posix", 1e-3)
        assert written.stat().st_ino != before


def test_times_of_another_process_are_learned_while_both_run(folder: Path) -> None:
    dictionary = dicts.default("save", ".")
    fill(dictionary, {"posix": 2e-3})
    in_a_process("""
        dictionary = dicts.default("save", ".")
        for _ in range(4):
            dictionary.observe(SAVE, MIB, "uring", 1e-3)
            dictionary.observe(SAVE, MIB, "posix", 9e-3)
            dictionary.observe(SAVE._replace(format="npy"), MIB, "torch", 1e-3)
    """)
    tools = ["uring", "posix", "torch"]
    assert list(dictionary.times(SAVE, MIB, tools)) == ["posix"]
    dicts.flush()
    known = dictionary.times(SAVE, MIB, tools)
    assert known == pytest.approx({"uring": 1e-3, "posix": 2e-3}, rel=0.1), "its own times of posix stay"
    assert list(dictionary.times(SAVE._replace(format="npy"), MIB, tools)) == ["torch"]
    assert dictionary.choose(SAVE, MIB, tools[:2]).tool == "uring"


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_default_is_ignored_with_a_warning_and_rebuilt(folder: Path, text: str) -> None:
    folder.mkdir()
    path = folder / fingerprint.of(os.getcwd()).file_name
    path.write_text(text)
    with pytest.warns(RuntimeWarning, match="ignored and learned anew"):
        dictionary = dicts.default("save", ".")
    fill(dictionary, {"uring": 2e-3, "posix": 1e-3})
    dicts.flush()
    dicts.forget()
    assert dicts.default("save", ".").choose(SAVE, MIB, TOOLS).tool == "posix"


def test_a_default_from_another_machine_is_ignored_with_a_warning(folder: Path) -> None:
    fill(dicts.default("save", "."), {"uring": 2e-3, "posix": 1e-3})
    dicts.flush()
    dicts.forget()
    (path,) = folder.glob("*.json")
    plain = json.loads(path.read_text())
    plain["fingerprint"]["device"] = "another disk"
    path.write_text(json.dumps(plain))
    with pytest.warns(RuntimeWarning, match="another machine"):
        assert dicts.default("save", ".").times(SAVE, MIB, TOOLS) == {}


@pytest.mark.parametrize("unusable", ["file/folder", "/proc/fastio"])
def test_a_folder_that_cannot_be_used_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, unusable: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FASTIO_DICTIONARY_DIR", str(tmp_path / unusable))
    dictionary = dicts.default("save", ".")
    for _ in range(3):
        fill(dictionary, {"uring": 2e-3, "posix": 1e-3})
        dicts.flush()
    assert [str(tmp_path / unusable) in str(warning.message) for warning in recwarn] == [True]
    assert dictionary.choose(SAVE, MIB, TOOLS).tool == "posix"


HOMELESS = """
import os, sys
os.setreuid(54321, -1)  # nobody's number: the process still may what root may, but has no home
import json, torch, fastio
fastio.save(torch.ones(3 << 20), sys.argv[1])
for _ in range(8):
    fastio.load(sys.argv[1])
print(json.dumps(sum(entry.samples for entry in fastio.explain(sys.argv[1]).entries)), os.listdir())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become nobody")
def test_without_a_home_directory_dictionaries_are_in_memory_alone_and_one_warning_says_so(tmp_path: Path) -> None:
    names = ("HOME", "XDG_CACHE_HOME", "FASTIO_DICTIONARY_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    (tmp_path / "here").mkdir()
    told = {}
    for program in (HOMELESS, HOMELESS.partition("fastio.save")[0]):
        ran = subprocess.run(
            [sys.executable, "-c", program, tmp_path / "file.pt"],
            env=environment, cwd=tmp_path / "here", capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        told[program] = ran.stdout, ran.stderr
    said, warned = told[HOMELESS]
    assert re.match(r"[1-9][0-9]* \[\]$", said)
    assert warned.count("RuntimeWarning") == 1
    assert "no home directory" in warned
    assert "FASTIO_DICTIONARY_DIR" in warned
    assert told[HOMELESS.partition("fastio.save")[0]] == ("", "")  # nothing was learned, so nothing is lost


def test_a_renewal_that_makes_no_sense_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTIO_RENEW", "often")
    with pytest.warns(RuntimeWarning, match=r"FASTIO_RENEW.*'often'"):
        assert dicts.default("save", ".").choose(SAVE, MIB, TOOLS).order


def test_leftovers_of_dead_writers_are_removed(folder: Path) -> None:
    folder.mkdir()
    name = fingerprint.of(os.getcwd()).file_name
    old, new = folder / f"{name}.1.2.tmp", folder / f"{name}.3.4.tmp"
    for leftover in (old, new):
        leftover.write_text("half")
    os.utime(old, (1.0, 1.0))
    fill(dicts.default("save", "."), {"uring": 2e-3})
    dicts.flush()
    assert not old.exists()
    assert new.exists()


def test_one_set_per_filesystem(tmp_path: Path) -> None:
    here, there = tmp_path / "a", tmp_path / "b"
    here.mkdir()
    there.mkdir()
    assert dicts.default("save", str(here)) is dicts.default("save", str(there))
    assert dicts.default("save", str(here / "not" / "there" / "yet")) is dicts.default("save", str(here))
    if os.stat("/dev/shm").st_dev != os.stat(here).st_dev:
        assert dicts.default("save", "/dev/shm") is not dicts.default("save", str(here))


def test_a_fingerprint_says_what_times_depend_on(tmp_path: Path) -> None:
    marks = fingerprint.of(str(tmp_path))
    assert marks.filesystem != "unknown"
    assert marks.device != "unknown"
    assert marks.torch == __import__("torch").__version__
    assert f"numpy {numpy.__version__}" in marks.tools.split(", ")
    for field in fingerprint.Fingerprint._fields:
        assert marks._replace(**{field: "another"}).file_name != marks.file_name
    assert marks.file_name.endswith(".json")
    assert marks.file_name != fingerprint.of("/proc").file_name


def test_importing_reads_no_dictionary() -> None:
    """The folder is the caller's to set until the first look-up."""
    said = in_a_process("""
        import fastio
        from fastio.dicts import defaults
        print(len(defaults._by_name))
    """)
    assert said == "0\n"


def test_the_first_small_transfer_goes_by_the_priors_and_is_told_to_the_dictionary_later() -> None:
    fill(dicts.default("save", "."), {"uring": 1e-3, "posix": 9e-3})
    dicts.flush()
    dicts.forget()
    first = dicts.default("save", ".", nbytes=4096)
    assert first.times(SAVE, MIB, TOOLS) == {}
    for _ in range(2):  # a tool's first call in a process is warm-up
        first.observe(SAVE, MIB, "torch", 2e-3)
    second = dicts.default("save", ".", nbytes=4096)
    assert second is dicts.default("save", ".")
    assert second.times(SAVE, MIB, (*TOOLS, "torch")).keys() == {"uring", "posix", "torch"}
    first.fail(SAVE, MIB, "torch", "it came late")
    assert "torch" not in second.times(SAVE, MIB, (*TOOLS, "torch"))


def test_a_large_first_transfer_waits_for_the_dictionary() -> None:
    assert dicts.default("save", ".", nbytes=64 * MIB) is dicts.default("save", ".")


def test_what_the_only_small_transfer_took_is_kept_at_exit(folder: Path) -> None:
    in_a_process("d = dicts.default('save', '.', nbytes=10); d.observe(SAVE, 10, 'posix', 1e-3)")
    assert "posix" in str(kept(folder))


@pytest.mark.parametrize(
    "broken",
    [
        {"sizes": {"1048576": {"microseconds": {"uring": ["soon"]}}}},
        {"failures": {"uring": {"reason": "\ud800", "count": 1}}},
        {"op": 3},
        {"small": "very"},
    ],
    ids=["times", "reason", "op", "small"],
)
def test_a_context_that_makes_no_sense_is_learned_anew_and_the_others_stay(
    folder: Path, broken: dict[str, Any]
) -> None:
    fill(dicts.default("save", "."), {"uring": 1e-3})
    fill(dicts.default("load", "."), {"posix": 1e-3}, LOAD)
    dicts.flush()
    (path,) = folder.glob("*.json")
    plain = kept(folder)
    next(context for context in plain["contexts"] if context["op"] == "save").update(broken)
    path.write_text(json.dumps(plain))
    dicts.forget()
    with pytest.warns(RuntimeWarning, match=rf"{path.name}: what it says of a context is ignored and learned anew"):
        assert dicts.default("save", ".").times(SAVE, MIB, TOOLS) == {}
    assert dicts.default("load", ".").times(LOAD, MIB, TOOLS).keys() == {"posix"}
    fill(dicts.default("save", "."), {"uring": 1e-3})
    dicts.flush()
    dicts.forget()
    for op, context in ("save", SAVE), ("load", LOAD):
        assert dicts.default(op, ".").times(context, MIB, TOOLS)


def test_the_best_tool_of_a_file_follows_the_times_of_all_processes(folder: Path) -> None:
    for times in ({"uring": 2e-3, "posix": 4e-3}, {"uring": 8e-3, "posix": 1e-3}):
        fill(dicts.default("save", "."), times)
        dicts.flush()
        dicts.forget()
    (size,) = kept(folder)["contexts"][0]["sizes"].values()
    assert size["best"] == "posix"


def with_many_contexts(folder: Path) -> dict[str, Any]:
    """The file of a machine on which much was saved and loaded: 101 contexts."""
    fill(dicts.default("save", str(folder.parent)), {"uring": 0.001})
    dicts.flush()
    (path,) = folder.glob("*.json")
    plain = kept(folder)
    (own,) = plain["contexts"]
    others = [{**own, "format": f"of plug-in {number}"} for number in range(100)]
    path.write_text(json.dumps({**plain, "contexts": [*others, own]}))
    dicts.forget()
    return plain


def test_a_write_leaves_contexts_of_other_programs_as_they_are(folder: Path) -> None:
    (own,) = with_many_contexts(folder)["contexts"]
    fill(dicts.default("save", str(folder.parent)), {"uring": 0.001, "posix": 0.002})
    dicts.flush()
    contexts = {context["format"]: context for context in kept(folder)["contexts"]}
    assert len(contexts) == 101
    assert all(contexts[f"of plug-in {number}"]["sizes"] == own["sizes"] for number in range(100))
    ((size, _),) = own["sizes"].items()
    assert set(contexts["pt"]["sizes"][size]["microseconds"]) == {"uring", "posix"}
    other = SAVE._replace(format="of plug-in 7")
    known = dicts.default("save", str(folder.parent)).times(other, MIB, ["uring"])["uring"]
    assert known == pytest.approx(0.001, rel=0.3)


def test_reading_and_writing_start_no_collection_of_all_objects(folder: Path) -> None:
    # It looks at all of torch's objects, for 100 ms, in which the caller of a small save waits.
    with_many_contexts(folder)
    found: list[int] = []

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(200, 1, 1)
    gc.callbacks.append(count)
    try:
        dictionary = dicts.default("save", str(folder.parent))
        dictionary.observe(SAVE, MIB, "uring", 0.001)
        dicts.flush()
    finally:
        gc.callbacks.remove(count)
        gc.set_threshold(*before)
    assert found
    assert max(found) == 0


def test_what_is_read_replaces_no_context_in_use() -> None:
    """Another thread may begin to use a context while the file is read again."""
    theirs, mine = WDic(), WDic()
    fill(theirs, {"uring": 1.0})
    fill(mine, {"posix": 0.5})
    mine.adopt_later(dict.fromkeys([SAVE], theirs.__getstate__()["contexts"][0]))
    assert list(mine.times(SAVE, MIB, TOOLS)) == ["posix"]
