"""Learning rules, chosen by name: how credit reaches each layer."""

from sonde.rules.bp import Backprop
from sonde.rules.brsf import BatchMagnitudes
from sonde.rules.credit_bridge import CreditBridge
from sonde.rules.ddtp import DirectTargets
from sonde.rules.dfa import DirectFeedback
from sonde.rules.dkp import DirectKolenPollack
from sonde.rules.drtp import TargetProjection
from sonde.rules.fa import FeedbackAlignment
from sonde.rules.fdfa import ForwardDirectFeedback
from sonde.rules.forward_gradient import ForwardGradient
from sonde.rules.frozen import Frozen
from sonde.rules.frsf import FixedMagnitudes
from sonde.rules.kp import KolenPollack
from sonde.rules.mirror import WeightMirror
from sonde.rules.predsim import PredSim
from sonde.rules.rule import Facts, Nothing, Rule, RuleState, Signal
from sonde.rules.state_bridge import StateBridge
from sonde.rules.usf import UniformSigns

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
    "Facts",
    "FeedbackAlignment",
    "FixedMagnitudes",
    "ForwardDirectFeedback",
    "ForwardGradient",
    "Frozen",
    "KolenPollack",
    "Nothing",
    "PredSim",
    "Rule",
    "RuleState",
    "Signal",
    "StateBridge",
    "TargetProjection",
    "UniformSigns",
    "WeightMirror",
]
