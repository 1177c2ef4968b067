"""The playground as a reader uses it, in a real browser."""

import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
import torch
from chromium import IN_CHROMIUM, LATENCY, Opened, open_page

from sonde.analysis.theory import independent_factor, second_moments
from sonde.config import RunConfig, complete_and_load_plugins
from sonde.core.formatting import gradient_status, signal_verdict
from sonde.studies.study import settings, swept

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = IN_CHROMIUM
READY = "#signal .line.now .stroke"
WORST = ("serious", "critical")  # of what axe finds
CHARTS = ("signal", "gradient", "cosine", "update")
PRESETS = ("plain", "skip", "raw", "scaled", "post", "hidden", "aligning", "pollack")

# A second engine of the page's own making, asked for exactly so many steps.
TRAIN = """([settings, stops]) => new Promise((done, fail) => {
  const engine = new Worker(URL.createObjectURL(new Blob([document.getElementById('engine').textContent])));
  const frames = [];
  let theory = null;
  engine.onerror = (event) => fail(new Error(event.message));
  engine.onmessage = ({ data }) => {
    if (data.kind === 'started') { theory = data.theory; return; }
    frames.push(data);
    const next = stops[frames.length - 1];
    if (next === undefined) { engine.terminate(); done(frames.map((frame) => ({ ...frame, theory }))); }
    else engine.postMessage({ kind: 'train', steps: next - data.step, budget: 1e9 });
  };
  engine.postMessage({ kind: 'start', run: 0, settings });
})"""

# One step after the other, as the page asks while it plays, until a frame has an older test loss; then none.
RESTS = """(settings) => new Promise((done, fail) => {
  const engine = new Worker(URL.createObjectURL(new Blob([document.getElementById('engine').textContent])));
  let waiting = null;
  engine.onerror = (event) => fail(new Error(event.message));
  engine.onmessage = ({ data }) => {
    if (data.kind === 'started') return;
    if (waiting) { engine.terminate(); done([waiting, data]); return; }
    if (!data.whole) waiting = data;
    engine.postMessage({ kind: 'train', steps: waiting ? 0 : 1, goes_on: !waiting });
  };
  engine.postMessage({ kind: 'start', run: 0, settings });
})"""

EXCHANGE = """(request) => new Promise((done) => {
  const engine = new Worker(URL.createObjectURL(new Blob([document.getElementById('engine').textContent])));
  engine.onmessage = ({ data }) => { engine.terminate(); done(data.answer); };
  engine.postMessage({ kind: 'exchange', request });
})"""

# How many frames have been drawn and when, as soon as there are so many.
FRAMES = """(least) => new Promise((done) => {
  const look = () => {
    const frames = Number(document.documentElement.dataset.frames);
    if (frames >= least) done([frames, performance.now()]); else requestAnimationFrame(look);
  };
  look();
})"""


@pytest.fixture
def visit(browser: "Browser", playground: Path) -> Iterator[Any]:
    """Open the page at an address; whatever a test does, nothing may fail or be fetched."""
    pages: list[Opened] = []

    def go(hash: str = "", **options: Any) -> Opened:
        pages.append(open_page(browser, playground, hash=hash, ready=READY, **options))
        return pages[-1]

    yield go
    for opened in pages:
        assert opened.complaints == []
        assert [u for u in opened.requests if not u.startswith(("file:", "data:", "blob:"))] == []
        opened.page.close()


def until(page: Any, holds: str) -> None:
    """Until an expression holds.  The page's policy lets no script in that could wait inside it."""
    for _ in range(LATENCY // 50):
        if page.evaluate(holds):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"still not: {holds}")


def settings_of(opened: Opened) -> dict[str, Any]:
    """What the address says."""
    words: dict[str, Any] = {"true": True, "false": False}
    found: dict[str, Any] = {}
    for part in opened.page.url.split("#")[1].split("&"):
        key, text = part.split("=")
        number = re.fullmatch(r"[\d.e-]+", text)
        found[key] = words.get(text, float(text) if number else text)
        if number and float(text).is_integer():
            found[key] = int(float(text))
    return found


