"""Training: one run from its configuration to its rows, resumable at every epoch.

A session opens the run's folder and holds its lock; a program has network, optimiser, data and generators.  An epoch is
trained, probes that are due read a snapshot, and rows, weights and states become visible together.  A resumed run
computes the same bits as one that was never stopped.

One step.  The step makes the gradients of every rule on every network, by the rule's route (`sonde.rules`).  A second
implementation writes forward and backward out by hand for the common rules on small MLPs, because the nodes of a graph
cost more than the arithmetic there.  It calls the kernels that autograd would call, in the same order, so the bits are
the same and a run may begin one way and continue the other.  The configuration alone decides which one is used.
Gradients of large weight matrices come from oneDNN where it is faster and a test shows that it gives the same bits.

For the route `layer`, automatic differentiation keeps V where it would keep W, which it uses for the gradient at a
layer's input and nothing else.  So weights' gradients and derivatives come from one pass at the cost of backprop.

Stacks.  Small networks that differ in their seed are trained together: each parameter of R networks is one tensor, so
that one kernel serves all.  Each run keeps its own data order and generators, and computes the same bits in any stack,
alone or in company.  The configuration alone decides which runs can be stacked; `sonde bench stacking` measures why.

`assign` puts a rule, its state and a network together for training loops outside Sonde.
"""
