"""Changes that plant a fault in a program."""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, attr-defined, index"

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from recipes import Program, Reader, Residual, draw, rng, table
from torch import Tensor, nn
from torch.nn import functional

Plant = Callable[[Program], None]

# ── optimiser and loop ──────────────────────────────────────────────────────────────────────────────


def rate(factor: float) -> Plant:
    def plant(program: Program) -> None:
        for group in program.optimizer.param_groups:
            for name in {"lr", "initial_lr", "max_lr", "min_lr"} & group.keys():
                group[name] *= factor
        for schedule in _schedules(program):
            schedule.base_lrs = [factor * known for known in schedule.base_lrs]

    return plant


def _schedules(program: Program) -> list[Any]:
    cells = getattr(program.after_step, "__closure__", None) or ()
    return [cell.cell_contents for cell in cells if hasattr(cell.cell_contents, "base_lrs")]


def rebuild(program: Program, keep: Callable[[str], bool]) -> None:
    """Give the optimiser only some of the parameters."""
    options = {key: value for key, value in program.optimizer.param_groups[0].items() if key != "params"}
    options.pop("initial_lr", None)
    kept = [p for name, p in program.model.named_parameters() if keep(name)]
    kind: Any = type(program.optimizer)
    made = kind([{**options, "params": kept}], lr=options["lr"])
    for schedule in _schedules(program):
        schedule.optimizer = made
    program.optimizer = made


def renew_optimiser(plant: Plant) -> Plant:
    """For faults that replace modules: the optimiser gets the parameters of the changed model."""

    def planted(program: Program) -> None:
        plant(program)
        rebuild(program, lambda name: True)

    return planted


def _last_layer(program: Program) -> str:
    return [name for name, p in program.model.named_parameters() if p.dim() > 1][-1].rpartition(".")[0]


def forget_layers(program: Program) -> None:
    """The optimiser gets the last layer only."""
    last = _last_layer(program)
    rebuild(program, lambda name: name.rpartition(".")[0] == last)


def freeze_layers(program: Program) -> None:
    last = _last_layer(program)
    for name, parameter in program.model.named_parameters():
        parameter.requires_grad_(name.rpartition(".")[0] == last)
    forget_layers(program)


def freeze(*names: str) -> Plant:
    def plant(program: Program) -> None:
        for name in names:
            program.model.get_submodule(name).requires_grad_(False)

    return plant


def late_layer(program: Program) -> None:
    """The first layers are replaced after the optimiser was made."""
    layers = cast(nn.Sequential, program.model)
    layers[0] = nn.Conv2d(1, 12, 3, 2, 1)
    layers[2] = copy.deepcopy(layers[3])
    layers[5] = nn.Linear(12 * 64, 3)


def never_clear(program: Program) -> None:
    program.clears = False


def eval_mode(program: Program) -> None:
    program.model.eval()


def forgets_train(program: Program) -> None:
    program.model.eval()
    program.extra["forgets"] = True


def decay(strength: float) -> Plant:
    def plant(program: Program) -> None:
        for group in program.optimizer.param_groups:
            group["weight_decay"] = strength

    return plant


def drop(share: float) -> Plant:
    def plant(program: Program) -> None:
        for module in program.model.modules():
            if isinstance(module, nn.Dropout | nn.AlphaDropout):
                module.p = share

    return plant


def few_steps(many: int) -> Plant:
    def plant(program: Program) -> None:
        program.batches = program.batches[:many]

    return plant


def schedule_per_batch(program: Program) -> None:
    schedule = torch.optim.lr_scheduler.StepLR(program.optimizer, 1, gamma=0.6)
    before = program.after_step

    def after(program: Program) -> None:
        before(program)
        schedule.step()

    program.after_step = after


def ends_early(program: Program) -> None:
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(program.optimizer, 6)

    def after(program: Program) -> None:
        if schedule.last_epoch < 6:
            schedule.step()

    program.after_step = after