def paused(opened: Opened) -> Opened:
    if opened.page.get_attribute("#play", "aria-pressed") == "true":
        opened.page.click("#play")
    return opened


def trained(opened: Opened, stops: list[int], **changes: Any) -> list[dict[str, Any]]:
    """Frames of the network in the address: at initialisation and after so many steps."""
    frames: list[dict[str, Any]] = opened.page.evaluate(TRAIN, [settings_of(opened) | changes, stops])
    return frames


def values(frame: dict[str, Any], metric: str) -> list[float]:
    return [reading["value"] for reading in frame["readings"][metric]]


def loss(frame: dict[str, Any]) -> float:
    return float(frame["evaluation"]["loss"])


def test_it_is_one_file_of_at_most_a_megabyte_and_its_first_picture_comes_at_once(visit: Any, playground: Path) -> None:
    assert playground.stat().st_size <= 1_000_000
    opened = visit()
    (after,) = opened.page.evaluate("performance.getEntriesByName('first picture').map(mark => mark.startTime)")
    print(f"\nfirst picture after {after / 1000:.2f} s, {playground.stat().st_size / 1e3:.0f} kB")
    assert all(opened.path(chart)[-1].startswith("M") for chart in ("signal", "gradient", "cosine"))


def test_frames_go_on_while_fifty_layers_train(visit: Any) -> None:
    opened = visit("#depth=50&width=32&batch=32&skip=true&by_depth=true&pace=1")
    page = opened.page
    before, begun = page.evaluate(FRAMES, 20)  # until the engine is compiled
    after, ended = page.evaluate(FRAMES, 80)
    assert int(page.inner_text("#step").replace(",", "")) > 20
    print(f"\n{1000 * (after - before) / (ended - begun):.0f} frames a second, depth 50, width 32, batch 32")


def test_what_costs_much_waits_while_training_goes_on_and_is_made_up_for_where_it_rests(visit: Any) -> None:
    opened = paused(visit("#task=rings&depth=1&width=4&batch=4&rate=0.05&pace=1"))
    waiting, rested = opened.page.evaluate(RESTS, settings_of(opened))
    assert not waiting["whole"]
    assert waiting["step"] == rested["step"] > 0
    assert rested["whole"]
    assert rested["field"] is not None
    (*_, then) = trained(opened, [rested["step"]])
    assert loss(rested) == loss(then)


def test_where_training_rests_the_test_loss_is_that_of_the_step_shown(visit: Any) -> None:
    opened = visit("#task=rings&depth=1&width=4&batch=4&rate=0.05&pace=1")
    page = opened.page
    page.evaluate(FRAMES, 25)
    page.click("#play")
    for _ in range(20):  # what was asked for before the click may still come
        step = int(page.inner_text("#step").replace(",", ""))
        (*_, then) = trained(opened, [step])
        said = float(page.inner_text("#test-loss"))
        if said == float(f"{loss(then):.2g}"):
            break
    assert then["step"] == step >= 20
    assert said == float(f"{loss(then):.2g}")  # in as many digits as it is shown


# ---- what the presets claim


def choose(visit: Any, name: str) -> Opened:
    opened: Opened = visit()
    opened.page.click(f"[data-preset={name}]")
    return paused(opened)


def test_every_preset_gives_its_reason_in_two_sentences(visit: Any) -> None:
    opened = paused(visit())
    assert opened.page.eval_on_selector_all("[data-preset]", "all => all.map(b => b.dataset.preset)") == [*PRESETS]
    for name in PRESETS:
        opened.page.click(f"[data-preset={name}]")
        assert opened.page.get_attribute(f"[data-preset={name}]", "aria-pressed") == "true"
        assert len(re.findall(r"[.!?](?=\s|$)", opened.page.inner_text("#why"))) == 2, name


