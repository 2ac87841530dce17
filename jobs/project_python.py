# SPDX-License-Identifier: BSD-3-Clause
"""Importing this runs the program with the project's own Python environment (.venv)."""

import os
import sys
from pathlib import Path

_PYTHON = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "python"

if Path(sys.prefix).resolve() != _PYTHON.parent.parent.resolve():
    if not _PYTHON.exists():
        sys.exit("vroom: the libraries for sweeps and reports are missing: make sweep-deps")
    os.execv(_PYTHON, [str(_PYTHON), *sys.argv])
