"""Saving: whole files in place, reasons for what is missing, the same bytes from the same data."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text
from PIL import Image, ImageColor

from evidence import (
    RESIDUAL,
    crowded_rules,
    residual_evidence,
    snapshot_evidence,
    undefined_where,
    with_rows,
    with_runs,
)
from sonde.core.errors import SondeError
from sonde.core.html_parts import DARK_PAGE
from sonde.show.figures import FIGURES, Evidence, FigureSpec, figure_named, figures_of, render
from sonde.show.figures.render import draw_all, fix_layout, page_images, picture_digest
from sonde.show.figures.style import house_style, recolour_for_dark
from sonde.store import files as store_files

SMALL = residual_evidence(depth=4, width=4, steps=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("drawn")
    draw_all(SMALL, out, study="residual")
    return out


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_every_figure_is_a_png_a_pdf_and_a_caption(folder: Path) -> None:
    paths = [spec.paths["residual"] for spec in RESIDUAL.values()]
    expected = {f"{path}.{suffix}" for path in paths for suffix in ("png", "pdf", "txt")}
    assert files(folder) == expected
    for path in folder.rglob("*.png"):
        with Image.open(path) as image:
            assert image.width >= 1600, path
    pdf = (folder / "residual/training_loss.pdf").read_bytes()
    assert b"CreationDate" not in pdf
    assert b"/Type3" not in pdf
    assert b"/FontFile2" in pdf  # TrueType
    for name in ("training_loss", "signal_flow"):
        assert "weights × 1/√L" in (folder / f"residual/{name}.txt").read_text()


AGAIN = """
from pathlib import Path
from evidence import residual_evidence
from evidence import crowded_rules, snapshot_evidence
from sonde.show.figures import FIGURES
from sonde.show.figures.render import draw_files
def draw(name, study, evidence, out=Path()):
    draw_files(FIGURES[name], evidence, out / FIGURES[name].paths[study])
def draw_some(out=Path()):
    for name in ("diagnostics", "summary"):
        draw(name, "audit", crowded_rules(), out)
    draw("stream_by_terminal_ln", "snapshots", snapshot_evidence(seeds=(42, 123), epochs=3), out)
if __name__ == "__main__":
    for name in ("signal_flow", "one_input"):
        draw(name, "residual", residual_evidence(depth=4, width=4, steps=5))
    draw_some()
