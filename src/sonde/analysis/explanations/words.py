"""Words that stand beside the numbers: what they mean wherever Sonde says them."""

from sonde.analysis.explanations.explanation import Explanation

_WORDS = {
    "credit": (
        "What a rule tells a layer about its share in the error: a vector for every sample that stands in for the "
        "gradient at that layer's state.",
        "a_l, beside g_l; it points uphill, and what produced h_l descends along it.",
    ),
    "credit_at": (
        "Option of every rule that names a credit for each state: whether a block learns from the credit of its output "
        "state (`output`, the default) or of its input state (`input`).",
        "`rule.credit_at`: block l descends along ⟨f_l, a_{l+1}⟩ or ⟨f_l, a_l⟩. The credits are the same, so the "
        "probes of credit are; with `input` no block learns from a_L, and all states must have one shape.",
    ),
    "credit_scale": (
        "Option of every rule: `rms` divides the credit of each state by its root mean square over the batch before a "
        "unit learns from it, `none` leaves it as the rule names it.",
        "`rule.credit_scale`: a/(RMS(a) + 1e-6). `rms` is the default of every rule but `bp` and `frozen`; the papers "
        "of these rules do not divide.",
    ),
    "null": (
        "Chance: what the same measure scores when the rule's random matrices or networks are drawn anew.",
        "In the same snapshot, 4 or 20 draws; of a rule that draws nothing, a random vector; of one whose credit is "
        "good whatever it draws, those of a rule that draws blindly: FA by layers for KP, DFA for FDFA.",
    ),
    "ceiling": (
        "The best there is: what the same measure scores with BP's own gradient in place of the credit.",
        "In the same snapshot, as `…/bp`.",
    ),
    "depth": (
        "The blocks between embedding and readout; a rule trains depth where training them beats leaving them as they "
        "were drawn.",
        "Test accuracy over frozen blocks of the same seed.",
    ),
    "block": (
        "One of the L equal parts of a network, between embedding and readout.",
        "Block l makes h_{l+1} of h_l.",
    ),
    "layer": (
        "A place between blocks where the hidden state is read.",
        "h_0 leaves the embedding, h_L the last block.",
    ),
    "stream": (
        "The hidden state on its way up: in a residual network each block adds to it.",
        "Its norm ‖h_l‖, layer by layer.",
    ),
    "probe": ("A measurement of a network as it stands, without training it.", "In float64, on a copy."),
    "rule": ("How credit reaches each layer; backprop (BP) is one.", "`sonde list` has them all."),
    "seed": (
        "The number all random draws of a run follow from; runs that differ in nothing else are repetitions.",
        "n counts seeds.",
    ),
    "interval": (
        "Where the mean over seeds may lie: Student's t interval, 95 %.",
        "mean ± t·s/√n; of differences, paired by seed. One seed has none.",
    ),
    "undefined": (
        "There is no such number here, and the reason is stored beside it.",
        "It is never drawn as 0.",
    ),
    "epoch": ("One pass over the training data.", "Epoch 0 is the network before training."),
    "signal": (
        "What a network makes of its input on the way up, layer by layer.",
        "The states h_0 … h_L; their size is `hidden_norm`.",
    ),
    "gradient": (
        "How the loss changes with a state: the exact answer to what each layer should have done.",
        "g_l = ∂ℓ_i/∂h_l of every sample i, by backprop, in float64; its size is `grad_norm`.",
    ),
    "state": (
        "What stands between two blocks for one sample: a vector, tokens or a map.",
        "h_0 leaves the embedding, h_l block l−1.",
    ),
    "unit": (
        "A part of a network that makes one state of another: the embedding, a block, a submodule of your own.",
        "Unit l makes h_l.",
    ),
    "embedding": ("What makes the first state, h_0, of an input.", "It comes before the blocks."),
    "readout": (
        "What makes the output of the last state: a linear head, with a LayerNorm before it where there is one.",
        "It comes after the blocks.",
    ),
    "snapshot": (
        "One look at a network after an epoch: a float64 copy on the first test samples, which all probes share.",
        "The network, its mode and every random generator stay as they are.",
    ),
    "recipe": (
        "Everything that decides what a run computes, but its rule and its seed.",
        "Runs of two recipes are never averaged.",
    ),
    "study": (
        "A question with the runs, figures and sentences that answer it.",
        "`sonde list studies` names them, `sonde run STUDY` trains and answers.",
    ),
    "run": (
        "One training: a configuration, and what was measured at every epoch.",
        "A folder of the store; its id covers the whole configuration.",
    ),
    "store": (
        "A folder of runs, `runs/` where nothing else is said.",
        "`sonde verify` checks every byte of it.",
    ),
    "plugin": (
        "A network, rule, task, probe or optimiser of your own, usable wherever a built-in one is.",
        "`--rule mine.py:Mine`; the run keeps the file, and its id covers it.",
    ),
    "margin": (
        "What backprop gains over frozen blocks: test accuracy, by seed.",
        "A rule recovers a share of it: (rule − frozen) ÷ (bp − frozen).",
    ),
}

WORDS = tuple(
    Explanation(name=name, kind="word", short=short, measured=measured) for name, (short, measured) in _WORDS.items()
)
