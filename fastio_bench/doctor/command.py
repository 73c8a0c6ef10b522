"""``fastio-bench doctor``: what is installed, the way of bytes, and the limit of the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastio.inspect.machine_checks import tool_rows
from fastio_bench.doctor import checks as doctors
from fastio_bench.doctor import nvme as doctor_nvme
from fastio_bench.harness import room
from fastio_bench.harness.command_run import CommandRun
from fastio_bench.harness.stats import summarise
from fastio_bench.report import findings_tables, summary_tables
from fastio_bench.report.table import ResultTable
from fastio_bench.workloads.objects import MIB


def doctor(command: CommandRun) -> None:
    """What is here and what is not, the path that bytes really take, NVMe controllers, and the limit of the disk."""

    probe, cut = room.one_size(doctors.PROBE_BATCH, command.parent, doctors.PROBE_FILES)
    nbytes = doctors.limit_nbytes(command.parent)
    command.report.settings |= {"ways": probe.label, "limit": f"{nbytes // MIB} MiB"}
    command.report.notes += [cut] if cut else []
    if nbytes < doctors.LIMIT_NBYTES:
        command.report.notes.append(f"limit of the disk: {nbytes // MIB} MiB at a time, {room.WANT}")

    def work(folder: Path) -> None:
        with command.meter([1.0, 2.0, 2.0, 10.0]) as meter:
            nvme = doctor_nvme.find()
            steps: list[tuple[str, float, Any]] = [
                ("machine", 1.0, lambda folder: [*doctors.system(folder), *doctor_nvme.answers(nvme.facts)]),
                ("tools", 2.0, lambda folder: tool_rows()),
                ("ways", 2.0, lambda folder: doctors.ways(folder, probe)),
            ]
            for name, weight, ask in steps:
                meter(name, 0)
                rows = command.report.findings[name] = ask(folder)
                for table in findings_tables.tables({name: rows}):
                    command.show(table)
                meter(name, weight)
            command.report.findings["nvme"] = nvme.document()
            command.report.tables += doctor_nvme.tables(nvme)
            command.report.notes += [] if nvme.controllers else [doctor_nvme.NONE]
            meter("limit of the disk", 0)
            rounds = 2 if command.quick else doctors.LIMIT_ROUNDS
            for _ in command.report.take(doctors.disk(folder, rounds, nbytes)):
                meter("limit of the disk", 10.0 / rounds / 2)

    def show() -> list[ResultTable]:
        summaries = summarise(command.report.samples)
        return [summary_tables.matrix("Limit of the disk, past the page cache", summaries)]

    command.run(work, show)