"""


def test_the_same_data_gives_the_same_bytes_in_another_process(folder: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    surroundings = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": path}
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    subprocess.run([sys.executable, "-c", AGAIN], cwd=there, env=surroundings, check=True)
    known: dict[str, Any] = {}
    exec(AGAIN, known)
    known["draw_some"](here)
    again = files(there)
    assert len(again) == 15
    for name in again:
        before = folder if name.startswith("residual") else here
        assert (there / name).read_bytes() == (before / name).read_bytes(), name


@pytest.mark.usefixtures("coarse")
def test_files_are_named_by_study_and_figure(tmp_path: Path) -> None:
    draw_all(crowded_rules(), tmp_path, study="audit")
    draw_all(snapshot_evidence(seeds=(42, 123), epochs=3), tmp_path, study="snapshots")
    drawn = [spec.paths[study] for study in ("audit", "snapshots") for spec in figures_of(study).values()]
    without_parity = [path for path in drawn if "parity" not in path]
    assert "audit/weight_drift" in without_parity
    assert files(tmp_path) == {f"{path}.{suffix}" for path in without_parity for suffix in ("png", "txt")}


PAPER_LAYOUT = {
    "residual": {
        *(f"plots/{name}" for name in ("training_loss", "gradient_magnitude", "activation_mean", "activation_std")),
        *("plots/loss_by_depth", "plots_micro/1_signal_flow", "plots_micro/2_gradient_flow"),
        *("plots_micro/3_highway_concept", "plots_micro/4_chain_rule", "plots_micro/5_layer_transformation"),
        "plots_micro/6_learning_comparison",
    },
    "snapshots": {
        *("results/figures/figure_snapshot_resmlp", "results/figures/figure_snapshot_vit"),
        "paper/figures/fig3b_crossarch_3row",
    },
    "cifar10": {
        f"report/cifar_{name}" for name in ("accuracy", "diagnostics", "feature_drift", "state_vs_credit", "summary")
    },
}


@pytest.mark.parametrize("study", PAPER_LAYOUT)
def test_the_paper_layout_has_the_files_that_existing_scripts_expect(study: str) -> None:
    own = [spec for spec in figures_of(study).values() if not spec.name.startswith("parity")]
    assert {spec.path(study, "paper") for spec in own} == PAPER_LAYOUT[study]


@pytest.mark.usefixtures("coarse")
def test_the_paper_layout_draws_the_first_four_figures_with_unscaled_weights(tmp_path: Path) -> None:
    only = with_rows(SMALL, SMALL.rows.filter(pl.col("metric") == "batch_loss"))
    draw_all(only, tmp_path, study="residual", layout="paper")
    assert "weights × 1 (" in (tmp_path / "plots/training_loss.txt").read_text()
    draw_all(only, tmp_path, study="residual", layout="paper", variant="scaled")
    assert "weights × 1/√L" in (tmp_path / "plots/training_loss.txt").read_text()


@pytest.mark.parametrize(("former", "name"), [("cifar_feature_drift", "weight_drift"), ("crossarch", "three_networks")])
def test_a_former_name_of_a_figure_works_and_warns(former: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{former} is deprecated: use {name}"):
        assert figure_named(former) is FIGURES[name]
    with pytest.raises(SondeError, match="weight_drift"):
        figure_named("weight_drfit")


@pytest.mark.usefixtures("coarse")
def test_a_figure_without_rows_is_skipped_with_its_reason(tmp_path: Path) -> None:
    fewer = with_rows(SMALL, SMALL.rows.filter(pl.col("metric") == "activation_std"))
    drawn = draw_all(fewer, tmp_path, study="residual")
    assert drawn.skipped.keys() == RESIDUAL.keys() - {"activation_std", "signal_flow", "loss_by_depth"}
    assert "batch_loss" in drawn.skipped["training_loss"]
    assert files(tmp_path) == {str(path.relative_to(tmp_path)) for path in drawn.files}


def test_a_figure_of_nothing_but_undefined_values_is_skipped(tmp_path: Path) -> None:
    drawn = draw_all(undefined_where(SMALL, pl.lit(True)), tmp_path, study="residual")
    assert drawn.skipped.keys() == RESIDUAL.keys() - {"loss_by_depth"}
    assert "made so" in drawn.skipped["gradient_magnitude"]
    assert not files(tmp_path)


def test_a_skipped_figure_says_that_an_older_file_is_there(tmp_path: Path) -> None:
    (tmp_path / "residual").mkdir()
    (tmp_path / "residual/training_loss.png").touch()
    drawn = draw_all(with_rows(SMALL, SMALL.rows.clear()), tmp_path, study="residual")
    assert "older" in drawn.skipped["training_loss"]
    assert "older" not in drawn.skipped["activation_mean"]


@pytest.mark.usefixtures("coarse")
def test_another_variant_can_be_asked_for(tmp_path: Path) -> None:
    only = with_rows(SMALL, SMALL.rows.filter(pl.col("metric") == "batch_loss"))
    draw_all(only, tmp_path, study="residual", variant="raw")
    assert "weights × 1 (" in (tmp_path / "residual/training_loss.txt").read_text()
    with pytest.raises(SondeError, match="--variant odd: no run in the store has it: there are: raw, scaled"):
        draw_all(SMALL, tmp_path / "none", study="residual", variant="odd")
    assert not (tmp_path / "none").exists()


def test_a_study_without_figures_draws_nothing(tmp_path: Path) -> None:
    drawn = draw_all(SMALL, tmp_path / "none", study="of_ones_own")
    assert (drawn.files, drawn.skipped) == ([], {})
    assert not (tmp_path / "none").exists()


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(SondeError, match="it is a file"):
        draw_all(SMALL, tmp_path / "out", study="residual")
    (tmp_path / "residual").touch()
    with pytest.raises(SondeError, match="cannot write"):
        draw_all(SMALL, tmp_path, study="residual")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(SondeError, match="cannot write"):
        draw_all(SMALL, tmp_path / "out", study="residual")


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(SondeError, match="No space left"):
        draw_all(SMALL, tmp_path, study="residual")
    assert not files(tmp_path)


def test_the_table_needs_no_plotting_library() -> None:
    check = "import sys, sonde.show.figures; print({'matplotlib', 'torch', 'sonde.store'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_drawing_loads_neither_torch_nor_global_plotting_state(tmp_path: Path) -> None:
    check = (
        "import sys; from importlib import import_module; from sonde.show.figures import FIGURES\n"
        "for spec in FIGURES.values(): import_module('sonde.show.figures.' + spec.drawn_by.split('.')[0])\n"
        "print({'matplotlib.pyplot', 'torch', 'sonde.store', 'sonde.training'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


TRAINING_LOSS = FIGURES["training_loss"]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pictures are kept."""
    monkeypatch.setattr(store_files, "user_cache", lambda kind: tmp_path / "kept")
    return tmp_path / "kept"