def test_preset_plain_the_signal_dies_and_the_loss_stays(visit: Any) -> None:
    first, last = trained(choose(visit, "plain"), [300])
    signal, gradient = values(first, "signal"), values(first, "gradient")
    assert signal[20] < 1e-9 * signal[0]
    assert gradient[0] < 1e-9 * gradient[20]
    assert loss(last) == pytest.approx(1 / 3, abs=0.02)


def test_preset_skip_signal_and_gradient_arrive_and_the_loss_falls(visit: Any) -> None:
    first, last = trained(choose(visit, "skip"), [500])
    signal, gradient = values(first, "signal"), values(first, "gradient")
    assert all(value > 0.5 * signal[0] for value in signal)
    assert all(value > 0.1 * gradient[20] for value in gradient)
    assert loss(last) < 1 / 6


def test_preset_raw_the_stream_explodes(visit: Any) -> None:
    (first,) = trained(choose(visit, "raw"), [])
    signal, gradient = values(first, "signal"), values(first, "gradient")
    assert (signal[50] / signal[0]) ** (1 / 50) > math.sqrt(2)
    assert (gradient[0] / gradient[50]) ** (1 / 50) > math.sqrt(2)
    assert loss(first) > 1e16


def test_preset_scaled_the_stream_stays_and_the_loss_falls_below_that_of_zero(visit: Any) -> None:
    first, last = trained(choose(visit, "scaled"), [800])
    signal = values(first, "signal")
    assert signal[50] < 100 * signal[0]
    assert loss(last) < 1 / 3


def test_preset_post_fails_at_its_rate_and_learns_at_a_tenth_or_with_pre(visit: Any) -> None:
    opened = choose(visit, "post")
    assert loss(trained(opened, [400])[-1]) > 0.6
    assert trained(opened, [400], rate=0.001)[-1]["evaluation"]["accuracy"] > 0.9
    assert trained(opened, [600], norm="pre")[-1]["evaluation"]["accuracy"] > 0.9


def test_preset_hidden_the_stream_grows_the_gradient_shrinks_and_the_loss_does_not_show_it(
    visit: Any,
) -> None:
    first, last = trained(choose(visit, "hidden"), [600])
    assert values(last, "signal")[8] > 50 * values(first, "signal")[8]
    assert values(last, "gradient")[8] < values(first, "gradient")[8] / 20
    assert loss(last) < loss(first) / 2


def test_preset_aligning_the_cosine_rises_from_nothing(visit: Any) -> None:
    first, last = trained(choose(visit, "aligning"), [600])
    assert all(abs(value) < 0.2 for value in values(first, "cosine")[:3])
    assert all(value > 0.2 for value in values(last, "cosine")[:3])
    assert last["evaluation"]["accuracy"] > 0.5  # of ten classes


def test_preset_pollack_the_cosine_nears_one(visit: Any) -> None:
    first, last = trained(choose(visit, "pollack"), [600])
    assert all(abs(value) < 0.3 for value in values(first, "cosine")[:4])
    assert all(value > 0.9 for value in values(last, "cosine")[:4])


@pytest.mark.parametrize("skip", [0.0, 0.5, 1.0])
def test_the_theory_line_is_that_of_the_figures_and_networks_start_along_it(visit: Any, skip: float) -> None:
    depth, alpha, residual = 12, 12**-0.5, skip == 1
    opened = paused(visit(f"#depth={depth}&width=64&by_depth=true&skip={'true' if skip else 'false'}"))
    scale = {"skip_scale": skip} if skip else {}
    starts = [trained(opened, [], seed=seed, **scale)[0] for seed in range(15)]
    theory = starts[0]["theory"]
    if skip in (0, 1):
        assert theory["signal"] == pytest.approx([q**0.5 for q in second_moments(residual, alpha, depth)])
    for l in range(depth + 1):
        assert median(values(start, "signal")[l] for start in starts) == pytest.approx(theory["signal"][l], rel=0.2)
        back = median(values(start, "gradient")[l] / start["theory"]["gradient"][l] for start in starts)
        assert 0.75 < back < 1.4
    if skip == 1:  # of the identity's gradient much lies along the stream, and more comes back than (1 + α²)^½ a layer
        assert theory["gradient"][0] / theory["gradient"][-1] > 2 * independent_factor(True, alpha) ** depth


