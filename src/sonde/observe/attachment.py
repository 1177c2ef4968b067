"""Where the hooks of a watch hang: a few always, those on modules and parameters in watched steps only."""

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from sonde.observe import without_hooks
from sonde.observe.hooks import Accumulated, Arriving, Enter, Leave, LeaveLoss, Stepped, Stepping
from sonde.observe.updates import Updates
from sonde.observe.watched_modules import COMPILED, FROZEN, Spot, goes_fast, is_lazy

if TYPE_CHECKING:
    from sonde.observe.recorder import Recorder


class Attachment:
    """Hooks that tell a recorder; without an optimiser, the model's own hooks tell where a step ends."""

    def __init__(
        self,
        recorder: "Recorder",
        spots: Sequence[Spot],
        *,
        loss: nn.Module | None,
        names: Mapping[int, str],
        parameters: Sequence[weakref.ref[nn.Parameter]],
        updates: Updates,
    ) -> None:
        self.suspended = False
        self._recorder = recorder
        self._spots = spots
        self.renew()
        self._loss = None if loss is None else weakref.ref(loss)
        self._names, self._parameters, self._updates = names, parameters, updates
        self._root_always = not updates.optimisers
        self._of_step: list[Any] = []
        self._always: list[Any] = [
            optimiser.register_step_post_hook(Stepped(recorder, index))
            for index, optimiser in enumerate(updates.optimisers)
        ]
        if self._root_always:
            self._always += self._hook(self._root)
        without_hooks.leave_out()

    def renew(self) -> None:
        """Know the modules of the list as they are now."""
        self._root = next(spot for spot in self._spots if spot.is_root)
        self._fast = _fast_groups(self._spots)

    def attach(self) -> None:
        """Hear a watched step, unless it is heard already."""
        if self._of_step:
            return
        for spot in self._heard():
            self._of_step += self._hook(spot)
        loss = None if self._loss is None else self._loss()
        if loss is not None:
            self._of_step.append(loss.register_forward_hook(LeaveLoss(self._recorder)))
        for index, optimiser in enumerate(self._updates.optimisers):
            self._of_step.append(optimiser.register_step_pre_hook(Stepping(self._recorder, index)))
        if self._recorder.step > 0 and not any(spot.hidden == COMPILED for spot in self._spots):
            for name, sampled in self._updates.sampled():
                self._of_step.append(sampled.register_hook(Arriving(self._recorder, name, sampled)))  # type: ignore[no-untyped-call]
        if self._root_always:
            for parameter in (known() for known in self._parameters):
                if parameter is not None and not is_lazy(parameter) and parameter.requires_grad:
                    hook: Any = parameter.register_post_accumulate_grad_hook
                    self._of_step.append(hook(Accumulated(self._recorder, self._names[id(parameter)])))

    def detach(self) -> None:
        """Be deaf until the next watched step."""
        for handle in self._of_step:
            handle.remove()
        self._of_step = []

    def suspend(self) -> None:
        """Before an evaluation that PyTorch computes another way with hooks than without: hear its end only."""
        if not self._fast:
            return
        self.detach()
        self.suspended = True
        self._of_step = [] if self._root_always else self._hook(self._root)

    def resume(self) -> None:
        """After such an evaluation."""
        if self.suspended:
            self.suspended = False
            self.detach()
            self.attach()

    def remove(self) -> None:
        """Leave no hook."""
        self.detach()
        for handle in self._always:
            handle.remove()
        without_hooks.put_back()

    def _heard(self) -> list[Spot]:
        """The modules to hook in this step; not those that PyTorch computes another way without hooks."""
        for layer, inner in self._fast:
            module = layer.module()
            for spot in inner:
                spot.silent = FROZEN if module is not None and goes_fast(module) else None
        hooked = self._root if self._root_always else None
        return [
            spot
            for spot in self._spots
            if (spot.chosen is not False or spot.is_root) and spot.silent is None and spot is not hooked
        ]

    def _hook(self, spot: Spot) -> list[Any]:
        module = spot.module()
        if module is None or spot.hidden is not None:
            return []
        return [
            module.register_forward_pre_hook(Enter(self._recorder, spot)),
            module.register_forward_hook(Leave(self._recorder, spot), with_kwargs=True, always_call=True),
        ]


def _fast_groups(spots: Sequence[Spot]) -> list[tuple[Spot, list[Spot]]]:
    """Encoder layers, each with everything inside it."""
    return [
        (
            layer,
            [spot for spot in spots if spot is layer or layer.is_root or spot.name.startswith(f"{layer.name}.")],
        )
        for layer in spots
        if isinstance(layer.module(), nn.TransformerEncoderLayer)
    ]
