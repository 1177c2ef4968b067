"""A command of Sonde's, and then on the standard error the most memory its process had, in kilobytes, and the seconds
that processors worked for it.

python benchmarks/peak.py WORDS
"""

import re
import resource
import sys
from pathlib import Path

from sonde.cli import app

try:
    app(sys.argv[1:])
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Of this program alone: what getrusage knows began with the process that started it.
    most = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(*(most or [used.ru_maxrss]), f"{used.ru_utime + used.ru_stime:.2f}", file=sys.stderr)
