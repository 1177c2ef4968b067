"""Learning rules, chosen by name: how credit reaches each layer."""

from sonde.rules.bp import Backprop
from sonde.rules.credit_bridge import CreditBridge
from sonde.rules.dfa import DirectFeedback
from sonde.rules.fa import FeedbackAlignment
from sonde.rules.frozen import Frozen
from sonde.rules.rule import Facts, Nothing, Rule, RuleState, Signal
from sonde.rules.state_bridge import StateBridge

RULES: dict[str, type[Rule]] = {
    "bp": Backprop,
    "fa": FeedbackAlignment,
    "dfa": DirectFeedback,
    "state_bridge": StateBridge,
    "credit_bridge": CreditBridge,
    "frozen": Frozen,
}

__all__ = [
    "RULES",
    "Backprop",
    "CreditBridge",
    "DirectFeedback",
    "Facts",
    "FeedbackAlignment",
    "Frozen",
    "Nothing",
    "Rule",
    "RuleState",
    "Signal",
    "StateBridge",
]
