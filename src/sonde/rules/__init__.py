"""Learning rules, chosen by name: how credit reaches each layer."""

from sonde.rules.bp import Backprop, Frozen
from sonde.rules.credit_bridge import CreditBridge
from sonde.rules.ddtp import DirectTargets
from sonde.rules.dfa import DirectFeedback, DirectKolenPollack, ForwardDirectFeedback, TargetProjection
from sonde.rules.fa import FeedbackAlignment
from sonde.rules.forward_gradient import ForwardGradient
from sonde.rules.kp import KolenPollack
from sonde.rules.mirror import WeightMirror
from sonde.rules.predsim import PredSim
from sonde.rules.rule import Facts, LocalRule, Rule, RuleState, Signal
from sonde.rules.sign_feedback import BatchMagnitudes, FixedMagnitudes, UniformSigns
from sonde.rules.state_bridge import StateBridge
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
    "LocalRule",
    "Nothing",
    "PredSim",
    "Rule",
    "RuleState",
    "Signal",
    "StateBridge",
    "StoredState",
    "TargetProjection",
    "UniformSigns",
    "WeightMirror",
]
