"""A command of Sonde's, and then on the standard error the most memory its process had, in kilobytes, and the seconds
that processors worked for it.

python benchmarks/peak.py WORDS
"""

import resource
import sys

from sonde.cli import app

try:
    app(sys.argv[1:])
finally:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_maxrss, f"{used.ru_utime + used.ru_stime:.2f}", file=sys.stderr)
