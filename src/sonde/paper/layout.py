"""Names of the residual study's files in the paper layout.

`results.json` (raw) and `results_fair.json` (scaled).  Beside each, `layer_states….json` holds what the layout
has no place for and figure `5_layer_transformation` needs: one input vector's state at every layer.  The layout
records no seed: further seeds carry theirs in the file name.
"""

RESULTS = {"raw": "results", "scaled": "results_fair"}
STATES = {"raw": "layer_states", "scaled": "layer_states_fair"}
MODELS = {"plain_mlp": "Plain MLP", "res_mlp": "Residual MLP"}
LAYERED = {
    "gradient_norms": "preact_grad_norm",
    "activation_means": "activation_mean",
    "activation_stds": "activation_std",
}
