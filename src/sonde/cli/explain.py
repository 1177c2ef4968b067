"""`sonde explain`."""

from typing import Annotated

import typer

from sonde.cli.options import Json


def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A diagnosis, metric, probe, rule, model, task, optimiser, question of the audit or word.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Say what a name means: what it is, how it is measured, from which number on, what to try, who wrote of it.

    Without a name, all names there are, by kind.
    """
    from dataclasses import asdict

    from sonde.analysis.explanations import EXPLANATIONS, documented, explanations
    from sonde.cli.terminal import console, print_json
    from sonde.plugins import BUILT_IN

    known = [*EXPLANATIONS, *(text for kind, table in BUILT_IN.items() for text in documented(kind, table))]
    to = console()
    if name is None:
        if json:
            print_json([asdict(text) for text in known])
            return
        for kind in dict.fromkeys(text.kind for text in known):
            names = [text.name for text in known if text.kind == kind]
            to.print(f"{kind}: {', '.join(names)}", soft_wrap=not to.is_terminal)
        return
    found = explanations(name, known)
    if json:
        print_json([asdict(text) for text in found])
        return
    for text in found:
        for line in str(text).splitlines():
            to.print(line, soft_wrap=not to.is_terminal)