@pytest.mark.parametrize(("skip", "least", "most"), [("true", 0.4, 1.0), ("false", -0.3, 0.3)])
def test_chance_is_what_unrelated_matrices_score_and_a_skip_connection_lifts_it(
    visit: Any, skip: str, least: float, most: float
) -> None:
    opened = paused(visit(f"#rule=kp&task=teacher&depth=6&width=64&by_depth=true&skip={skip}"))
    start = trained(opened, [], seed=3)[0]
    chance = [reading["value"] for reading in start["readings"]["chance"][:-1]]
    assert all(least < value < most for value in chance)
    own = values(start, "cosine")[:-1]  # before training V is a draw like any other
    assert own == pytest.approx(chance, abs=0.3)
    opened.says("#cosine", "unrelated to W")


# ---- what the reader does


def test_the_address_holds_every_setting_and_opens_the_same_network(visit: Any) -> None:
    opened = paused(visit("#rule=dfa&task=rings&depth=7"))
    opened.page.focus("#set-width")
    opened.page.keyboard.press("ArrowLeft")
    opened.page.select_option("#set-norm", "pre")
    opened.page.check("#set-skip")
    settings = settings_of(opened)
    ids = opened.page.eval_on_selector_all("#settings [id^=set-]", "all => all.map(one => one.id.slice(4))")
    assert sorted(settings) == sorted(ids)
    assert (settings["width"], settings["norm"], settings["skip"], settings["depth"]) == (16, "pre", True, 7)
    again = paused(visit(opened.page.url[opened.page.url.index("#") :]))
    assert settings_of(again) == settings
    assert again.page.input_value("#set-norm") == "pre"


def test_a_link_that_asks_for_what_there_is_not_says_so(visit: Any) -> None:
    opened = visit("#depth=900&colour=blue&rule=bp&rate=0.5%")
    opened.says("#refused", "depth = 900, colour = blue, rate = 0.5%")
    assert settings_of(opened)["depth"] == 20


def test_undefined_is_a_gap_with_its_reason_never_a_zero(visit: Any) -> None:
    opened = paused(visit("#rule=frozen&task=rings&depth=6"))
    opened.says("#cosine .notes", "layers 1–6: the credit is zero in every sample")
    opened.says("#update .notes", "layers 1–6: not trained by this rule")
    (drawn,) = opened.path("cosine", "line.now")
    assert drawn.count("M") == 1  # layer 0 alone
    assert "L" not in drawn
    assert opened.page.locator("#cosine .undefined").count() == 1


def test_a_network_that_diverges_stops_and_says_so(visit: Any) -> None:
    opened = visit("#depth=50&skip=true&optimiser=sgd&rate=1")
    opened.says("#loss-notes", "Diverged at step")
    assert opened.page.get_attribute("#play", "aria-pressed") == "false"


def test_the_plane_is_painted_for_two_dimensional_tasks_alone(visit: Any) -> None:
    opened = paused(visit("#task=spirals"))
    assert opened.page.is_visible("#field")
    assert not opened.page.is_visible("#one-input")
    colours = opened.page.evaluate(
        """() => { const c = document.getElementById('field-canvas');
        return new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size; }"""
    )
    assert colours > 10
    opened.page.select_option("#set-task", "parity")
    opened.page.wait_for_selector("#one-input", state="visible")