@pytest.fixture
def drawings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is really drawn, as it is drawn."""
    seen: list[str] = []
    draw = FigureSpec.draw

    def counted(self: FigureSpec, *given: Any) -> Any:
        seen.append(self.name)
        return draw(self, *given)

    monkeypatch.setattr(FigureSpec, "draw", counted)
    return seen


def test_a_picture_of_anything_else_is_drawn_anew(kept: Path, drawings: list[str]) -> None:
    page_images(TRAINING_LOSS, SMALL)
    last = pl.int_range(pl.len()) == pl.len() - 1
    value = pl.when(last & (pl.col("metric") != "")).then(1e-300).otherwise("value")
    others = [
        with_rows(SMALL, SMALL.rows.with_columns(value=value)),
        with_rows(SMALL, SMALL.rows.with_columns(defined=pl.col("defined") & ~last)),
        with_runs(SMALL, SMALL.runs.with_columns(seed=pl.lit(7, dtype=pl.Int64))),
        Evidence(SMALL.rows, SMALL.runs, "another store"),
    ]
    for changed in others:
        before = len(drawings)
        page_images(FIGURES["one_input"], changed)
        assert len(drawings) == before + 1
    page_images(FIGURES["gradient_magnitude"], SMALL)
    page_images(TRAINING_LOSS, SMALL)
    assert drawings.count(TRAINING_LOSS.name) == 1


def test_a_picture_drawn_by_other_code_or_libraries_is_not_taken(
    kept: Path, drawings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page_images(TRAINING_LOSS, SMALL)
    for module, what, other in ((store_files, "_code_digest", lambda: "edited"), (render, "PAGE_DPI", 151)):
        with monkeypatch.context() as changed:
            changed.setattr(module, what, other)
            page_images(TRAINING_LOSS, SMALL)
    assert len(drawings) == 3


def test_a_kept_picture_that_is_not_whole_or_not_in_its_place_is_not_taken(kept: Path, drawings: list[str]) -> None:
    right = page_images(TRAINING_LOSS, SMALL)
    (file,) = kept.iterdir()
    whole = file.read_bytes()
    other = picture_digest(FIGURES["activation_mean"], SMALL.of(variant="scaled"))
    for content in (whole[:-1], whole[:40], b"", whole.replace(b"Training loss", b"Draining loss")):
        file.write_bytes(content)
        assert page_images(TRAINING_LOSS, SMALL) == right
    (kept / other).write_bytes(whole)
    assert page_images(FIGURES["activation_mean"], SMALL).caption != right.caption
    assert len(drawings) == 6


def test_only_so_many_pictures_are_kept_and_the_last_used_stay(
    kept: Path, drawings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_files, "_MOST", 2)
    for age, name in enumerate(("training_loss", "activation_mean")):
        page_images(FIGURES[name], SMALL)
        os.utime(kept / picture_digest(FIGURES[name], SMALL.of(variant="scaled")), (age, age))
    page_images(TRAINING_LOSS, SMALL)  # used again
    page_images(FIGURES["activation_std"], SMALL)
    assert len(list(kept.iterdir())) == 2
    page_images(TRAINING_LOSS, SMALL)
    assert drawings.count(TRAINING_LOSS.name) == 1


def test_where_nothing_can_be_kept_figures_are_drawn_all_the_same(kept: Path, drawings: list[str]) -> None:
    kept.touch()
    assert page_images(TRAINING_LOSS, SMALL) == page_images(TRAINING_LOSS, SMALL)
    assert len(drawings) == 2


@pytest.mark.usefixtures("coarse")
def test_page_images_are_drawn_once_for_light_and_dark_and_taken_from_the_run_of_the_study(
    tmp_path: Path, kept: Path, drawings: list[str]
) -> None:
    draw_all(SMALL, tmp_path, study="residual")
    for spec in RESIDUAL.values():
        found = page_images(spec, SMALL)
        assert found.caption == (tmp_path / f"{spec.paths['residual']}.txt").read_text()
        light, dark = (Image.open(io.BytesIO(found.images[theme])) for theme in ("light", "dark"))
        assert light.size == dark.size
        for image, ground in ((light, (255, 255, 255)), (dark, ImageColor.getrgb(DARK_PAGE))):
            assert image.convert("RGB").getpixel((0, 0)) == ground
    assert len(drawings) == 11
    before = page_images(TRAINING_LOSS, SMALL)
    for file in kept.iterdir():
        file.unlink()
    assert page_images(TRAINING_LOSS, SMALL) == before
    assert len(drawings) == 12


def test_on_a_dark_page_every_letter_and_line_stands_out_and_nothing_is_left_white() -> None:
    page = np.array(ImageColor.getrgb(DARK_PAGE)) / 255
    for spec in RESIDUAL.values():
        with house_style():
            figure, _ = spec.draw(SMALL)
            fix_layout(figure)
            lines = {line: contrast(to_rgb(line.get_color()), (1, 1, 1)) for line in figure.findobj(Line2D)}
            recolour_for_dark(figure)
        for text in figure.findobj(Text):
            if text.get_text() and text.get_visible():
                assert contrast(to_rgb(text.get_color()), page) > 4, text.get_text()
        for line, before in lines.items():
            assert contrast(to_rgb(line.get_color()), page) > min(2.5, 0.8 * before), line
        for patch in figure.findobj(Patch):
            *rgb, alpha = patch.get_facecolor()
            assert alpha < 1 or min(rgb) < 0.85, patch


def contrast(first: Any, second: Any) -> float:
    """As in WCAG 2."""

    def luminance(rgb: Any) -> float:
        linear = np.where(np.array(rgb) <= 0.04045, np.array(rgb) / 12.92, ((np.array(rgb) + 0.055) / 1.055) ** 2.4)
        return float(linear @ (0.2126, 0.7152, 0.0722))

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)
