"""A client of QEMU's monitor (QMP), to switch traces on and off while the guest runs."""

from __future__ import annotations

import json
import socket
from pathlib import Path


class Monitor:
    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._lines.readline()  # its greeting
        self._ask("qmp_capabilities", {})

    def trace(self, events: tuple[str, ...], on: bool) -> None:
        for name in events:
            self._ask("trace-event-set-state", {"name": name, "enable": on})

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def _ask(self, command: str, arguments: dict[str, object]) -> None:
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        for line in self._lines:
            answer = json.loads(line)
            if "error" in answer:
                raise RuntimeError(f"QEMU refuses {command} {arguments}: {answer['error']['desc']}")
            if "return" in answer:
                return
        raise RuntimeError(f"QEMU ended during {command}")