def test_everything_can_be_done_with_the_keyboard(visit: Any) -> None:
    opened = paused(visit("#depth=4"))
    from playwright.sync_api import expect

    page = opened.page

    def at_step(step: int) -> None:
        expect(page.locator("#step")).to_have_text(str(step), timeout=LATENCY)

    page.focus("#signal .plot")
    page.keyboard.press("r")
    at_step(0)
    page.focus("#one-step")
    page.keyboard.press("Enter")
    at_step(1)
    page.focus("#signal .plot")
    page.keyboard.press("End")
    opened.says("#signal .inspected-value", "layer 4: ")
    page.keyboard.press("ArrowLeft")
    opened.says("#gradient .inspected-value", "layer 3: ")
    page.keyboard.press("r")
    at_step(0)
    page.keyboard.press(" ")
    assert page.get_attribute("#play", "aria-pressed") == "true"
    reached = page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, summary, .plot')]
          .filter(one => one.checkVisibility() && one.id !== 'loss-plot').every(one => one.tabIndex === 0)"""
    )
    assert reached


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(visit: Any, theme: str) -> None:
    opened = paused(visit("#task=teacher&rule=dfa", viewport={"width": 390, "height": 844}, color_scheme=theme))
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = page.evaluate(
        """() => [...document.querySelectorAll('figure, label, .command, header')]
          .filter(one => one.checkVisibility() && !one.closest('.grid') && one.getBoundingClientRect().right > 390.5)
          .length"""
    )
    assert wide == 0
    page.evaluate("document.getElementById('set-rule').scrollIntoView({ block: 'center' })")
    for part in ("#signal .plot", "#set-rule", "#play"):  # the chart stays in view beside the settings
        box = page.locator(part).bounding_box()
        assert box is not None
        assert 0 <= box["y"] < box["y"] + box["height"] <= 844, part


@pytest.mark.parametrize("width", [1400, 800, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_screen_passes_axe(visit: Any, width: int, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not there")
    size = {"width": width, "height": 844}
    opened = paused(visit("#task=spirals&rule=dfa&beside=depth%3D4", viewport=size, color_scheme=theme))
    opened.says("#network-b .learning", "that of")
    found = axe.Axe().run(opened.page).response
    bad = [(one["id"], one["nodes"][0]["html"]) for one in found["violations"] if one["impact"] in WORST]
    assert bad == []


def test_the_theme_can_be_chosen(visit: Any) -> None:
    page = paused(visit("", color_scheme="light")).page
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("#theme")
    assert page.evaluate(ground) != light
    assert page.inner_text("#theme") == "Light"
    page.click("#theme")
    assert page.evaluate(ground) == light


# ---- two networks


def test_two_networks_train_in_step_side_by_side(visit: Any) -> None:
    opened = paused(visit("#depth=6&by_depth=true&pace=1"))
    page = opened.page
    page.click("#compare")
    page.check("#set-skip")
    opened.says("#network-b .equation", "h ← ReLU(Wh + b)")
    opened.says("#network-a .equation", "h ← h + ReLU(Wh + b)")
    for _ in range(3):
        page.click("#one-step")
    opened.says("#step", "3")
    page.wait_for_selector("#signal .line.beside .stroke", state="attached")
    until(page, "playground.sessions().every(one => one.step === 3 && !one.asked)")
    own, beside = page.evaluate("playground.sessions().map(one => one.frame.readings.signal.map(at => at.value))")
    assert own[-1] > beside[-1] > 0
    assert len(opened.path("signal", "line.beside")) == 1
    assert page.locator("#loss-plot .loss").count() == 2
    opened.says("#signal .words", "B: h")
    again = paused(visit(page.url[page.url.index("#") :]))
    opened.says("#network-b .equation", "h ← ReLU(Wh + b)")
    assert again.page.is_visible("#network-b")
    page.click("#swap")
    opened.says("#network-a .equation", "h ← ReLU(Wh + b)")
    page.click("#alone")
    assert not page.is_visible("#network-b")
    assert "beside" not in page.url


def test_the_drawing_has_blocks_skips_and_norms(visit: Any) -> None:
    opened = paused(visit("#depth=4&skip=true&norm=pre&out_ln=true&task=teacher&block=two"))
    page = opened.page
    assert page.locator("#network-a .drawing .skip").count() == 4
    assert page.locator("#network-a .drawing .norm").count() == 5
    assert "4 blocks, with skip connections" in page.get_attribute("#network-a .drawing", "aria-label")
    page.uncheck("#set-skip")
    until(page, "document.querySelectorAll('#network-a .drawing .skip').length === 0")


# ---- words go by the thresholds of figures and findings


@pytest.mark.parametrize("ratio", [1e-5, 0.5, 8.0, 15.0, 69.0, 150.0])
def test_a_gradient_has_the_word_that_findings_have(visit: Any, ratio: float) -> None:
    page = paused(visit("#depth=2")).page
    word = page.evaluate(f"playground.gradientWord({ratio})")
    assert f"gradient {word}" == gradient_status(ratio)


@pytest.mark.parametrize(("times", "verb"), [(5, "holds"), (15, "grows"), (69, "grows"), (150, "explodes")])
def test_a_signal_has_the_word_that_figures_have(visit: Any, times: float, verb: str) -> None:
    page = paused(visit("#depth=2")).page
    lines = f"{{ signal: [{{value: 1}}, {{value: {times}}}], spread: [{{value: 1}}, {{value: {times}}}] }}"
    assert f"the signal {verb}." in page.evaluate(f"playground.signalWords({lines})")
    assert signal_verdict([times], 1.0).startswith(f"signal {verb}")


@pytest.mark.parametrize(
    ("loss", "said"), [(0.01, "Learned: "), (0.5, "Learned little so far: "), (0.69, "Has not learned: ")]
)
def test_what_is_said_of_learning_goes_by_the_loss_of_guessing(visit: Any, loss: float, said: str) -> None:
    page = paused(visit("#depth=2")).page
    frame = f"{{ step: 9, diverged: false, evaluation: {{ loss: {loss}, accuracy: 0.99 }} }}"
    assert page.evaluate(f"playground.learningWords({frame}, {{ trivial: Math.LN2, classifies: true }})").startswith(
        said
    )


# ---- take it to Python

SAME = {  # networks that Sonde has by name
    "plain_mlp": "#depth=3&width=8",
    "res_mlp": "#depth=3&width=8&skip=true&by_depth=true&task=teacher&rule=fa&credit=none&decay=0.01",
    "residual_mlp": "#depth=3&width=8&block=two&activation=gelu&norm=pre&skip=true&out_ln=true&task=teacher&rule=dfa",
    "student_net": "#depth=3&width=8&block=student&activation=tanh&skip=true&by_depth=true&task=teacher",
}


def config_of(line: str) -> RunConfig:
    """The configuration that `sonde train` makes of a line."""
    words = shlex.split(line.replace("\\\n", " "))
    assert words[:2] == ["sonde", "train"]
    options: dict[str, Any] = {}
    sets: list[str] = []
    for flag, value in zip(words[2::2], words[3::2], strict=True):
        if flag == "--set":
            sets.append(value)
        else:
            options[flag.removeprefix("--")] = int(value) if value.isdigit() else value
    (config,) = swept([complete_and_load_plugins(options)], settings(sets))
    return config


@pytest.mark.parametrize("model", SAME)
def test_the_line_trains_the_network_of_the_page(visit: Any, model: str) -> None:
    opened = paused(visit(SAME[model]))
    assert opened.page.is_visible("#python-same")
    config = config_of(opened.page.inner_text("#python-line"))
    settings = settings_of(opened)
    assert (config.optimiser.lr, config.optimiser.weight_decay) == (settings["rate"], settings["decay"])
    assert (config.batch_size, config.seed) == (settings["batch"], settings["seed"])
    signature = config.signature
    sizes = {
        "inputs": math.prod(signature.shape),
        "outputs": signature.outputs,
        "classifies": signature.classifies,
    }
    batch = {"x": [0.5] * sizes["inputs"], "y": [0] if signature.classifies else [0.5] * sizes["outputs"]}
    ours = opened.page.evaluate(EXCHANGE, {"settings": settings, "sizes": sizes, **batch})
    draws = [config.model.build(signature, torch.Generator().manual_seed(seed)).state_dict() for seed in range(40)]
    assert {name: list(value.shape) for name, value in draws[0].items()} == ours["shapes"]
    for name, std in ours["spread"].items():
        spread = torch.stack([draw[name] for draw in draws]).std().item()
        assert spread == pytest.approx(std, rel=0.15, abs=1e-6), name


@pytest.mark.parametrize("task", ["identity", "rings", "spirals", "teacher", "parity"])
@pytest.mark.parametrize("optimiser", ["adam", "momentum"])
def test_every_task_is_taken_to_python(
    visit: Any, task: str, optimiser: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = paused(visit(f"#task={task}&depth=3&width=8&optimiser={optimiser}"))
    page = opened.page
    assert page.is_visible("#python-same")
    monkeypatch.chdir(tmp_path)
    if page.is_visible("#python-task"):
        (tmp_path / page.inner_text("#python-file-name")).write_text(page.text_content("#python-file"))
    config = config_of(page.inner_text("#python-line"))
    sizes = page.evaluate("playground.sessions()[0].state.sizes")
    signature = config.signature
    assert math.prod(signature.shape) == sizes["inputs"]
    assert (signature.outputs, signature.classifies) == (sizes["outputs"], sizes["classifies"])
    data = config.task.load(1, None, torch.device("cpu"), torch.float32)
    assert data.train_samples == sizes["train"]
    if task in ("rings", "spirals"):  # the samples of the file and of the page come from one distribution
        state = "playground.sessions()[0].state.points"
        ours = page.evaluate(f"[[...{state}.x], [...{state}.y]]")
        x, y = data.test(0, data.test_samples)
        for label in (0, 1):
            theirs = torch.sort(x[y == label].norm(dim=-1)).values
            points = torch.tensor(ours[0]).view(-1, 2)[torch.tensor(ours[1]) == label]
            assert torch.allclose(theirs, torch.sort(points.norm(dim=-1)).values, atol=0.15)
        turned = torch.atan2(x[:, 1], x[:, 0]) - 3.5 * math.pi * (x.norm(dim=-1) - 0.1) / 0.95
        if task == "spirals":
            assert torch.cos(turned[y == 0]).mean() > 0.8 > -0.8 > torch.cos(turned[y == 1]).mean()


@pytest.mark.parametrize(
    ("hash", "difference"),
    [
        ("#optimiser=sgd&decay=0.01", "SGD: weight decay is added to the gradient there"),
        ("#norm=post", "its LayerNorm stands before the branch, here after the addition"),
        ("#activation=tanh", "its activation is ReLU, here tanh"),
        ("#skip=true&skip_scale=0.5", "its skip connection is not scaled, here by 0.5"),
        ("#out_ln=true", "it has no LayerNorm before the readout"),
        ("#block=student&activation=tanh&skip=true", "its W₂ starts with α = 1/√L"),
    ],
)
def test_what_sonde_lacks_is_said_beside_the_nearest_line(visit: Any, hash: str, difference: str) -> None:
    opened = paused(visit(hash))
    assert not opened.page.is_visible("#python-same")
    assert difference in opened.page.inner_text("#python-differs")
    config_of(opened.page.inner_text("#python-line"))  # and it is a line that `sonde train` takes
