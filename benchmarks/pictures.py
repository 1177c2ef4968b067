"""The pictures of README and docs/: report, live page, playground, a diagnosis.  `make pictures`, after the demo."""

import io
import re
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from live import START, browser, live_page

DOCS = Path(__file__).parents[1] / "docs"
REPORT = Path(__file__).parents[1] / "demo" / "report.html"
SIZE: Any = {"viewport": {"width": 1280, "height": 860}}
COLOURS = 200
STEPS = 60


def save(name: str, png: bytes) -> None:
    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    path = DOCS / name
    image.save(path, "PNG", optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


def draw_diagnosis() -> None:
    """The site's picture of a vanishing gradient, from programs that were watched: docs/examples/runs."""
    sys.path[:0] = [str(DOCS / "hooks"), str(DOCS / "findings")]
    draw = runpy.run_path(str(DOCS / "hooks" / "pictures.py"))["_draw"]
    save("diagnose.png", draw("diagnosis", "vanishing_gradient")[0])


def main() -> None:
    import torch
    from torch import nn

    import sonde
    from sonde.show.playground import render_playground

    draw_diagnosis()
    with browser() as driven, tempfile.TemporaryDirectory() as written:
        page = driven.new_page(**SIZE)
        page.set_default_timeout(START)
        path = Path(written) / "playground.html"
        path.write_text(render_playground(), "utf-8")
        page.goto(path.as_uri())
        page.locator("#step").filter(has_text=re.compile(r"\d{2}")).wait_for()  # it trains as it opens
        page.locator("#play[aria-pressed=true]").click()
        save("playground.png", page.screenshot())
        page.close()
        page = driven.new_page(**SIZE)
        page.set_default_timeout(START)
        page.goto(REPORT.as_uri())
        page.locator(".answer svg").first.wait_for()
        save("report.png", page.screenshot())
        page.close()
        with (
            tempfile.TemporaryDirectory() as folder,
            live_page(driven, Path(folder) / "runs", **SIZE) as page,
        ):
            torch.manual_seed(0)
            layers = [layer for _ in range(12) for layer in (nn.Linear(32, 32), nn.ReLU())]
            model, criterion = nn.Sequential(*layers, nn.Linear(32, 4)), nn.CrossEntropyLoss()
            optimiser = torch.optim.Adam(model.parameters(), 1e-3)
            watch = sonde.watch(model, optimiser, loss=criterion, runs=Path(folder) / "runs", name="12 layers", every=1)
            x = torch.randn(512, 32)
            for _ in range(STEPS):
                inputs = x[torch.randint(len(x), (32,))]
                optimiser.zero_grad()
                criterion(model(inputs), inputs[:, :4].argmax(1)).backward()
                optimiser.step()
            _ = watch.facts  # flushes
            page.locator("#watched-step-said").filter(has_text=f"{STEPS - 1} of {STEPS - 1}").wait_for()
            page.locator("#live").filter(has_text="1 running").wait_for()
            page.locator("#watched .found, #watched .fine").first.wait_for()
            page.set_viewport_size({"width": 1280, "height": 1240})
            save("live.png", page.screenshot())
            watch.close()


if __name__ == "__main__":
    main()
