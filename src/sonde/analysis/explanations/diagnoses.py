"""Diagnoses of a watched run, in the order in which one explains another."""

from sonde.analysis.explanations.explanation import Explanation
from sonde.core.formatting import GRADIENT_VANISHED


def _of(name: str, short: str, measured: str, why: str, remedy: str, reference: str) -> Explanation:
    return Explanation(
        name=name,
        kind="diagnosis",
        short=short,
        measured=measured,
        why=why,
        remedy=remedy,
        reference=reference,
    )


DIAGNOSES = (
    _of(
        "nan_origin",
        "A certain operation is the first to give NaN or infinity.",
        "The first module whose output, else gradient, else the loss is not finite; with a batch, the operation.",
        "One value that is not a number spreads to every weight within a step.",
        (
            "Keep the operation's argument inside its domain: clamp before log and division, or use "
            "the fused loss on raw outputs."
        ),
        "Goldberg (1991), What every computer scientist should know about floating-point arithmetic",
    ),
    _of(
        "wrong_label_shape",
        "The target's shape or encoding broadcasts against the output, or is misread.",
        (
            "The loss of random outputs stays the same (to 1e-5) when targets are handed to other "
            "samples, though it changes with the targets themselves. Without a batch: N outputs of one "
            "number each become N×N numbers in the loss."
        ),
        "Every output is compared with every target, so the best answer is one constant.",
        "Give the target the shape of the output: y.view_as(output).",
        "Humbatova et al. (2020), Taxonomy of real faults in deep learning systems, arXiv:1910.11015",
    ),
    _of(
        "wrong_loss",
        "The loss does not fit the task or the output: wrong kind, wrong axis, wrong sign.",
        (
            "The loss by itself, on free outputs: raising a class for all samples changes nothing "
            "(softmax over the batch); its gradient leads away from the targets; three ones in ten "
            "ask for an answer other than 0.3; it is squared or absolute error on classes and the "
            "run failed. Without a batch: a cross-entropy that ends below −2."
        ),
        "The network is driven to answers that are not the ones that are scored.",
        (
            "Take the likelihood of the targets: cross-entropy on raw scores for classes, binary "
            "cross-entropy with logits for yes or no, squared error for numbers."
        ),
        "Gneiting & Raftery (2007), Strictly proper scoring rules, prediction, and estimation, JASA 102",
    ),
    _of(
        "wrong_output_activation",
        "The last activation does not fit the targets' range or the loss.",
        (
            "With outputs of its own choice the loss falls to a floor; with outputs that the last "
            "activation can give it stays at least 10 % of the way above it. Without a batch: softmax "
            "or sigmoid before a loss that applies its own, softmax over one unit, or a mean distance "
            "above 4 from outputs between −1 and 1."
        ),
        "The answers that the loss asks for lie outside what the network can say, or where its slope is nearly zero.",
        (
            "Hand raw outputs to a loss that applies its own softmax or sigmoid; leave the output "
            "linear for unbounded targets."
        ),
        "Bishop (2006), Pattern recognition and machine learning, section 4.3.6",
    ),
    _of(
        "wrong_labels",
        "Labels that do not belong to the inputs: permuted, constant, or destroyed by preprocessing.",
        (
            "All targets of a batch of 16 or more are the same; or one batch is learned by heart "
            "at the run's own rate or ten times it, while after 100 steps the run is no better than a "
            "constant and nearest inputs share a label no more often than any two (of numbers: neither "
            "the nearest input nor a line through the others foretells a target)."
        ),
        "What does not depend on the input can only be learned by heart.",
        (
            "Look at a few samples beside their labels as they enter the loss; shuffle inputs and "
            "labels with one permutation, and scale inputs only."
        ),
        "Zhang et al. (2017), Understanding deep learning requires rethinking generalization, arXiv:1611.03530",
    ),
    _of(
        "detached_graph",
        "The path of the gradient is cut: detach, no_grad, or a conversion.",
        (
            "Parameters that ask for a gradient and are in the optimiser never get one, though their "
            "module runs; with a batch, the loss changes when they are changed."
        ),
        "What lies below the cut keeps its random initial weights.",
        "Take away the no_grad, detach, .item() or numpy conversion between these modules and the loss.",
        "Baydin et al. (2018), Automatic differentiation in machine learning: a survey, arXiv:1502.05767",
    ),
    _of(
        "not_in_optimiser",
        "Parameters that get gradients but that no optimiser holds.",
        (
            "A gradient arrives at parameters that are in no optimiser; likely where they look as "
            "freshly drawn, a note where they look trained. Or the output depends on parameters that "
            "are neither the model's nor an optimiser's."
        ),
        "They keep their initial values, so a part of the network never learns.",
        "Give the optimiser all of model.parameters(), made after the last module was added.",
        "Humbatova et al. (2020), Taxonomy of real faults in deep learning systems, arXiv:1910.11015",
    ),
    _of(
        "frozen_parameters",
        "Parameters with requires_grad False that were meant to learn.",
        (
            "They ask for no gradient, and look as freshly drawn: a uniform or standard normal distribution, "
            "biases of zero."
        ),
        "Random features that never change limit what the layers above can learn.",
        "Call requires_grad_(True) on these modules before making the optimiser.",
        "Yosinski et al. (2014), How transferable are features in deep neural networks?, arXiv:1411.1792",
    ),
    _of(
        "stale_gradients",
        "Gradients that are not cleared between steps.",
        (
            "When a step's first gradient arrives, the parameter still holds an old one, in every "
            "watched step after the first."
        ),
        "Each step applies the sum of all gradients so far, like momentum without friction.",
        "Call optimizer.zero_grad() before each backward pass.",
        "Humbatova et al. (2020), Taxonomy of real faults in deep learning systems, arXiv:1910.11015",
    ),
    _of(
        "wrong_mode",
        "Train or eval mode is wrong while training.",
        "Dropout or batch normalisation in a part that learns is in eval mode in a training step.",
        "Batch normalisation then uses statistics that no batch has updated, and dropout does nothing.",
        "Call model.train() before the training loop, and again after each evaluation.",
        "Ioffe & Szegedy (2015), Batch normalization, arXiv:1502.03167",
    ),
    _of(
        "idle_branch",
        "A residual or parallel branch that contributes nothing and cannot start to.",
        (
            "The gradient of its weights is zero (below 1e-7 of the others') in every watched step "
            "after the first, while modules that run before it have one."
        ),
        "The weights of the branch never change, and the network is as deep as if it were not there.",
        "Make the gate or gain that closes the branch a parameter, and start it where its gradient is not zero.",
        "Bachlechner et al. (2021), ReZero is all you need, arXiv:2003.04887",
    ),
    _of(
        "missing_activation",
        "No non-linearity where layers need one between them.",
        (
            "Autograd's graph leads from one weight matrix to the next without bending, the middle "
            "is no bottleneck, and the run failed."
        ),
        "Linear layers in a row are one linear layer, whatever their number.",
        "Put an activation between these layers.",
        (
            "Saxe, McClelland & Ganguli (2014), Exact solutions to the nonlinear dynamics of learning "
            "in deep linear neural networks, arXiv:1312.6120"
        ),
    ),
    _of(
        "unnormalised_input",
        "Inputs on a scale, or with an offset, that the network cannot work with.",
        (
            "Inputs with an RMS above 10, a feature whose mean is 10 times its spread, or features "
            "whose spreads differ by more than 1000, and the run failed; or an RMS below 0.01 where "
            "one batch is learned with standardised inputs alone."
        ),
        (
            "Large or one-sided inputs saturate or kill units, and make the loss steep in one direction "
            "and flat in all others."
        ),
        "Standardise each input feature to mean 0 and spread 1, with the training set's statistics.",
        "LeCun, Bottou, Orr & Müller (1998), Efficient BackProp",
    ),
    _of(
        "unnormalised_target",
        "Regression targets on a scale that the network cannot reach.",
        (
            "Targets with an RMS above 10, and the run failed; with a batch, fifty steps learn the "
            "standardised targets and not these. Where targets are not seen: first outputs that are "
            "more than 10, and three times their size, away from them."
        ),
        "Errors, gradients and the right step size grow with the targets.",
        "Standardise the targets, and scale predictions back.",
        "van Hasselt et al. (2016), Learning values across many orders of magnitude, arXiv:1602.07714",
    ),
    _of(
        "bad_init",
        "Initial weights of the wrong scale, or all equal.",
        (
            "Weights whose spread times √inputs is above 3 or below 0.2, with a signal that grows "
            "or fades on its way or a first loss far above that of a constant; all units of a hidden "
            "layer alike; biases that keep 90 % of a layer's units off in step 0; or default weights "
            "learn one batch where these do not."
        ),
        "Signal and gradient grow or shrink by the same factor in each layer.",
        (
            "Draw weights with variance 2/inputs before ReLU, 1/inputs otherwise, and zero biases; "
            "or leave PyTorch's defaults."
        ),
        "He et al. (2015), Delving deep into rectifiers, arXiv:1502.01852",
    ),
    _of(
        "masked_growth",
        "A residual stream that grows by orders of magnitude over depth behind normalisation layers that hide it.",
        "Inputs of normalisation layers of one shape grow a hundredfold from the first to the last, or over the steps.",
        "Early blocks are drowned in the sum, and what later blocks add no longer matters.",
        "Scale the last layer of each branch by 1/√(number of blocks), the same for every block.",
        "De & Smith (2020), Batch normalization biases residual blocks towards the identity function, arXiv:2002.10444",
    ),
    _of(
        "attention_collapse",
        "Attention logits so large that the softmax is one-hot and passes no gradient.",
        (
            "At the start half of the queries give 99 % of their weight to one place, with logits "
            "above 30; later, nine of ten in a run that failed."
        ),
        "A one-hot softmax has no slope, so what attends to what can no longer be learned.",
        "Divide logits by √(head width), normalise queries and keys, and start their weights smaller.",
        (
            "Zhai et al. (2023), Stabilizing transformer training by preventing attention entropy "
            "collapse, arXiv:2303.06296"
        ),
    ),
    _of(
        "over_regularised",
        "Weight decay, penalty or dropout so strong that the data no longer matter.",
        (
            "Most weight matrices shrink below a third of their initial norm (below 0.1 of it whatever "
            "the loss says), weight decay makes up more than 0.5 of what a step changes, or dropout "
            "leaves less than a fifth, and the run did not learn."
        ),
        "The penalty outweighs the data, and the network answers with the average.",
        "Lower weight decay (1e-4 for SGD, 1e-2 for AdamW) or dropout (0.1–0.5).",
        "Krogh & Hertz (1991), A simple weight decay can improve generalization",
    ),
    _of(
        "lr_too_high",
        "Steps too large for the curvature.",
        (
            "The run failed, and: a tenth of the rate learns one batch where the rate does not; or "
            "a step changes weights by more than 30 % of their norm; or the loss grows tenfold. Whether "
            "or not it failed: the first steps change weights by more than their norm."
        ),
        "Steps beyond twice the inverse curvature overshoot, and each makes the loss larger.",
        "Divide the learning rate by ten, or warm it up over the first steps.",
        (
            "Cohen et al. (2021), Gradient descent on neural networks typically occurs at the edge "
            "of stability, arXiv:2103.00065"
        ),
    ),
    _of(
        "too_few_steps",
        "Training is sound but stops long before it could be done.",
        (
            "Fewer than 100 steps, no result yet, and fifty steps at the run's own rate on one batch "
            "come a fifth of the way further; without a batch, steps above 1e-3 of the weights and a "
            "loss that was still falling."
        ),
        "The loss was still falling when training stopped.",
        "Train longer, or in smaller batches: more steps for the same data.",
        "Hoffer, Hubara & Soudry (2017), Train longer, generalize better, arXiv:1705.08741",
    ),
    _of(
        "lr_too_low",
        "Steps far too small to get anywhere in the steps given.",
        (
            "The run failed, and fifty steps on one batch at ten or a hundred times the rate learn "
            "what the rate itself does not, or all steps together move weights by less than 0.1 of "
            "their norm; never where they moved by more than 0.5 of it."
        ),
        "The weights end nearly where they began.",
        "Multiply the learning rate by ten until the loss stops falling faster.",
        "Bengio (2012), Practical recommendations for gradient-based training of deep architectures, arXiv:1206.5533",
    ),
    _of(
        "saturated_units",
        "Sigmoid or tanh units on the flat part of their curve.",
        (
            "Half of a hidden layer's outputs, or of an LSTM's or GRU's gates, lie within 0.01 of a bound in "
            "the first steps, and the run failed."
        ),
        "Where the curve is flat its slope is zero, and no gradient passes.",
        "Start with smaller weights or standardise what enters the layer; or use ReLU.",
        "Glorot & Bengio (2010), Understanding the difficulty of training deep feedforward neural networks",
    ),
    _of(
        "dead_units",
        "ReLU-like units that are off for every input and stay off.",
        (
            "Of a hidden layer's units 0.9 are zero for the whole batch at the end (0.8, if they were "
            "alive at the start), and the run failed."
        ),
        "A unit that is off for every input gets no gradient and cannot come back.",
        "Lower the learning rate, or use LeakyReLU or GELU.",
        "Lu et al. (2019), Dying ReLU and initialization, arXiv:1903.06733",
    ),
    _of(
        "vanishing_gradient",
        "Gradients shrink by orders of magnitude on their way back, or are zero from some layer on.",
        (
            f"The norm of the gradient at the first weighted layer is below {GRADIENT_VANISHED:g} of that at the last "
            "in the first ten steps, or exactly zero; of the first place of a sequence below the square of it; "
            "and the run failed."
        ),
        "Layers that get no gradient keep their random weights.",
        "Use residual connections or normalisation, and weights that keep the size of the signal.",
        "Glorot & Bengio (2010), Understanding the difficulty of training deep feedforward neural networks",
    ),
    _of(
        "exploding_gradient",
        "Gradients or activations grow by orders of magnitude over depth, time or steps.",
        (
            "Outputs grow by more than 1000 over depth at the start, gradients by as much on their "
            "way back, or over the steps of a run that failed."
        ),
        "One sample or layer decides each step, and the loss jumps or overflows.",
        "Clip the norm of the gradient, and start with weights that keep the size of the signal.",
        "Pascanu, Mikolov & Bengio (2013), On the difficulty of training recurrent neural networks, arXiv:1211.5063",
    ),
    _of(
        "rank_collapse",
        "A layer's outputs for different samples point in one direction.",
        "The effective rank of a hidden layer's output over 64 samples falls below 1.5 after the start; a note.",
        "Layers above cannot tell samples apart.",
        "Use residual connections and normalisation around the layer.",
        "Dong, Cordonnier & Loukas (2021), Attention is not all you need, arXiv:2103.03404",
    ),
    _of(
        "loss_spike",
        "The loss jumps far above its recent values and comes back.",
        "A loss ten times the median of the 20 steps before it, after the first 20; a note.",
        "A spike undoes some of what was learned, and announces a rate at the edge.",
        "Clip the norm of the gradient, or lower the rate.",
        "Chowdhery et al. (2022), PaLM: scaling language modeling with pathways, arXiv:2204.02311",
    ),
    _of(
        "gradient_noise",
        "Gradients of the two halves of a batch point in unrelated directions.",
        (
            "1 − cosine of the two halves' gradients at the model's output above 0.9 at each costly "
            "step, while the loss no longer falls; a note."
        ),
        "A step follows the samples of the batch, not the data.",
        "Use larger batches, accumulate gradients, or lower the rate.",
        "McCandlish et al. (2018), An empirical model of large-batch training, arXiv:1812.06162",
    ),
    _of(
        "not_learning",
        "The loss ends hardly lower than that of one constant answer, or higher.",
        (
            "Of a run that Sonde trained for 100 steps or more: the loss on training samples in the last tenth of "
            "epochs has come less than a tenth of the way from that of one constant answer (equal shares for all "
            "classes; the mean of the targets) to zero, and so have the loss on test samples and the share of right "
            "answers. Frozen blocks are not asked."
        ),
        "Nothing of the input reaches the output, or nothing of the error reaches the weights.",
        (
            "Train the same network with fewer layers or skip connections: if that learns, depth is the cause; "
            "if not, look at rate and data."
        ),
        "He et al. (2016), Deep residual learning for image recognition, arXiv:1512.03385",
    ),
)