def clip_to_nothing(program: Program) -> None:
    program.after_backward = lambda program: nn.utils.clip_grad_norm_(program.model.parameters(), 1e-4)  # type: ignore[assignment]


def sixteen_bits(program: Program) -> None:
    program.model.bfloat16()
    program.batches = [(x.bfloat16(), y) for x, y in program.batches]
    program.optimizer = torch.optim.SGD(program.model.parameters(), 1e-3)
    program.before_loss = lambda out: out.float()


# ── weights and network ─────────────────────────────────────────────────────────────────────────────


def change_weights(change: Callable[[Tensor], Any]) -> Plant:
    """Change every parameter of two or more axes."""

    def plant(program: Program) -> None:
        with torch.no_grad():
            for parameter in program.model.parameters():
                if parameter.dim() > 1:
                    change(parameter)

    return plant


def weights_times(factor: float) -> Plant:
    return change_weights(lambda weight: weight.mul_(factor))


def normal_weights(spread: float) -> Plant:
    return change_weights(lambda weight: weight.normal_(0, spread))


def zero_weights(program: Program) -> None:
    for parameter in program.model.parameters():
        nn.init.zeros_(parameter)


def biases_far_below(program: Program) -> None:
    layers = [module for module in program.model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    for module in layers[:-1]:
        nn.init.constant_(module.bias, -20.0)


def one_hot_attention(program: Program) -> None:
    with torch.no_grad():
        for module in program.model.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.in_proj_weight[: 2 * module.embed_dim].mul_(60.0)


def close_branches(program: Program) -> None:
    """Every branch of a residual network is multiplied by a constant zero."""
    for module in program.model.modules():
        if isinstance(module, Residual):
            module.body.register_forward_hook(lambda module, given, out: 0.0 * out)


def detach_middle(program: Program) -> None:
    first = next(module for module in program.model.modules() if isinstance(module, nn.ReLU | nn.GELU | nn.Tanh))
    first.register_forward_hook(lambda module, given, out: out.detach())


def cut_after(name: str) -> Plant:
    def plant(program: Program) -> None:
        def cut(module: nn.Module, given: Any, out: Any) -> Any:
            return tuple(one.detach() for one in out) if isinstance(out, tuple) else out.detach()

        program.model.get_submodule(name).register_forward_hook(cut)

    return plant


def drop_activations(program: Program) -> None:
    for module in program.model.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, nn.ReLU | nn.Tanh | nn.GELU | nn.SiLU):
                setattr(module, name, nn.Identity())


def end_in(module: nn.Module) -> Plant:
    """The model gets one more activation at its end."""

    def plant(program: Program) -> None:
        program.model = nn.Sequential(program.model, module)

    return plant


def sigmoid_stack(inputs: int, wide: int, outputs: int, depth: int) -> Plant:
    """The model becomes a plain stack of sigmoid layers."""

    def plant(program: Program) -> None:
        inner = [part for _ in range(depth) for part in (nn.Linear(wide, wide), nn.Sigmoid())]
        program.model = nn.Sequential(nn.Linear(inputs, wide), nn.Sigmoid(), *inner, nn.Linear(wide, outputs))

    return renew_optimiser(plant)


def growing_state(program: Program) -> None:
    cell = nn.RNN(1, 32, nonlinearity="relu", batch_first=True)
    with torch.no_grad():
        cast(Tensor, cell.weight_hh_l0).mul_(8.0)
    program.model = Reader(cell, 1)
    program.after_backward = lambda program: None


def time_first(program: Program) -> None:
    program.model.cell.batch_first = False


def raw_scores(program: Program) -> None:
    program.model = program.model[:-1]


# ── inputs and targets ──────────────────────────────────────────────────────────────────────────────


def change_batches(change: Callable[[Any, Any], tuple[Any, Any]]) -> Plant:
    """Change the input and the target of every batch."""

    def plant(program: Program) -> None:
        program.batches = [change(x, y) for x, y in program.batches]

    return plant


