"""Built-in learning rules, chosen by name in `RULES`: how credit reaches each layer.

A rule is a frozen configuration with explicit state: `init` makes the state (matrices, networks, optimisers, averages,
generators), `credits` returns a credit a_l for each state, `update` changes the state.  The state is stored with every
epoch and restored bit for bit.  A class that derives from `Rule` and overrides nothing sends the exact gradient.

The `route` says how credit travels; `sonde.training` has a step for each:
- global (`bp`): automatic differentiation across the blocks.
- local (`fa`, `dfa`, `drtp`, the bridges, …): the graph is cut between blocks, and the unit that produced h_l gets the
  gradient of ⟨h_l, â_l⟩/N.
- states (`pc`, `ep`, `dualprop`, `pepita`, `ff`): the same with inputs of the rule's own.  `pairs` names, for every
  unit, evaluations of it at other inputs, and a credit for each; an evaluation has the unit's output and derivative.
- layer (`kp`, `usf`, `mirror`, `fa` with `level: layer`, …): automatic differentiation with other matrices on the way
  back; `feedback` names V for each weight W.  V = W is backprop.
- frozen: only embedding and readout are trained.

A rule sees states, output, error and the exact gradients through a signal: `signal.vjp(l, a)` carries credit through
unit l, with `weights=V` through other matrices.  Each docstring has the equation, the paper and the limit in which the
rule equals backprop.

To add a built-in rule: a class, its line in `RULES`, its first options, and its credit for one sample among the plain
definitions of `sonde.analysis`.  A plugin needs none of these lines.
"""

from sonde.rules.bp import Backprop, ForwardGradient, Frozen
from sonde.rules.bridges import CreditBridge, StateBridge
from sonde.rules.dfa import DirectFeedback, DirectKolenPollack, ForwardDirectFeedback, TargetProjection
from sonde.rules.dualprop import DualPropagation
from sonde.rules.ep import EquilibriumPropagation
from sonde.rules.fa import BatchMagnitudes, FeedbackAlignment, FixedMagnitudes, KolenPollack, UniformSigns, WeightMirror
from sonde.rules.ff import ForwardForward
from sonde.rules.local import DirectTargets, PredSim
from sonde.rules.pc import PredictiveCoding
from sonde.rules.pepita import Pepita
from sonde.rules.rule import Evaluation, Facts, LocalRule, Pair, Rule, RuleState, Signal
from sonde.rules.states import Nothing, StoredState

RULES: dict[str, type[Rule]] = {
    "bp": Backprop,
    "fa": FeedbackAlignment,
    "usf": UniformSigns,
    "frsf": FixedMagnitudes,
    "brsf": BatchMagnitudes,
    "kp": KolenPollack,
    "mirror": WeightMirror,
    "dfa": DirectFeedback,
    "drtp": TargetProjection,
    "dkp": DirectKolenPollack,
    "fdfa": ForwardDirectFeedback,
    "forward_gradient": ForwardGradient,
    "predsim": PredSim,
    "ddtp": DirectTargets,
    "state_bridge": StateBridge,
    "credit_bridge": CreditBridge,
    "pc": PredictiveCoding,
    "ep": EquilibriumPropagation,
    "dualprop": DualPropagation,
    "pepita": Pepita,
    "ff": ForwardForward,
    "frozen": Frozen,
}

__all__ = [
    "RULES",
    "Backprop",
    "BatchMagnitudes",
    "CreditBridge",
    "DirectFeedback",
    "DirectKolenPollack",
    "DirectTargets",
    "DualPropagation",
    "EquilibriumPropagation",
    "Evaluation",
    "Facts",
    "FeedbackAlignment",
    "FixedMagnitudes",
    "ForwardDirectFeedback",
    "ForwardForward",
    "ForwardGradient",
    "Frozen",
    "KolenPollack",
    "LocalRule",
    "Nothing",
    "Pair",
    "Pepita",
    "PredSim",
    "PredictiveCoding",
    "Rule",
    "RuleState",
    "Signal",
    "StateBridge",
    "StoredState",
    "TargetProjection",
    "UniformSigns",
    "WeightMirror",
]
