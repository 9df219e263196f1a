"""The process in which programs run: a JSON line in, a JSON line out, until its input ends.

Each case of a program runs in a child that has been forked for it. Before a line of the program runs, the child gives up
everything but computing: Linux's seccomp allows the system calls of :data:`ALLOWED` alone, so a program opens no file, makes no
socket or process and sends no signal; memory, CPU seconds and output are bounded. Modules are imported before that: a program
can import those of :data:`MODULES`. Expected values never enter this process, so no trick within it can find or compare them.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import importlib
import io
import json
import math
import os
import platform
import resource
import select
import signal
import struct
import sys
import time
from typing import Any

# fmt: off
MODULES = ("abc", "array", "bisect", "calendar", "collections", "copy", "dataclasses", "datetime", "decimal", "enum",
           "fractions", "functools", "hashlib", "heapq", "itertools", "json", "math", "numbers", "operator", "queue", "random",
           "re", "statistics", "string", "textwrap", "time", "typing", "unicodedata", "_strptime", "cmath", "pprint",
           "traceback")
ALLOWED = {  # by name: its number on x86_64 and on aarch64 (None: it has none)
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226),
    "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "mremap": (25, 216), "getpid": (39, 172), "exit": (60, 93), "gettimeofday": (96, 169),
    "getrusage": (98, 165), "sigaltstack": (131, 132), "gettid": (186, 178), "futex": (202, 98), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "exit_group": (231, 94), "fstat": (5, 80),
    "getrandom": (318, 278),
}
# fmt: on
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # audit number, column of ALLOWED
MAX_MEMORY, MAX_OUTPUT = 512 << 20, 1 << 16  # bytes
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 1, 38, 22, 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1  # EPERM
_X32 = 0x40000000  # a second numbering of x86_64's calls


def filter_program() -> bytes:
    """Return the filter, in classic BPF: another architecture and any call that is not allowed are refused with EPERM."""
    audit, column = ARCHITECTURES[platform.machine()]
    numbers = sorted(of[column] for of in ALLOWED.values())

    def instruction(code: int, true: int, false: int, value: int) -> bytes:
        return struct.pack("HBBI", code, true, false, value)

    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    lines = [instruction(load, 0, 0, 4), instruction(equal, 0, len(numbers) + 2, audit), instruction(load, 0, 0, 0)]
    lines.append(instruction(at_least, len(numbers), 0, _X32))
    lines += [instruction(equal, len(numbers) - place, 0, number) for place, number in enumerate(numbers)]
    return b"".join([*lines, instruction(give, 0, 0, _REFUSE), instruction(give, 0, 0, _ALLOW)])


def confine() -> None:
    """Give up all system calls but those allowed. Raise OSError if the kernel does not agree."""
    code = filter_program()
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "this kernel refuses the filter of system calls")


def case_outcome(job: dict[str, Any]) -> dict[str, Any]:
    """Return what a program answers to a case: the value of an expression, as JSON, or what it prints."""
    expression = job.get("expression")
    names: dict[str, Any] = {"__name__": "__main__" if expression is None else "program"}
    value, printed = None, io.BytesIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(job.get("stdin", "").encode()), encoding="utf-8")
    output = io.TextIOWrapper(printed, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = compile(job["program"], "program", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return {"status": "unreadable"}
        try:
            exec(code, names)
            if expression is not None:  # by Python's own len, sum, ...: the program's would be its own examiner
                names = {name: value for name, value in names.items() if not hasattr(builtins, name)}
                value = eval(compile(expression, "test", "eval", dont_inherit=True), names)
        except SystemExit:
            if expression is not None:
                return {"status": "raised"}
        except MemoryError:
            return {"status": "error"}
        except BaseException:  # the boundary: whatever a program raises is no answer
            return {"status": "raised"}
    if expression is None:
        return {"status": "ok", "printed": printed.getvalue()[:MAX_OUTPUT].decode(errors="replace")}
    try:
        return {"status": "ok", "value": json.dumps(value, allow_nan=False, ensure_ascii=False)[: MAX_OUTPUT // 2]}
    except (TypeError, ValueError, RecursionError):
        return {"status": "raised"}


def run_child(job: dict[str, Any], pipe: int, parent: int) -> None:
    """Confine this process, run the case, write its outcome and end. Never returns."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no program outlives its worker
        if os.getppid() != parent:
            os._exit(0)
        os.dup2(pipe, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # not the jobs of others
        os.closerange(2, 256)
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        seconds = max(1, math.ceil(job["timeout_s"]))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
            resource.setrlimit(limit, (0, 0))
        confine()
    except BaseException:
        os._exit(3)
    with contextlib.suppress(BaseException):  # a program may have closed what it prints to
        text = memoryview(json.dumps(case_outcome(job)).encode())
        while text:
            text = text[os.write(1, text) :]
    os._exit(0)


def run_case(job: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Return the outcome of a case in a child of its own, and the seconds of CPU that it took. It has ``timeout_s`` of these,
    and ``wall_s`` by the clock: a program must not fail because the machine is busy."""
    out, into = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        os.close(out)
        os.setsid()
        run_child(job, into, parent)
    os.close(into)
    text, deadline = b"", time.monotonic() + job["wall_s"]
    timed_out = False
    try:
        while len(text) <= 8 * MAX_OUTPUT:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                timed_out = True
                break
            if not (part := os.read(out, 1 << 16)):
                break
            text += part
    finally:
        os.close(out)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
    seconds = used.ru_utime + used.ru_stime
    if timed_out or seconds > job["timeout_s"] or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return {"status": "timeout"}, seconds
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 3 and not text:
        return {"status": "unconfined"}, seconds
    try:
        reply = dict(json.loads(text))
    except (ValueError, TypeError, RecursionError):
        reply = {"status": "error"}
    return ({"status": "error"} if reply.get("status") == "unconfined" else reply), seconds


def run_code_worker() -> None:
    """Run the cases that standard input asks for."""
    for name in MODULES:
        importlib.import_module(name)
    print(json.dumps({"status": "ready"}), flush=True)
    for line in sys.stdin:
        began = time.monotonic()
        reply, seconds = run_case(json.loads(line))  # a program may have written the reply; the seconds are ours
        print(json.dumps({**reply, "seconds": seconds, "wall": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    run_code_worker()