def inputs_times(factor: float, offset: float = 0.0) -> Plant:
    return change_batches(lambda x, y: (factor * x + offset, y))


def targets_times(factor: float, offset: float = 0.0) -> Plant:
    return change_batches(lambda x, y: (x, factor * y + offset))


def first_column_times(factor: float, offset: float = 0.0) -> Plant:
    return change_batches(lambda x, y: (torch.cat([factor * x[:, :1] + offset, x[:, 1:]], 1), y))


pixels_of_bytes = change_batches(lambda x, y: (40 * (x - x.min()), y))
one_label = change_batches(lambda x, y: (x, torch.zeros_like(y)))
flat_targets = change_batches(lambda x, y: (x, y[:, 0]))
logarithm_of_features = change_batches(lambda x, y: (x.log(), y))
target_as_feature = change_batches(lambda x, y: (torch.cat([y.view(len(y), -1).float(), x[:, 1:]], 1), y))


def raw_features(load: Callable[[], Any]) -> Plant:
    """The table as it is in the file: columns of hundreds beside columns of hundredths."""

    def plant(program: Program) -> None:
        x, y = table(load, scaled=False)
        old = program.batches[0][1]
        y = y[:, None].float() if old.dim() == 2 else y
        program.batches = draw(x, y, len(program.batches), len(old), 0)

    return plant


def zero_division(program: Program) -> None:
    """A constant column is divided by its spread."""
    made = []
    for x, y in program.batches:
        x = torch.cat([x[:, :-1], torch.ones(len(x), 1)], 1)
        made.append(((x - x.mean(0)) / x.std(0), y))
    program.batches = made


def shuffle_labels(program: Program) -> None:
    r = rng(1)
    program.batches = [(x, y[torch.randperm(len(y), generator=r)]) for x, y in program.batches]


def draw_labels_anew(program: Program) -> None:
    r, many = rng(1), 1 + max(int(y.max()) for _, y in program.batches)
    program.batches = [(x, torch.randint(many, y.shape, generator=r)) for x, y in program.batches]


def shift_pairs(program: Program) -> None:
    """Inputs of one batch with the targets of the next."""
    targets = [y for _, y in program.batches]
    program.batches = [(x, y) for (x, _), y in zip(program.batches, [*targets[1:], targets[0]], strict=True)]


def sort_by_class(program: Program) -> None:
    x, y = (torch.cat([batch[place] for batch in program.batches]) for place in (0, 1))
    order = y.argsort(stable=True)
    size = len(program.batches[0][1])
    program.batches = list(zip(x[order].split(size), y[order].split(size), strict=True))


def broadcast_targets(program: Program) -> None:
    flat_targets(program)
    program.loss = lambda out, y: (out - y).square().mean()


# ── output and loss ─────────────────────────────────────────────────────────────────────────────────


def before_loss(change: Callable[[Tensor], Tensor]) -> Plant:
    """What the loop does to outputs."""

    def plant(program: Program) -> None:
        program.before_loss = change

    return plant


def other_loss(loss: Callable[[Any, Any], Tensor]) -> Plant:
    def plant(program: Program) -> None:
        program.loss = loss

    return plant


softmax_in_loop = before_loss(lambda out: out.softmax(-1))
sigmoid_in_loop = before_loss(lambda out: out.sigmoid())
softmax_over_batch = other_loss(lambda out, y: functional.nll_loss(out.log_softmax(0), y))
log_of_outputs = other_loss(lambda out, y: functional.nll_loss(out.log(), y))
root_in_loss = other_loss(lambda out, y: ((out - y).square() * (y > 0)).sum(1).sqrt().mean())


def wrong_sign(program: Program) -> None:
    before = program.loss
    program.loss = lambda out, y: -before(out, y)


def tanh_beyond(factor: float) -> Plant:
    """The model ends in tanh, and targets lie beyond it."""

    def plant(program: Program) -> None:
        end_in(nn.Tanh())(program)
        targets_times(factor)(program)

    return renew_optimiser(plant)
