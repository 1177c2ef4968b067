"""Runs on a Ray cluster: a task for each bundle.  Ray says where, and tries again what died with its node."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sonde.core.errors import SondeError
from sonde.engine.messages import Event, Outcome, first_ctrl_c

if TYPE_CHECKING:
    from sonde.config import RunConfig
    from sonde.engine.ledger import Bundle, Ledger
    from sonde.store.files import Place

MOST_SUBMITTED = 10_000  # tasks at a time: each takes 7 kB of the driver's memory, and time of every look at them
TASK_RETRIES = 3  # of a task whose node or process died
HEAD_NODE = {"node:__internal_head__": 0.001}  # the node without which there is no cluster
CTRL_C_EVERY = 0.2  # seconds, between two looks at Ctrl-C
CANCEL_TIMEOUT = 10.0  # seconds, for cancelled tasks to be gone


def run_all(
    configs: "Sequence[RunConfig]",
    *,
    runs: "Place",
    address: str = "auto",
    cpus_per_run: float = 1,
    gpus_per_run: float = 0,
    data_root: "Place | None" = None,
    device: str = "auto",
    on_event: Callable[[Event], None] = lambda event: None,
    on_notice: Callable[[str], None] = lambda notice: None,
    on_stop: Callable[[int], None] = lambda running: None,
) -> list[Outcome]:
    """Train every configuration on the cluster and return an outcome for each, in order.

    A run takes one thread, and the processors and GPUs that are set aside for it.  Ctrl-C lets the running ones
    finish their epoch; a second one stops them at once.  Either way every run resumes from its last epoch.
    """
    from sonde.engine import cluster_nodes
    from sonde.engine.ledger import Ledger, bundle
    from sonde.store.files import absolute
    from sonde.training.stack import stackable

    cluster_nodes.require()
    if gpus_per_run == 0 and device not in ("auto", "cpu"):
        raise SondeError(f"--device {device} on a cluster needs --gpus-per-run")
    ledger = Ledger(
        configs,
        runs=runs,
        on_event=on_event,
        on_notice=on_notice,
        remedy="give more --cpus-per-run",
        second_chance=False,
    )
    left = ledger.unended()
    if not left:
        return ledger.results()
    with cluster_nodes.connected(address) as ray:
        cluster_nodes.check(ray, runs, cpus_per_run, gpus_per_run)
        slots = cluster_nodes.slots(ray, cpus_per_run, gpus_per_run)
        if slots == 0:
            on_notice(f"no node has {cpus_per_run:g} CPUs and {gpus_per_run:g} GPUs for a run: waiting for one to join")
        ledger.waiting.extend(bundle(left, jobs=max(slots, 1), pays=stackable))
        tasks = Tasks(
            ray,
            ledger,
            size={"num_cpus": cpus_per_run, "num_gpus": gpus_per_run},
            runs=absolute(runs),
            data_root=None if data_root is None else absolute(data_root),
            device="cpu" if gpus_per_run == 0 else device,
        )
        with first_ctrl_c() as interrupt:
            try:
                while tasks.submit():
                    tasks.listen()
                    if interrupt.poll():
                        interrupt.recv_bytes()
                        on_stop(tasks.stop())
            finally:
                tasks.cancel()
    return ledger.results()


class Tasks:
    """What was submitted and has not ended, and the mailbox it writes to."""

    def __init__(
        self,
        ray: Any,
        ledger: "Ledger",
        *,
        size: dict[str, float],
        runs: str,
        data_root: str | None,
        device: str,
    ) -> None:
        from sonde.engine import cluster_task

        self.ray, self.ledger = ray, ledger
        self.under_way: dict[Any, Bundle] = {}
        self.where: dict[str, str] = {}  # the node of each run
        self.order = (runs, data_root, device)
        self.train = ray.remote(cluster_task.train).options(**size, max_retries=TASK_RETRIES)
        always = {"max_restarts": -1, "max_task_retries": -1}
        self.mailbox = ray.remote(cluster_task.Mailbox).options(num_cpus=0, resources=HEAD_NODE, **always).remote()
        self.post = self.mailbox.take.remote()

    def submit(self) -> bool:
        """Give Ray what waits; whether anything is under way."""
        from sonde import plugins
        from sonde.config import to_tree

        while self.ledger.waiting and not self.ledger.stopping and len(self.under_way) < MOST_SUBMITTED:
            bundle = self.ledger.waiting.popleft()
            trees = [to_tree(config) for config in bundle]
            carried = plugins.carried(source for config in bundle for source in config.sources)
            task = self.train.remote(trees, carried, *self.order, self.mailbox, sys.argv)
            self.under_way[task] = bundle
        return bool(self.under_way)

    def listen(self) -> None:
        """Hear what was posted or which task ended, if anything within a moment."""
        asked = [self.post, *self.under_way]
        self.ray.wait(asked, timeout=CTRL_C_EVERY)
        ready, _ = self.ray.wait(asked, timeout=0, num_returns=len(asked))
        for one in ready:
            if one == self.post:
                for event in self.ray.get(self.post):
                    self._hear(event)
                self.post = self.mailbox.take.remote()
            else:
                self._end(one)

    def _hear(self, event: Event) -> None:
        if event.run in self.ledger.outcomes or event.node is None:  # late
            return
        if event.starts and event.run in self.where:
            self.ledger.on_notice(
                f"run {event.run}: its worker on {self.where[event.run]} died; on {event.node} it goes on "
                f"after epoch {event.epoch}"
            )
        self.where[event.run] = event.node
        self.ledger.hear(event)

    def _end(self, task: Any) -> None:
        bundle = self.under_way.pop(task)
        answers: list[Outcome] = []
        how = ""
        try:
            events, answers = self.ray.get(task)
            for event in events:
                self._hear(event)
        except self.ray.exceptions.TaskCancelledError:
            if not self.ledger.begun(bundle):
                return
            how = "its task was cancelled"
        except self.ray.exceptions.RayTaskError as error:
            message = f"{type(error.cause).__name__}: {error.cause}"
            answers = [Outcome(run=config.id, state="failed", message=message, detail=str(error)) for config in bundle]
        except self.ray.exceptions.RayError as error:
            node = self.where.get(bundle[0].id, "a node")
            how = f"its worker on {node} died, the last of {TASK_RETRIES + 1} ({type(error).__name__})"
        for config in bundle:
            self.where.pop(config.id, None)
        self.ledger.ended(bundle, {answer.run: answer for answer in answers}, how, "")

    def stop(self) -> int:
        """Let the running ones finish their epoch, and nothing new begin; how many runs that are."""
        self.ledger.stopping = True
        self.mailbox.stop.remote()
        for task, bundle in self.under_way.items():
            if not self.ledger.begun(bundle):
                self.ray.cancel(task)
        return sum(len(bundle) for bundle in self.under_way.values() if self.ledger.begun(bundle))

    def cancel(self) -> None:
        """End at once what is under way."""
        for task in self.under_way:
            self.ray.cancel(task, force=True)
        if self.under_way:
            self.ray.wait(list(self.under_way), num_returns=len(self.under_way), timeout=CANCEL_TIMEOUT)
