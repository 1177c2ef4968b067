"""A rule from outside the package."""

from dataclasses import dataclass

from sonde.rules import Nothing


@dataclass(frozen=True, kw_only=True)
class Signs:
    """The sign of the exact gradient, times a strength."""

    strength: float = 1.0
    credit_scale: str = "rms"
    penalty: float = 0.0

    route = "local"
    reads_top_gradient = True
    label = "Signs"

    def init(self, facts, rng):
        return Nothing()

    def credits(self, state, signal):
        return [self.strength * g.sign() for g in signal.gradients]

    def update(self, state, signal):
        return {"sign_strength": signal.output_NC.new_tensor(self.strength)}
