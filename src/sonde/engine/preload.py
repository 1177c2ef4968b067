"""What the server process imports once for all its workers.

The first optimiser a process builds imports `torch._dynamo`, which takes longer than a small run.
"""

import torch._dynamo

import sonde.engine.worker

__all__ = ["sonde", "torch"]
