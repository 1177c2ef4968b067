"""Predict signal and gradient of a model at initialisation from its architecture and its weights' distributions.

`predict(model, shape)` runs the model's own code once on a tensor that holds moments in place of values (`signal`).
Every operation changes the moments by a rule of its own (`operations`), forward and back: mean, mean square, and what
two entries have in common that differ in their sample, token, place or feature (`analysis.moments`).  Activations are
integrated.  Weights enter by their mean and spread (`weights`).  A `tape` records the operations and sends
the gradient back through them.  Nothing is trained and no data is needed; an operation without a rule is
undefined from there on, by name.

Theory: wide networks in which weights are independent of the gradient (Poole et al. 2016; Schoenholz et al. 2017).
A single draw of a network of finite width varies around it: log ‖h‖² has a variance that grows with depth/width (Hanin
and Nica 2019), which is the band.
"""

from sonde.observe.predict.predict import predict, register
from sonde.observe.predict.prediction import Prediction

__all__ = ["Prediction", "predict", "register"]
