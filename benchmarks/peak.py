"""A command of Sonde's, and then on the standard error the most memory its process had, in kilobytes.

python benchmarks/peak.py WORDS
"""

import resource
import sys

from sonde.cli import app

try:
    app(sys.argv[1:])
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
