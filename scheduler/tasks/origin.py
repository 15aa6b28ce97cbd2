"""In which module of the program something is called that the package has."""

import inspect
import sys
from pathlib import Path
from types import FrameType

PACKAGE = __name__.partition(".")[0]


def module_of_caller() -> str:
    """The last part of the name of the module, the same however the module was found."""
    frame = inspect.currentframe()
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
    if name == "__main__":
        return Path(str(getattr(sys.modules[name], "__file__", name))).stem
    return name.rpartition(".")[2]


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == PACKAGE
