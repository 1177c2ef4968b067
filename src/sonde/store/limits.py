"""How much a store may ask of memory: one limit of rows and one of bytes, for a file and for all that is read together.

What is read from a file may be as large as the file's own bytes explain, and a fixed amount beside that: rows of runs
hardly repeat, and a few bytes that become gigabytes were made to.  Sizes come from headers, before anything is decoded.
"""

from sonde.core.errors import SondeError

ROWS = 12_000_000  # of a run: 1.1 GB in memory
UNPACKED = 1_000_000_000  # bytes of a file of rows once it is unpacked
JSON = 16_000_000  # bytes of a description, a manifest, facts
DEPTH = 100_000  # layers

FREE_ROWS, ROWS_A_BYTE = 500_000, 1  # of a file
FREE_BYTES, BYTES_A_BYTE = 64_000_000, 100
FREE_ROWS_OF_STORE = 4_000_000  # of all files that are read together: 360 MB in memory


def refuse_rows(rows: int, packed: int, what: object, fix: str) -> None:
    """Raise where a file has more rows than a run may have, or than its bytes explain."""
    if rows > ROWS:
        raise SondeError(
            f"{what} has more rows than the {ROWS:,} that a run may have: measure less often, with "
            "--set probes.schedule=log_spaced or --set log=epoch"
        )
    if rows > FREE_ROWS + ROWS_A_BYTE * packed:
        raise SondeError(f"{what} has {rows:,} rows in {packed:,} bytes, which no run of Sonde's has: {fix}")


def refuse_unpacked(unpacked: int, packed: int, what: object, fix: str) -> None:
    """Raise where a file unpacks to more than memory holds, or than its bytes explain."""
    if unpacked > min(UNPACKED, FREE_BYTES + BYTES_A_BYTE * packed):
        raise SondeError(f"{what} unpacks to {unpacked / 1e9:.2g} GB, which no run of Sonde's has: {fix}")


class Allowance:
    """The rows of all files that are read together; their bytes are on disk."""

    def __init__(self, packed: int) -> None:
        self.left = FREE_ROWS_OF_STORE + ROWS_A_BYTE * packed

    def take(self, rows: int, what: object) -> None:
        """Count the rows of one file, or raise where the store has more than its bytes explain."""
        self.left -= rows
        if self.left < 0:
            raise SondeError(
                f"{what}: the store has more rows than its bytes explain, which no store of Sonde's has: "
                "move the runs that you do not know out of it"
            )
