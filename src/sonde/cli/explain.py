"""`sonde explain`: what a name means."""

from typing import Annotated

import typer

from sonde.cli.options import Json


def explain_command(
    name: Annotated[
        str | None,
        typer.Argument(help="A diagnosis, metric, probe, rule, model, task, optimiser, question of the audit or term."),
    ] = None,
    json: Json = False,
) -> None:
    """Explain a name: what it is, how it is measured, its threshold, what to try, and the papers about it.

    Without a name: list all names, by kind.
    """
    from dataclasses import asdict

    from sonde.analysis.explanations import EXPLANATIONS, documented, explanations
    from sonde.cli.terminal import print_json, print_text
    from sonde.plugins import BUILT_IN

    known = [*EXPLANATIONS, *(text for kind, table in BUILT_IN.items() for text in documented(kind, table))]
    if name is None:
        if json:
            print_json([asdict(text) for text in known])
            return
        for kind in dict.fromkeys(text.kind for text in known):
            names = [text.name for text in known if text.kind == kind]
            print_text(f"{kind}: {', '.join(names)}")
        return
    found = explanations(name, known)
    if json:
        print_json([asdict(text) for text in found])
        return
    for text in found:
        for line in str(text).splitlines():
            print_text(line)
