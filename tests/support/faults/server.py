"""The forking server: it imports everything that programs need, and never uses a thread or a ring itself."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import traceback
from typing import Any

from faults import checkpoints, objects, programs

_MODULES = {"": programs, "checkpoints": checkpoints}


def main() -> None:
    """Answer one JSON request per line: start a program, wait for one, or create an object for all children."""
    gc.collect()
    gc.freeze()  # so that a collection in a child copies no page of what was imported
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            reply = {"status": os.waitstatus_to_exitcode(status)}
        elif "warm_up" in request:
            checkpoints.warm_up()
            reply = {}
        elif "make" in request:
            objects.make(*request["make"])
            reply = {}
        else:
            if len(os.listdir("/proc/self/task")) > 1:
                raise RuntimeError("the server has threads: a child could inherit a lock that no thread releases")
            pid = os.fork()
            if pid == 0:
                _child(request)
            reply = {"pid": pid}
        print(json.dumps(reply), flush=True)


def _child(request: dict[str, Any]) -> None:
    status = 1
    try:
        # The program must not write to the server's pipes: its output goes to a file.
        fd = os.open(request["base"] + ".err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
        os.close(null)
        os.environ["FASTIO_DICTIONARY_DIR"] = request["base"] + ".dictionaries"  # each child starts with none
        faulthandler.enable()
        faulthandler.dump_traceback_later(request["timeout"], exit=True)
        with open(request["base"] + ".json", "w") as report:  # opened before the program may change its user
            module, _, name = request["program"].rpartition(".")
            json.dump(getattr(_MODULES[module], name)(**request["arguments"]), report)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
