"""The subcommands as a user runs them: output, files and exit status."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import fastio
from benching import MIB, invoke, on_disk
from fastio import dicts
from fastio.offload.codecs.encoding import CODECS
from fastio.offload.planning.schedule import POLICIES
from fastio.transports import registry
from fastio_bench.commands import SUBCOMMANDS, cli
from fastio_bench.doctor import checks
from fastio_bench.harness import warmup
from fastio_bench.harness.command_run import CommandRun
from fastio_bench.harness.options import common
from fastio_bench.harness.rounds import Measured
from fastio_bench.harness.run_record import workspace
from fastio_bench.machine import disk_limit, host, machine
from fastio_bench.machine.machine_facts import facts
from fastio_bench.offload import device_ways
from fastio_bench.peers import catalogue, compare
from fastio_bench.tools import tune, tune_options
from fastio_bench.weights import ways
from fastio_bench.workloads import objects
from fastio_bench.workloads.models import MODELS
from fastio_bench.workloads.training_models import ARCHITECTURES
from warm_python import WarmPopen

LOADS = (compare.COLD, compare.WARM)
# A subcommand whose files take a moment to remove; its work ends with its input, or by a signal.
MANY_FILES = """
import sys
import click
from fastio_bench.harness.options import common

@click.command(name="trial")
@common
def trial(command_run):
    def work(folder):
        for number in range(10_000):
            (folder / str(number)).touch()
        command_run.report.findings["made"] = number + 1
        print("made", flush=True)
        sys.stdin.read()

    command_run.run(work)

trial(prog_name="trial")
"""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return on_disk(tmp_path)


class TestWriting:
    """Results that cannot be written: an error before the measurement, or after the output."""

    @pytest.fixture
    def measured(self) -> list[Path]:
        return []

    @pytest.fixture
    def trial(self, measured: list[Path]) -> click.Command:
        @click.command(name="trial")
        @common
        def trial(command_run: CommandRun) -> None:
            command_run.report.findings["long"] = "x" * (2 * MIB)
            command_run.run(measured.append, lambda: ["what was found"])

        return trial

    @pytest.mark.parametrize("option", ["--out", "--dir"])
    def test_unwritable_folder_is_refused(
        self, option: str, trial: click.Command, measured: list[Path], tmp_path: Path
    ) -> None:
        place = "/proc" if option == "--dir" else "/proc/none"
        result = CliRunner().invoke(trial, ["--dir", str(tmp_path), option, place], catch_exceptions=False)
        assert result.exit_code == 2
        assert f"{option} {place}: no file can be made in it" in result.output
        assert "name a folder that you may write" in " ".join(result.output.split())
        assert measured == []

    def test_folder_below_a_file_is_refused(self, trial: click.Command, measured: list[Path], tmp_path: Path) -> None:
        (tmp_path / "afile").touch()
        arguments = ["--dir", str(tmp_path), "--out", str(tmp_path / "afile" / "x")]
        result = CliRunner().invoke(trial, arguments, catch_exceptions=False)
        assert result.exit_code == 2
        assert "Not a directory" in result.output
        assert measured == []

    def test_full_disk_is_reported_after_the_results(
        self, trial: click.Command, measured: list[Path], tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        out.mkdir()
        (out / "trial.json").write_text("of another day")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, before[1]))
        try:
            arguments = ["--dir", str(tmp_path), "--out", str(out)]
            result = CliRunner().invoke(trial, arguments, catch_exceptions=False)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert result.exit_code == 1
        assert result.stdout.startswith("what was found\nmeasured ")
        assert f"Error: --out {out}: OSError: [Errno 27] File too large" in result.stderr
        assert len(measured) == 1
        assert {path.name: path.read_text() for path in out.iterdir()} == {"trial.json": "of another day"}

    @pytest.mark.parametrize("place", ["nodir/x.csv", "/proc/x.csv"])
    def test_unwritable_trace_is_refused_before_recording(self, place: str, tmp_path: Path) -> None:
        said = invoke("tools", "--record", place, "--dir", str(tmp_path), status=2).output
        assert f"--record {place}: it cannot be written" in said
        assert " of disk" not in said  # that is announced before the first call


class TestCommands:
    @pytest.fixture(autouse=True)
    def small_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "LIMIT_NBYTES", 32 * MIB)

    def test_module_and_script_run_alike(self) -> None:
        for start in (["-m", "fastio_bench.cli"], ["-c", "from fastio_bench import main; main()"]):
            said = subprocess.run([sys.executable, *start, "--help"], check=True, capture_output=True, text=True).stdout
            assert all(f"  {name}  " in said for name in SUBCOMMANDS)

    def test_doctor_reports_machine_and_tools(self, disk: Path) -> None:
        said = invoke("doctor", "--quick", "--dir", str(disk)).stdout
        for expected in ("filesystem", "io_uring", "page cache", "GPUDirect Storage", "native module", "posix"):
            assert expected in said
        assert re.search(r"new memory +. [1-9][\d,]* MB/s at its first touch, [1-9][\d,]* if", said)
        assert not list(disk.iterdir())

    @pytest.mark.parametrize(
        ("features", "taken_back"), [("01100101", True), ("01100001", False), ("", False), (None, False)]
    )
    def test_doctor_detects_a_host_that_takes_memory_back(
        self, tmp_path: Path, features: str | None, taken_back: bool
    ) -> None:
        if features is not None:
            (tmp_path / "virtio3").mkdir()
            (tmp_path / "virtio3/features").write_text(features + "0" * 56)
        assert host.takes_memory_back(tmp_path / "virtio_balloon") is False
        assert host.takes_memory_back(tmp_path) is taken_back

    def test_taken_back_is_the_kernels_counter(self, tmp_path: Path) -> None:
        counter = tmp_path / "reported_kib"
        assert host.taken_back(counter) == 0
        counter.write_text("524288\n")
        assert host.taken_back(counter) == 512 * MIB
        counter.write_text("?")
        assert host.taken_back(counter) == 0

    def test_doctor_reports_tool_and_route(self, disk: Path) -> None:
        told = json.loads(invoke("doctor", "--quick", "--json", "--dir", str(disk)).stdout)
        assert {name for name, _ in told["findings"]["ways"]} == {"durable save", "save", "cold load", "warm load"}
        assert {(sample["tool"]) for sample in told["samples"]} == {"write", "read"}
        assert told["machine"]["filesystem"]["kind"]

    def test_doctor_reports_missing_direct_io(self) -> None:
        with workspace(Path("/dev/shm")) as folder:
            assert "cannot be dropped" in checks.page_cache(folder)
            assert checks.ways(folder, objects.one_tensor(1))

    def test_doctor_keeps_samples_of_an_interrupted_limit(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Interrupted(disk_limit.RingLimit):
            def read(self, path: Path, nbytes: int) -> Measured:
                raise KeyboardInterrupt

        monkeypatch.setattr(disk_limit, "find", Interrupted)
        out, work = disk / "out", disk / "work"
        work.mkdir()
        said = invoke("doctor", "--quick", "--dir", str(work), "--out", str(out), status=130).stdout
        assert "Limit of the disk, past the page cache" in said
        told = json.loads((out / "doctor-quick.json").read_text())
        assert [sample["tool"] for sample in told["samples"]] == ["write"]
        assert not list(work.iterdir())

    def test_peers_writes_every_sample(self, disk: Path) -> None:
        out, work = disk / "out", disk / "work"
        work.mkdir()
        tools = ("torch", "numpy", "fastio", "fastio, unverified")
        chosen = [word for tool in tools for word in ("--tool", tool)]
        said = invoke(
            *("peers", "--workload", "tensor-3.0625", "--rounds", "1", "--out", str(out), "--dir", str(work)), *chosen
        ).stdout
        assert "Goals" in said
        told = json.loads((out / "peers-tensor-3.0625.json").read_text())
        counts = {(s["work"], s["tool"]): s["rounds"] for s in told["summaries"]}
        assert counts == {
            (work, tool): 1 for work in compare.WORKS for tool in tools if work in LOADS or tool != "fastio, unverified"
        }
        assert len(told["samples"]) == sum(counts.values())
        assert told["failures"] == []
        assert len(list(out.glob("*.png"))) == 4
        assert not list(work.iterdir())
        assert told["machine"]["versions"]["torch"]
        assert not told["interrupted"]

    def test_tune_shows_the_learned_tools(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tune, "QUICK_BATCHES", (1,))
        monkeypatch.setenv("FASTIO_DICTIONARY_DIR", str(disk / "dictionaries"))
        dicts.flush()
        dicts.forget()
        out = disk / "out"
        said = invoke("tune", "--quick", "--rounds", "2", "--dir", str(disk), "--out", str(out)).stdout
        calls = json.loads((out / "tune-quick.json").read_text())["findings"]["calls"]["tensor-3.0625"]
        assert {work: len(made) for work, made in calls.items()} == dict.fromkeys(compare.WORKS, 2)
        assert all(call["tool"] and call["reason"] and call["seconds"] > 0 for made in calls.values() for call in made)
        assert "one tensor, 3.0625 MiB, durable save" in said
        assert "posix" in said
        assert list((disk / "dictionaries").iterdir())
        assert (out / "tune-quick-learned.png").stat().st_size > 0
        dicts.forget()

    @pytest.mark.parametrize(
        ("arguments", "appears"),
        [
            (
                ("peers", "--workload", "small-tensors", "--tool", "torch", "--rounds", "1000", "--work", "save"),
                "saving",
            ),
            (("io", "--quick", "--tool", "posix", "--rounds", "20"), "of-*"),
        ],
        ids=["peers", "io"],
    )
    def test_ctrl_c_keeps_samples_and_leaves_no_files(
        self, arguments: tuple[str, ...], appears: str, disk: Path
    ) -> None:
        out, work = disk / "out", disk / "work"
        work.mkdir()
        program = (
            "import os; os.sync = lambda: None\n"  # as all tests here
            "from fastio_bench.io import cost_probe, sweep\n"
            "cost_probe.BATCHES, sweep.QUICK_BATCHES = (1, 2), (2, 1)\n"
            "from fastio_bench.cli import main; main()"
        )
        with open(disk / "complaints", "w+") as complaints:
            child = WarmPopen(
                [sys.executable, "-c", program, *arguments, "--dir", str(work), "--out", str(out)],
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
            pause = threading.Event()
            probed = arguments[0] != "io"
            while child.poll() is None and not (probed and list(work.glob(f"*/{appears}"))):
                probed = probed or " of disk" in (disk / "complaints").read_text()
                pause.wait(0.01)
            child.send_signal(signal.SIGINT)
            said, _ = child.communicate()
        assert child.returncode == 130, (disk / "complaints").read_text()
        assert "interrupted: what is shown" in said
        (written,) = out.glob("*.json")
        told = json.loads(written.read_text())
        assert told["interrupted"]
        if arguments[0] == "io":
            works = {sample["work"] for sample in told["samples"]}
            assert {"durable write", "write"} <= works
            assert "warm read" not in works
        assert not list(work.iterdir())

    @pytest.mark.parametrize("first", [signal.SIGINT, None], ids=["interrupted", "done"])
    def test_ctrl_c_during_cleanup_has_no_effect(self, first: signal.Signals | None, disk: Path) -> None:
        out, work = disk / "out", disk / "work"
        work.mkdir()
        with WarmPopen(
            [sys.executable, "-c", MANY_FILES, "--dir", str(work), "--out", str(out)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "made\n"
            (folder,) = work.iterdir()
            there = len(os.listdir(folder))
            if first is not None:
                child.send_signal(first)
            elif child.stdin is not None:
                child.stdin.close()  # its work is done
            pause = threading.Event()
            while child.poll() is None and folder.exists() and len(os.listdir(folder)) == there:
                pause.wait(0.001)
            for number in (signal.SIGINT, signal.SIGTERM):
                child.send_signal(number)
            assert child.wait() == (0 if first is None else 130), child.stderr and child.stderr.read()
        assert json.loads((out / "trial.json").read_text())["findings"] == {"made": there}
        assert not list(work.iterdir())

    @pytest.mark.parametrize("name", sorted(SUBCOMMANDS))
    def test_help_describes_every_option(self, name: str) -> None:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert name in invoke(name, "--help").stdout
        assert command.help
        options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
        told = [option for option in options if option.help or isinstance(option.type, click.Choice)]
        assert told == options  # choices need no description
        if name not in ("papers", "report"):  # they measure nothing
            assert {"--dir", "--quick", "--out", "--json"} <= {word for option in options for word in option.opts}

    @pytest.mark.parametrize("library", ["torch", "click"])
    def test_ctrl_c_during_import_prints_one_line(self, library: str, tmp_path: Path) -> None:
        """Ctrl-C during the import of a library, fastio's or one of the commands'."""
        (tmp_path / f"{library}.py").write_text(
            "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()\n"
        )
        program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom fastio_bench import main; main()"
        child = subprocess.run([sys.executable, "-c", program, "doctor"], capture_output=True, text=True, check=False)
        assert child.returncode == 130, child.stderr
        assert child.stdout == ""
        assert child.stderr == "interrupted\n"

    def test_list_of_commands_is_not_truncated(self) -> None:
        said = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
        for name, (_, line) in SUBCOMMANDS.items():
            assert len(line) <= 55
            assert line.endswith(".")
            assert re.search(rf"^  {name} +{re.escape(line)}$", said, re.MULTILINE)

    @pytest.mark.parametrize(
        ("command", "option", "names"),
        [
            ("model", "--model", list(MODELS)),
            ("peers", "--tool", [peer.name for peer in catalogue.every()]),
            ("io", "--tool", registry.names()),
        ],
    )
    def test_help_and_errors_list_the_valid_names(
        self, command: str, option: str, names: list[str], tmp_path: Path
    ) -> None:
        told = "".join(invoke(command, "--help").output.split())  # a name may be broken at its hyphens
        assert all("".join(name.split()) in told for name in names)
        refused = invoke(command, option, "teleport", "--dir", str(tmp_path), status=2).output
        there = {status.name for status in fastio.tools() if status.available} if command == "io" else names
        assert all(name in refused for name in there)

    def test_help_describes_quick_for_each_command(self) -> None:
        assert "some seconds" in invoke("doctor", "--help").stdout
        told = " ".join(invoke("peers", "--help").stdout.split())
        assert "torch and fastio alone, no other library" in told
        assert "torch and, without --quick, safetensors, numpy, DCP and DALI" in told
        assert "a minute or two" in invoke("io", "--help").stdout

    @pytest.mark.parametrize("chosen", [(), ("--tool", "torch")], ids=["quick", "chosen"])
    def test_peers_quick_names_the_peers_left_out(self, chosen: tuple[str, ...], disk: Path) -> None:
        arguments = ("--quick", "--workload", "tensor-3.0625", "--work", "save", "--rounds", "1", "--json")
        told = json.loads(invoke("peers", *arguments, *chosen, "--dir", str(disk)).stdout)
        took_part = {sample["tool"] for sample in told["samples"]}
        assert took_part == ({"torch"} if chosen else {"torch", "torch, no CRC", "fastio"})
        said = [note for note in told["notes"] if note.startswith("left out with --quick: ")]
        assert len(said) == (0 if chosen else 1)
        for note in said:
            missing = note.partition(": ")[2].partition(". ")[0].split("; ")
            assert [*missing, *compare.QUICK_PEERS] == sorted(
                (peer.name for peer in catalogue.every()), key=lambda name: name in compare.QUICK_PEERS
            )
            assert "--tool NAME" in note

    @pytest.mark.skipif(not disk_limit.fio(), reason="fio is not installed")
    def test_fio_version_has_the_name_once(self) -> None:
        number = machine.versions()["fio"]
        assert number[0].isdigit()
        for one in (number, f"fio-{number}"):  # as in old documents
            assert facts({"versions": {"fio": one}})["Versions"] == f"fio {number}"

    def test_without_click_names_the_package_to_install(self) -> None:
        code = "import sys; sys.modules['click'] = None; from fastio_bench.cli import main; main()"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert child.returncode == 1
        assert "pip install click" in child.stderr


def choices(subcommand: str) -> dict[str, list[str]]:
    """The choices of a subcommand's options, by the option's name in Python."""
    command = cli.get_command(click.Context(cli), subcommand)
    assert command is not None
    return {str(one.name): [*one.type.choices] for one in command.params if isinstance(one.type, click.Choice)}


def test_choices_are_what_the_subcommands_know() -> None:
    """They are written out in the options, which import nothing of what runs."""
    assert choices("model") == {"names": [*MODELS]}
    assert choices("contend") == {"device": [device_ways.SIMULATED]}
    assert choices("offload") == {
        "model": [*ARCHITECTURES],
        "policies": [*POLICIES],
        "codecs": [*CODECS],
        "device": ["cpu", "cuda", device_ways.SIMULATED],
    }
    assert choices("peers") == {
        "names": [workload.name for workload in objects.standard()],
        "chosen": [peer.name for peer in catalogue.every()],
        "works": [*compare.WORKS],
    }
    tools = dict.fromkeys(tool for work in ways.WAYS.values() for tool in work)
    assert choices("weights") == {"name": ["llama", "experts"], "works": [*ways.WORKS], "tools": [*tools]}
    assert (tune_options.ROUNDS, tune_options.QUICK_ROUNDS) == (warmup.MOST_ROUNDS, tune.QUICK_ROUNDS)
